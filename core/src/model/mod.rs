//! The hybrid model: its description as data, its weights and state on a device, and its forward pass.

mod experts;
pub(crate) mod forward;
pub mod scratch;
pub mod spec;
pub mod state;
mod together;
pub mod weights;

pub use scratch::Dims;
pub use spec::ModelSpec;
