//! A readable record of the ops of a step, for snapshots and counting.

use crate::backend::Backend;
use crate::step::{Access, Operand};
use std::cell::RefCell;
use std::fmt::Write;

/// Collects one line an op, in the order in which they were encoded.
#[derive(Debug, Default)]
pub struct Traced {
    lines: RefCell<Vec<String>>,
}

impl Traced {
    /// An empty record.
    pub fn new() -> Self {
        Self::default()
    }

    /// The lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.borrow().clone()
    }

    pub(crate) fn record<B: Backend>(&self, name: &str, operands: &[Operand<'_, B>]) {
        let mut line = String::from(name);
        for operand in operands {
            // Writing to a string cannot fail.
            let _ = match operand {
                Operand::Tensor(name, tensor, access) => {
                    write!(line, " {}{name}{:?}", sign(*access), tensor.shape())
                }
                Operand::Weight(name, w) => {
                    let experts =
                        if w.experts > 1 { format!("{}x", w.experts) } else { String::new() };
                    write!(line, " {name}={experts}[{}, {}] {}", w.rows, w.cols, w.format)
                }
            };
        }
        self.lines.borrow_mut().push(line);
    }
}

fn sign(access: Access) -> &'static str {
    match access {
        Access::Read => "",
        Access::Write => ">",
        Access::Update => "~",
    }
}
