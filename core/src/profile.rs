//! Where the time of a step goes, op by op, by the device's own clock.

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::step::Operand;
use serde::Serialize;
use std::cell::RefCell;

/// One op of a profiled step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpTime {
    /// The op's name, that of the fused op where one ran.
    pub op: &'static str,
    /// The weight it read, which says where in the model it ran.
    pub weight: Option<String>,
    /// Microseconds from the start of the step.
    pub start: f64,
    /// Microseconds until the next op could begin.
    pub microseconds: f64,
}

/// The ops that were encoded between marks.
#[derive(Default)]
pub(crate) struct Marked(RefCell<Vec<(&'static str, Option<String>)>>);

impl Marked {
    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// How many ops were noted.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Notes an op that was just encoded, and the device's clock behind it.
    pub fn note<B: Backend>(
        &self,
        backend: &B,
        name: &'static str,
        operands: &[Operand<'_, B>],
    ) -> Result<()> {
        let weight = operands.iter().find_map(|operand| match operand {
            Operand::Weight(_, weight) => Some(weight.name.clone()),
            Operand::Tensor(..) => None,
        });
        self.0.borrow_mut().push((name, weight));
        backend.mark()
    }

    /// Pairs the ops with the device's marks: one before the first op and one behind each.
    pub fn times(&self, marks: &[f64]) -> Result<Vec<OpTime>> {
        let ops = self.0.borrow();
        if marks.len() != ops.len() + 1 {
            let text = format!("profile: {} marks for {} ops", marks.len(), ops.len());
            return Err(Error::device(text));
        }
        let time = |(i, (op, weight)): (usize, &(&'static str, Option<String>))| OpTime {
            op,
            weight: weight.clone(),
            start: marks[i] - marks[0],
            microseconds: marks[i + 1] - marks[i],
        };
        Ok(ops.iter().enumerate().map(time).collect())
    }
}
