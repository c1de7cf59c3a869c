//! The hybrid model over an op trait, with the CPU reference back end.
//!
//! A tour, in reading order. [`checkpoint`] opens the published files and [`family`] turns their config into a
//! [`model::ModelSpec`], a model as data; [`plan`] prices it. A [`backend::Backend`] is a device that runs [`ops`]; every op reaches it
//! through [`step::Step::run`], which checks and traces it. Operands are [`tensor::Tensor`]s and
//! [`weight::Weight`]s; which rows belong to which sequence is said by a [`batch::Batch`], validated once.
//! [`cpu::Cpu`] holds the definitions, and [`conformance`] holds every other back end to them.
//!
//! A [`session::Session`] is a model on a device; the [`engine::Engine`] runs sequences on it. Text goes in through
//! [`chat`] and [`tokenizer`] and comes out through [`sampling`] and [`reply`].

pub mod checkpoint;
pub mod family;
pub mod plan;

pub mod model;

pub mod backend;
pub mod ops;
pub mod profile;
pub mod step;
pub mod trace;

pub mod batch;
pub mod quant;
pub mod tensor;
pub mod weight;

pub mod bench;
pub mod conformance;
pub mod cpu;

pub mod engine;
pub mod session;

pub mod chat;
pub mod generation;
pub mod reasoning;
pub mod replies;
pub mod reply;
pub mod sampling;
pub mod stop;
pub mod tokenizer;
pub mod tool_calls;

pub mod error;
