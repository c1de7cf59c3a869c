//! Whipsnake's portable back end: every GPU and the browser through wgpu.
//!
//! A tour: [`probe`] lists the adapters and says why one is chosen; [`Wgpu`] is an opened device that implements the
//! core's [`Backend`](whipsnake_core::backend::Backend). An op's host in `ops/` puts a `Call` together: a kernel of
//! `shaders/`, the windows it is bound to, its parameters. The recorder turns calls into dispatches, finds bind groups
//! and parameters by content, and submits. Weights stay packed on the device, cut where a binding ends.

mod backend;
mod buffer;
#[cfg(not(target_arch = "wasm32"))]
mod cache;
mod call;
mod device;
mod faults;
mod grid;
mod kernel;
mod load;
mod ops;
pub mod probe;
mod recorder;
mod timing;
mod transfer;
#[cfg(not(target_arch = "wasm32"))]
mod upload;
mod variants;

pub use backend::POLICY;
pub use buffer::Buffer;
pub use device::{Demands, Options, Timed, Wgpu};
pub use kernel::Kernel;
pub use ops::kernels;
#[cfg(not(target_arch = "wasm32"))]
pub use probe::devices;
pub use probe::{DeviceReport, Verdict, devices_async};
pub use variants::{Reduction, Wishes};
