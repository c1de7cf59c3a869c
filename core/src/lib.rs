//! The hybrid model over an op trait, with the CPU reference back end.
//!
//! A tour, in reading order: a [`backend::Backend`] is a device that runs [`ops`]; every op reaches it through
//! [`step::Step::run`], which checks and traces it. Operands are [`tensor::Tensor`]s and [`weight::Weight`]s; which
//! rows belong to which sequence is said by a [`batch::Batch`], validated once. [`cpu::Cpu`] holds the definitions.

pub mod backend;
pub mod batch;
pub mod checkpoint;
pub mod conformance;
pub mod cpu;
pub mod error;
pub mod family;
pub mod model;
pub mod ops;
pub mod plan;
pub mod quant;
pub mod step;
pub mod tensor;
pub mod trace;
pub mod weight;
