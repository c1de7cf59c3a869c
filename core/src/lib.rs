//! The hybrid model over an op trait, with the CPU reference back end.

pub mod chat;
pub mod error;
pub mod generation;
pub mod reasoning;
pub mod sampling;
pub mod stop;
pub mod tokenizer;
pub mod tool_calls;
