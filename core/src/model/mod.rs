//! The hybrid model: its description as data, its weights and state on a device, and its forward pass.

pub mod spec;

pub use spec::ModelSpec;
