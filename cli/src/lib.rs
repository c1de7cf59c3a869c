//! The command line of Whipsnake: what is asked for ([`args`], [`input`]), where models come from ([`hub`],
//! [`embedded`]), how they are put on a device ([`runtime`]) and run ([`commands`], [`replies`], [`repl`]), what is
//! printed ([`output`], [`failure`]) and how it is stopped ([`interrupt`]).

pub mod args;
pub mod commands;
pub mod embedded;
pub mod failure;
pub mod hub;
pub mod input;
pub mod interrupt;
pub mod memory;
pub mod output;
pub mod repl;
pub mod replies;
pub mod runtime;
pub mod select;
