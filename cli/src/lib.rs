//! The command line of Whipsnake, apart from the engine: what is asked for ([`args`], [`input`]),
//! where models come from ([`hub`]), the chat at the terminal ([`repl`]), what is printed
//! ([`output`], [`failure`]) and how it is stopped ([`interrupt`]).

pub mod args;
pub mod failure;
pub mod hub;
pub mod input;
pub mod interrupt;
pub mod output;
pub mod repl;
