//! The command line of Whipsnake, apart from the engine.

pub mod args;
pub mod failure;
pub mod hub;
pub mod input;
pub mod interrupt;
pub mod output;
