//! One dispatch: a kernel, the windows that it is bound to, its parameters.

use crate::Wgpu;
use crate::buffer::{ALIGNMENT, Buffer};
use crate::kernel::Kernel;
use whipsnake_core::error::{Error, Result};
use whipsnake_core::tensor::{DType, Tensor};

/// A part of a buffer as a shader sees it.
#[derive(Clone)]
pub(crate) struct Binding {
    pub buffer: Buffer,
    pub offset: u64,
    pub bytes: u64,
    pub writes: bool,
}

/// A dispatch being put together. Every bound window puts `(offset, stride)` in elements at the front of the
/// parameters, in the order of the bindings; scalars follow.
pub(crate) struct Call {
    pub kernel: Kernel,
    pub bindings: Vec<Binding>,
    pub params: Vec<u32>,
    refusal: Option<Error>,
}

impl Call {
    pub fn new(kernel: Kernel) -> Self {
        Self { kernel, bindings: Vec::new(), params: Vec::new(), refusal: None }
    }

    /// Binds a window that is only read.
    #[must_use]
    pub fn input(self, tensor: &Tensor<Wgpu>) -> Self {
        self.window(tensor, false)
    }

    /// Binds a window that is written.
    #[must_use]
    pub fn output(self, tensor: &Tensor<Wgpu>) -> Self {
        self.window(tensor, true)
    }

    /// Binds a window where there is one, else `stand_in`, which the kernel then leaves alone.
    #[must_use]
    pub fn input_or(self, tensor: Option<&Tensor<Wgpu>>, stand_in: &Tensor<Wgpu>) -> Self {
        self.input(tensor.unwrap_or(stand_in))
    }

    /// Binds a whole buffer, without a window in the parameters.
    #[must_use]
    pub fn whole(mut self, buffer: &Buffer, writes: bool) -> Self {
        let bytes = buffer.bytes();
        self.bindings.push(Binding { buffer: buffer.clone(), offset: 0, bytes, writes });
        self
    }

    /// Appends integers to the parameters.
    #[must_use]
    pub fn sizes<const N: usize>(mut self, values: [usize; N]) -> Self {
        for value in values {
            match u32::try_from(value) {
                Ok(value) => self.params.push(value),
                Err(_) => {
                    self.refuse(format!("{value} is past the 32-bit range of a shader"));
                }
            }
        }
        self
    }

    /// Appends floats to the parameters.
    #[must_use]
    pub fn floats<const N: usize>(mut self, values: [f32; N]) -> Self {
        self.params.extend(values.map(f32::to_bits));
        self
    }

    /// The finished call.
    pub fn finish(self) -> Result<Self> {
        match self.refusal {
            Some(error) => Err(error.within(&self.kernel)),
            None => Ok(self),
        }
    }

    fn refuse(&mut self, text: String) {
        self.refusal.get_or_insert_with(|| Error::device(text));
    }

    fn window(mut self, tensor: &Tensor<Wgpu>, writes: bool) -> Self {
        let start = tensor.offset_bytes() as u64;
        let offset = start / ALIGNMENT * ALIGNMENT;
        let residue = start - offset;
        let span = (residue + tensor.span_bytes() as u64).next_multiple_of(4).max(4);
        let buffer = tensor.buffer().clone();
        self.bindings.push(Binding { buffer, offset, bytes: span, writes });
        let size = tensor.dtype().bytes();
        // The residue is below 256.
        self.sizes([residue as usize / size, tensor.stride()])
    }
}

/// Elements before the window in its binding; see [`Call`].
pub(crate) fn residue(tensor: &Tensor<Wgpu>) -> usize {
    tensor.offset_bytes() % ALIGNMENT as usize / tensor.dtype().bytes()
}

/// Whether a shader may read the window's rows four f32 at a time.
pub(crate) fn in_fours(tensor: &Tensor<Wgpu>) -> bool {
    residue(tensor).is_multiple_of(4) && (tensor.rows() <= 1 || tensor.stride().is_multiple_of(4))
}

/// Refuses operands that are not f32: the policy of this back end.
pub(crate) fn want_f32(op: &str, tensors: &[&Tensor<Wgpu>]) -> Result<()> {
    match tensors.iter().find(|t| t.dtype() != DType::F32) {
        None => Ok(()),
        Some(t) => Err(Error::op(
            op,
            format!("the wgpu back end keeps activations in f32, found {}", t.dtype()),
        )),
    }
}
