//! The one way an op reaches a back end: check, trace, encode.

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::profile::Marked;
use crate::tensor::Tensor;
use crate::trace::Traced;
use crate::weight::Weight;

/// What an op does with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only read.
    Read,
    /// Every element is written, none is read.
    Write,
    /// Read and written: state, caches, in-place targets.
    Update,
}

/// An operand of an op, for the checks and the trace.
pub enum Operand<'a, B: Backend> {
    /// A tensor.
    Tensor(&'static str, &'a Tensor<B>, Access),
    /// A weight.
    Weight(&'static str, &'a Weight<B>),
}

/// A struct with named operands, whose formula, check, reference and cases live in its one file.
pub trait Op<B: Backend> {
    /// The op's name, the same in core, shaders and kernels.
    const NAME: &'static str;

    /// Refuses operands that do not fit each other. Back ends never check again.
    ///
    /// # Errors
    /// Names the op, the operand, what was expected and what was found.
    fn check(&self) -> Result<()>;

    /// Every operand, in the order of the struct.
    fn operands(&self) -> Vec<Operand<'_, B>>;

    /// Hands the op to its method of the back end.
    ///
    /// # Errors
    /// The back end's.
    fn encode(&self, backend: &B) -> Result<()>;
}

/// An op made of primitive ops, which a back end may override.
pub trait FusedOp<B: Backend> {
    /// The fused op's name.
    const NAME: &'static str;

    /// Refuses operands that do not fit each other, as its primitive ops would.
    ///
    /// # Errors
    /// As [`Op::check`].
    fn check(&self) -> Result<()>;

    /// The primitive ops it stands for, in order; what an override is held to.
    ///
    /// # Errors
    /// Those of the primitive ops.
    fn unfused(&self, step: &Step<'_, B>) -> Result<()>;

    /// Hands the op to its method of the back end.
    ///
    /// # Errors
    /// The back end's.
    fn encode(&self, step: &Step<'_, B>) -> Result<()>;
}

/// A sequence of ops being encoded on a back end.
pub struct Step<'a, B: Backend> {
    backend: &'a B,
    traced: Option<&'a Traced>,
    marked: Option<&'a Marked>,
    fused: bool,
}

impl<'a, B: Backend> Step<'a, B> {
    /// A step on `backend`.
    pub fn new(backend: &'a B) -> Self {
        Self { backend, traced: None, marked: None, fused: true }
    }

    /// A step that also records its ops.
    pub fn traced(backend: &'a B, traced: &'a Traced) -> Self {
        Self { traced: Some(traced), ..Self::new(backend) }
    }

    /// The same step, with the device's clock noted behind every op.
    pub(crate) fn marked(self, marked: &'a Marked) -> Self {
        Self { marked: Some(marked), ..self }
    }

    /// The same step, with fused ops run as the primitive ops they stand for.
    pub fn unfused(self) -> Self {
        Self { fused: false, ..self }
    }

    /// The back end that ops are encoded on.
    pub fn backend(&self) -> &'a B {
        self.backend
    }

    /// Checks, traces and encodes one op.
    ///
    /// # Errors
    /// The operands do not fit, an output aliases another operand, or the back end refuses.
    pub fn run<O: Op<B>>(&self, op: &O) -> Result<()> {
        op.check()?;
        let operands = op.operands();
        check_aliases(O::NAME, &operands)?;
        if let Some(traced) = self.traced {
            traced.record(O::NAME, &operands);
        }
        op.encode(self.backend)?;
        match self.marked {
            Some(marked) => marked.note(self.backend, O::NAME, &operands),
            None => Ok(()),
        }
    }

    /// Encodes a fused op, through the back end's override or its primitive ops.
    ///
    /// # Errors
    /// As [`Step::run`].
    pub fn fused<O: FusedOp<B>>(&self, op: &O) -> Result<()> {
        op.check()?;
        if !self.fused {
            return op.unfused(self);
        }
        let before = self.marked.map(Marked::len);
        op.encode(self)?;
        match self.marked {
            // An override runs no primitive op that would have noted itself.
            Some(marked) if before == Some(marked.len()) => marked.note(self.backend, O::NAME, &[]),
            _ => Ok(()),
        }
    }
}

/// Outputs never share a buffer with another operand; what an op updates in place is one operand.
fn check_aliases<B: Backend>(name: &str, operands: &[Operand<'_, B>]) -> Result<()> {
    for (i, a) in operands.iter().enumerate() {
        let Operand::Tensor(written, target, access) = a else { continue };
        if *access == Access::Read {
            continue;
        }
        for (j, b) in operands.iter().enumerate() {
            if let Operand::Tensor(other, tensor, _) = b
                && i != j
                && B::same(target.buffer(), tensor.buffer())
            {
                let text = format!("{written} and {other} share a buffer, want two");
                return Err(Error::op(name, text));
            }
        }
    }
    Ok(())
}
