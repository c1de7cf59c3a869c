//! The CUDA back end: kernels compiled for the device at hand, encoded on one stream, replayed as graphs.
//!
//! A tour, in reading order: [`probe`] says what is there and why a candidate is refused; [`Cuda`] is the back end;
//! `memory` holds device allocations, `staging` moves bytes, `compile`, `images` and `kernels` turn `kernels/*.cu` into
//! loaded functions, `ops` launches them; `clock` times the ops of a step, `bench` times them against their floors.

mod bench;
mod clock;
pub mod compile;
mod cublaslt;
mod cuda;
mod driver;
mod images;
mod kernels;
mod later;
mod library;
mod memory;
mod ops;
pub mod probe;
mod program;
mod staging;
mod step;
mod switches;
mod view;
mod weight;

pub use cuda::{Cuda, Options};
pub use kernels::{expand, sources};
pub use memory::CudaBuffer;
pub use probe::{DeviceReport, devices};
