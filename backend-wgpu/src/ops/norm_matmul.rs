//! A pre-norm and a product that follows it: one dispatch where rows are few, with the product's function and with a
//! convolution over its columns where the device binds buffers enough.

use super::activation_number;
use super::matmul::{few_row_kernels, unit_of};
use crate::Wgpu;
use crate::call::{Call, in_fours, want_f32};
use crate::kernel::Kernel;
use whipsnake_core::error::Result;
use whipsnake_core::ops::{
    Activate, Activation, CausalConv1d, Matmul, NormMatmul, Product, RmsNorm, Store,
};
use whipsnake_core::step::{FusedOp, Step};
use whipsnake_core::weight::Format;

const SHADER: &str = "norm_matmul";
/// Storage buffers of the kernel with a convolution.
const WITH_CONV: u32 = 12;
/// Widest convolution: the bound of the op.
const WIDEST: u32 = 8;
/// Storage buffers of the kernel with a rider.
const WITH_RIDER: u32 = 9;
/// Storage buffers of the kernel with siblings.
const WITH_SIBLINGS: u32 = 13;

pub(crate) fn kernels() -> Vec<Kernel> {
    let kernels = |format| few_row_kernels(SHADER, format, &[1, 2, 4, 8]);
    let list: Vec<_> = Format::ALL.into_iter().flat_map(kernels).collect();
    let conv = list.iter().map(|kernel| kernel.clone().with("CONV", 4));
    let of_one = |format| few_row_kernels(SHADER, format, &[1]);
    let rider = Format::ALL.into_iter().flat_map(of_one);
    let rider = rider.filter(|kernel| kernel.entry_point() == "subgroup");
    let beside =
        rider.flat_map(|kernel| ["RIDER", "SIBLINGS"].map(|name| kernel.clone().with(name, 1)));
    list.iter().cloned().chain(conv).chain(beside).collect()
}

/// One dispatch a piece of a weight.
pub(super) struct Normed<'o, 'a> {
    pub norm: &'o RmsNorm<Wgpu>,
    pub matmul: &'o Matmul<'a, Wgpu>,
    pub activate: Option<&'o Activate<Wgpu>>,
    pub conv: Option<&'o CausalConv1d<Wgpu>>,
    /// Another product of f32 weights with the same normed row, by workgroups of its own.
    pub rider: Option<&'o Matmul<'a, Wgpu>>,
    /// Two more products of the same rows.
    pub siblings: Option<[&'o Matmul<'a, Wgpu>; 2]>,
    /// Whether the normed rows are left for others.
    pub keep: bool,
}

impl Normed<'_, '_> {
    /// Columns of a unit, where the kernel takes the operands. Without barriers every block of outputs would norm the row
    /// anew.
    pub fn unit(&self, gpu: &Wgpu) -> Option<usize> {
        let plain = self.norm.groups == 1 && self.matmul.store == Store::Replace;
        let plain = plain && !gpu.variants.barrier_free();
        let unit = unit_of(&self.norm.x, self.matmul.weight.format)?;
        (plain && in_fours(&self.norm.weight)).then_some(unit)
    }

    pub fn encode(&self, gpu: &Wgpu, unit: usize) -> Result<()> {
        let Self { norm, matmul, .. } = self;
        let out = self.activate.map_or(&matmul.out, |activate| &activate.out);
        want_f32("norm_matmul", &[&norm.x, &norm.out, out])?;
        let [rows, inputs] = norm.x.shape();
        let function = self.activate.map_or(Activation::Identity, |activate| activate.function);
        let siblings = self.siblings.map(|list| list.map(|matmul| matmul.weight.rows));
        let beside = siblings.map_or(0, |list| list.iter().sum());
        for piece in gpu.pieces(matmul.weight) {
            let format = matmul.weight.format;
            let few = gpu.variants.vec_kernel(SHADER, format, [rows, piece.count + beside]);
            let call = Call::new(few.kernel)
                .whole(piece.data, false)
                .whole(piece.scales, false)
                .input(&norm.x)
                .input(&norm.weight)
                .input_or(matmul.bias.as_ref(), &norm.x)
                .output(out)
                .output(&norm.out);
            let call = self
                .joined(gpu, self.ridden(gpu, self.convolved(call)))
                .sizes([rows, inputs / unit, piece.count, piece.first])
                .sizes([usize::from(matmul.bias.is_some()), activation_number(function)])
                .sizes([usize::from(self.keep)])
                .sizes(self.conv_sizes())
                .sizes([self.rider.map_or(0, |rider| rider.out.cols())])
                .sizes(siblings.unwrap_or_default())
                .floats([norm.eps, matmul.weight.scales[0]])
                .floats(self.siblings.map_or([0.0; 2], |list| list.map(|m| m.weight.scales[0])));
            let riding = self.rider.map_or(0, |rider| rider.out.cols().div_ceil(few.subgroups));
            let joining: usize =
                siblings.iter().flatten().map(|outputs| outputs.div_ceil(few.outputs)).sum();
            gpu.dispatch(call, piece.count.div_ceil(few.outputs) + riding + joining)?;
        }
        Ok(())
    }

    /// Binds the product that rides along.
    fn ridden(&self, gpu: &Wgpu, mut call: Call) -> Call {
        let Some(rider) = self.rider else { return call.sizes([0; 2]) };
        call.kernel = call.kernel.with("RIDER", 1);
        call.whole(gpu.pieces(rider.weight)[0].data, false).output(&rider.out)
    }

    /// Binds the siblings.
    fn joined(&self, gpu: &Wgpu, mut call: Call) -> Call {
        let Some(siblings) = self.siblings else { return call.sizes([0; 4]) };
        call.kernel = call.kernel.with("SIBLINGS", 1);
        siblings.into_iter().fold(call, |call, matmul| {
            let piece = &gpu.pieces(matmul.weight)[0];
            call.whole(piece.data, false).whole(piece.scales, false).output(&matmul.out)
        })
    }

    /// Binds what the convolution needs, or leaves its windows empty.
    fn convolved(&self, mut call: Call) -> Call {
        let Some(conv) = self.conv else { return call.sizes([0; 10]) };
        // At most `WIDEST`.
        call.kernel = call.kernel.with("CONV", conv.weight.cols() as u32);
        call.input(&conv.weight)
            .input_or(conv.bias.as_ref(), &conv.weight)
            .output(&conv.state)
            .input(&conv.segments.places)
            .output(&conv.out)
    }

    /// First column, channels, whether there is a bias, function.
    fn conv_sizes(&self) -> [usize; 4] {
        let Some(conv) = self.conv else { return [0; 4] };
        let first = conv.x.offset() - self.matmul.out.offset();
        let biased = usize::from(conv.bias.is_some());
        [first, conv.x.cols(), biased, activation_number(conv.activation)]
    }
}

/// Whether a convolution can run in the hands of who stores the product: one row a sequence, its columns a part of the
/// product's.
pub(super) fn takes_conv(gpu: &Wgpu, conv: &CausalConv1d<Wgpu>, first: &Matmul<'_, Wgpu>) -> bool {
    let start = conv.x.offset().checked_sub(first.out.offset());
    let inside = start.is_some_and(|start| start + conv.x.cols() <= first.out.cols());
    inside
        && conv.x.stride() == first.out.stride()
        && conv.segments.shape.longest == 1
        && conv.weight.cols() <= WIDEST as usize
        && gpu.limits.max_storage_buffers_per_shader_stage >= WITH_CONV
}

/// Whether a product can ride along with another: f32 weights and one row, on a device of subgroups.
pub(super) fn rides(gpu: &Wgpu, rider: &Product<'_, Wgpu>, with: &Product<'_, Wgpu>) -> bool {
    let Matmul { x, weight, bias, store, .. } = &rider.matmul;
    let single = [weight, with.matmul.weight].iter().all(|weight| gpu.pieces(weight).len() == 1);
    let plain = bias.is_none() && *store == Store::Replace && rider.activate.is_none();
    let able =
        gpu.variants.is_large() && gpu.limits.max_storage_buffers_per_shader_stage >= WITH_RIDER;
    able && plain && single && x.rows() == 1 && weight.format == Format::F32
}

/// The second and the third of three products that run as one: one format, one row, nothing beside the products, on a
/// device of subgroups.
pub(super) fn siblings<'o, 'a>(
    gpu: &Wgpu,
    products: &'o [Product<'a, Wgpu>],
) -> Option<[&'o Matmul<'a, Wgpu>; 2]> {
    let [first, second, third] = products else { return None };
    let format = first.matmul.weight.format;
    let plain = |product: &Product<'_, Wgpu>| {
        let Matmul { x, weight, bias, store, .. } = &product.matmul;
        let single = x.rows() == 1 && weight.format == format && gpu.pieces(weight).len() == 1;
        single && bias.is_none() && *store == Store::Replace && product.activate.is_none()
    };
    let buffers = gpu.limits.max_storage_buffers_per_shader_stage;
    let able = gpu.variants.is_large() && buffers >= WITH_SIBLINGS;
    (able && products.iter().all(plain)).then_some([&second.matmul, &third.matmul])
}

pub(crate) fn encode(step: &Step<'_, Wgpu>, op: &NormMatmul<'_, Wgpu>) -> Result<()> {
    let norm = RmsNorm {
        x: op.x.clone(),
        weight: op.norm.clone(),
        groups: 1,
        eps: op.eps,
        out: op.normed.clone(),
    };
    let matmul = Matmul {
        x: op.normed.clone(),
        weight: op.weight,
        bias: None,
        store: Store::Replace,
        out: op.out.clone(),
    };
    let one = Normed {
        norm: &norm,
        matmul: &matmul,
        activate: None,
        conv: None,
        rider: None,
        siblings: None,
        keep: false,
    };
    let gpu = step.backend();
    match one.unit(gpu) {
        Some(unit) => one.encode(gpu, unit),
        None => op.unfused(step),
    }
}
