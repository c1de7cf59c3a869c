//! Ops of one row as phases of a program, where they fit: each returns whether it has been added.

use super::common_phase::{AGAIN, Choice, GATED, NORM, Phase, Products, ROWS, UNITS, Unit};
use super::common_phase_products::{Dealing, apart, push, staged_bytes, takes, unit};
use super::moe_route::rule;
use super::moe_up::chooses;
use super::norm_products::{Conv, conv, rest, takes as norm_takes, target};
use super::ssm_scan::Scan;
use super::{StoreArg, function};
use crate::cuda::Cuda;
use crate::view::{in_pieces, narrow, optional, pointer, window};
use bytemuck::Zeroable;
use whipsnake_core::error::Result;
use whipsnake_core::ops::{
    ExpertInput, GateOrder, GatedNormMatmul, Matmul, MoeDown, MoeUp, NormProducts, SsmScan, Store,
};
use whipsnake_core::step::Step;
use whipsnake_core::tensor::{DType, Tensor};
use whipsnake_core::weight::Format;

/// Columns of a normed row, eight for each thread of a block.
const MOST_NORMED: usize = 4096;

fn bf16_pieces(tensor: &Tensor<Cuda>) -> bool {
    tensor.dtype() == DType::BF16 && in_pieces(tensor)
}

/// Products with nothing said but how their rows are staged and where results go.
fn blank(staged: u32, store: Store) -> Products {
    Products { staged, how: StoreArg::from(store), conv: Conv::zeroed(), ..Products::zeroed() }
}

/// The norm that the program's last products began with, where nothing but a choice has followed.
fn last_norm(cuda: &Cuda) -> Option<Products> {
    let program = cuda.program.borrow();
    let mut products = program.phases().iter().rev().filter_map(Phase::as_products);
    products.find(|products| products.staged != AGAIN).filter(|last| last.staged == NORM).copied()
}

pub(super) fn norm_products(
    cuda: &Cuda,
    step: &Step<'_, Cuda>,
    op: &NormProducts<'_, Cuda>,
) -> Result<bool> {
    let norm = &op.norm;
    let fits =
        cuda.gathers() && norm.x.rows() == 1 && norm_takes(op, 16) && op.products.len() <= UNITS;
    let plain = op.products.iter().find(|product| product.matmul.weight.format == Format::F32);
    let spread = plain.is_none_or(|p| p.matmul.weight.rows <= cuda.multiprocessors())
        && norm.x.cols() <= MOST_NORMED;
    let each = op
        .products
        .iter()
        .all(|product| takes(product.matmul.weight) && product.matmul.store == Store::Replace);
    if !fits || !spread || !each {
        return Ok(false);
    }
    let units: Vec<Unit> = op
        .products
        .iter()
        .map(|product| {
            let (out, activation) = target(product);
            Unit {
                bias: optional(product.matmul.bias.as_ref()),
                out: window(out),
                function: activation,
                ..unit(product.matmul.weight)
            }
        })
        .collect();
    let fused_conv = op
        .conv
        .as_ref()
        .filter(|conv| cuda.program.borrow_mut().takes(&conv.segments))
        .and_then(|op_conv| conv(op_conv, &op.products[0].matmul));
    let products = Products {
        keep: u32::from(op.keep),
        eps: norm.eps,
        x: window(&norm.x),
        normed: window(&norm.out),
        gain: pointer(&norm.weight),
        conv: fused_conv.unwrap_or_else(Conv::zeroed),
        ..blank(NORM, Store::Replace)
    };
    let Some(dealt) =
        (Dealing { products, units: &units, copies: 1, again: None, free: 0 }).deal(cuda)
    else {
        return Ok(false);
    };
    if plain.is_some() && dealt.conv.channels == 0 {
        let [first, others] = apart(dealt);
        push(cuda, true, first);
        push(cuda, false, others);
    } else {
        push(cuda, true, dealt);
    }
    rest(step, op, fused_conv)
}

pub(super) fn gated_norm_matmul(cuda: &Cuda, op: &GatedNormMatmul<'_, Cuda>) -> bool {
    let (norm, matmul) = (&op.norm, &op.matmul);
    let size = norm.y.cols() / norm.groups;
    let whole = size.is_multiple_of(16);
    let fits = cuda.gathers()
        && norm.y.rows() == 1
        && whole
        && bf16_pieces(&norm.y)
        && bf16_pieces(&norm.z);
    if !fits || !takes(matmul.weight) {
        return false;
    }
    let products = Products {
        eps: norm.eps,
        norm_groups: narrow(norm.groups),
        gate_first: u32::from(norm.order == GateOrder::GateThenNorm),
        x: window(&norm.y),
        z: window(&norm.z),
        gain: pointer(&norm.weight),
        ..blank(GATED, matmul.store)
    };
    one_product(cuda, products, matmul)
}

pub(super) fn matmul(cuda: &Cuda, op: &Matmul<'_, Cuda>) -> bool {
    let fits = cuda.gathers() && op.x.rows() == 1 && bf16_pieces(&op.x);
    fits && takes(op.weight)
        && one_product(cuda, Products { x: window(&op.x), ..blank(ROWS, op.store) }, op)
}

fn one_unit(matmul: &Matmul<'_, Cuda>) -> Unit {
    Unit { bias: optional(matmul.bias.as_ref()), out: window(&matmul.out), ..unit(matmul.weight) }
}

fn one_product(cuda: &Cuda, products: Products, matmul: &Matmul<'_, Cuda>) -> bool {
    let units = [one_unit(matmul)];
    let dealt = Dealing { products, units: &units, copies: 1, again: None, free: 0 }.deal(cuda);
    dealt.is_some_and(|dealt| {
        push(cuda, true, dealt);
        true
    })
}

pub(super) fn ssm_scan(cuda: &Cuda, op: &SsmScan<Cuda>, scan: Scan) -> bool {
    let typed = [&op.x, &op.b, &op.c, &op.dt, &op.out].iter().all(|t| t.dtype() == DType::BF16);
    let one_row =
        op.x.rows() == 1 && op.segments.shape.segments == 1 && op.segments.shape.longest == 1;
    let size = op.state_size <= 128 && op.state_size.is_multiple_of(4) && in_pieces(&op.state);
    let follows = !cuda.program.borrow().phases().is_empty();
    let fits = cuda.gathers() && typed && one_row && size && follows;
    let fits = fits && cuda.program.borrow_mut().takes(&op.segments);
    if fits {
        cuda.program.borrow_mut().push(Phase::scan(scan));
    }
    fits
}

pub(super) fn moe_up(cuda: &Cuda, op: &MoeUp<'_, Cuda>) -> bool {
    let (route, up) = (&op.route, &op.up);
    let chooses = chooses(route) && route.logits.dtype() == DType::F32;
    let one_row = route.logits.rows() == 1 && up.groups.is_none() && up.input == ExpertInput::Row;
    let fits = cuda.gathers() && chooses && one_row && takes(up.weight) && bf16_pieces(&up.x);
    if !fits || up.weight.format == Format::F32 {
        return false;
    }
    let units = [Unit {
        out: window(&up.out),
        function: function(up.activation),
        chosen: 1,
        ..unit(up.weight)
    }];
    let copies = route.rule.top_k;
    let rows = |staged| Products { x: window(&up.x), ..blank(staged, Store::Replace) };
    let x = pointer(&up.x);
    let norm = last_norm(cuda).filter(|norm| norm.keep != 0 && norm.normed.data == x);
    let mut dealt = None;
    if let Some(norm) = &norm {
        let free = norm.x_place + staged_bytes(norm);
        dealt = Dealing { products: rows(AGAIN), units: &units, copies, again: Some(norm), free }
            .deal(cuda);
    }
    if dealt.is_none() {
        dealt = Dealing { products: rows(ROWS), units: &units, copies, again: None, free: 0 }
            .deal(cuda);
    }
    let Some(dealt) = dealt else { return false };
    let choice = Choice {
        logits: window(&route.logits),
        bias: optional(route.bias.as_ref()),
        ids: window(&route.ids),
        weights: window(&route.weights),
        rule: rule(&route.rule),
        unused: 0,
    };
    cuda.program.borrow_mut().push(Phase::choice(choice));
    push(cuda, false, dealt);
    true
}

/// Adds the experts' second product with the shared one's behind it.
pub(super) fn moe_down(cuda: &Cuda, op: &MoeDown<'_, Cuda>) -> bool {
    let (down, combine) = (&op.down, &op.combine);
    let one_row =
        combine.out.rows() == 1 && down.groups.is_none() && down.input == ExpertInput::Pair;
    let fits = cuda.gathers() && one_row && takes(down.weight) && bf16_pieces(&down.x);
    let follows = match cuda.program.borrow().phases() {
        [.., choice, up] => {
            up.chosen() && choice.as_choice().is_some_and(|c| c.ids.data == window(&down.ids).data)
        }
        _ => false,
    };
    if !fits || !follows || down.weight.format == Format::F32 {
        return false;
    }
    let mut units = vec![Unit { out: window(&combine.out), chosen: 1, ..unit(down.weight) }];
    let mut products = Products { chained: 1, x: window(&down.x), ..blank(ROWS, combine.store) };
    if let Some(shared) = &op.shared {
        // Both go to one place, in one way; what is added first would have to be there.
        let adds = matches!(combine.store, Store::Accumulate { .. });
        let same = adds && shared.store == combine.store && shared.bias.is_none();
        let out = window(&shared.out).data == window(&combine.out).data;
        if !same || !out || !bf16_pieces(&shared.x) || !takes(shared.weight) {
            return false;
        }
        products.z = window(&shared.x);
        units.push(one_unit(shared));
    }
    let dealing =
        Dealing { products, units: &units, copies: down.ids.cols(), again: None, free: 0 };
    let Some(dealt) = dealing.deal(cuda) else { return false };
    push(cuda, true, dealt);
    true
}
