//! The ops: one file each, with operands, check, reference and conformance cases.
//!
//! `reference` is the definition that every back end is held to: the plain formula in f32, nothing else.

mod activate;
mod add;
mod argmax;
mod attention;
mod causal_conv1d;
mod check;
mod copy_slot;
mod draw;
mod embed;
mod gated_norm_matmul;
mod gated_rms_norm;
mod kv_append;
mod matmul;
mod moe_combine;
mod moe_down;
mod moe_group;
mod moe_matmul;
mod moe_route;
mod moe_up;
mod norm_matmul;
mod norm_products;
mod rms_norm;
mod rope;
mod scale;
mod select_rows;
mod ssm_scan;
mod top_k;

pub use activate::{Activate, Activation};
pub use add::Add;
pub use argmax::Argmax;
pub use attention::{Attention, KvCache};
pub use causal_conv1d::CausalConv1d;
pub use copy_slot::CopySlot;
pub use draw::{DRAW_WORDS, Draw};
pub use embed::Embed;
pub use gated_norm_matmul::GatedNormMatmul;
pub use gated_rms_norm::{GateOrder, GatedRmsNorm};
pub use kv_append::KvAppend;
pub use matmul::{Matmul, Store};
pub use moe_combine::MoeCombine;
pub use moe_down::MoeDown;
pub use moe_group::{ExpertGroups, MoeGroup};
pub use moe_matmul::{ExpertInput, MoeMatmul};
pub use moe_route::{MoeRoute, RouteRule, Score};
pub use moe_up::MoeUp;
pub use norm_matmul::NormMatmul;
pub use norm_products::{NormProducts, Product};
pub use rms_norm::RmsNorm;
pub use rope::Rope;
pub use scale::Scale;
pub use select_rows::SelectRows;
pub use ssm_scan::SsmScan;
pub use top_k::TopK;

pub(crate) use moe_group::by_expert;
pub(crate) use ssm_scan::softplus;

use crate::backend::Backend;
use crate::conformance::Suite;

/// Hands every op's conformance cases to a suite.
pub(crate) async fn run_cases<B: Backend>(suite: &mut Suite<'_, B>) {
    suite.cases("embed", embed::cases()).await;
    suite.cases("rms_norm", rms_norm::cases()).await;
    suite.cases("gated_rms_norm", gated_rms_norm::cases()).await;
    suite.cases("matmul", matmul::cases()).await;
    suite.cases("causal_conv1d", causal_conv1d::cases()).await;
    suite.cases("ssm_scan", ssm_scan::cases(B::STATES)).await;
    suite.cases("rope", rope::cases()).await;
    suite.cases("kv_append", kv_append::cases()).await;
    suite.cases("attention", attention::cases()).await;
    suite.cases("activate", activate::cases()).await;
    suite.cases("moe_route", moe_route::cases()).await;
    suite.cases("moe_group", moe_group::cases()).await;
    suite.cases("moe_matmul", moe_matmul::cases()).await;
    suite.cases("moe_combine", moe_combine::cases()).await;
    suite.cases("add", add::cases()).await;
    suite.cases("scale", scale::cases()).await;
    suite.cases("select_rows", select_rows::cases()).await;
    suite.cases("argmax", argmax::cases()).await;
    suite.cases("top_k", top_k::cases()).await;
    suite.cases("draw", draw::cases()).await;
    suite.cases("copy_slot", copy_slot::cases()).await;
    suite.cases("norm_matmul", norm_matmul::cases()).await;
    suite.cases("norm_products", norm_products::cases()).await;
    suite.cases("gated_norm_matmul", gated_norm_matmul::cases()).await;
    suite.cases("moe_up", moe_up::cases()).await;
    suite.cases("moe_down", moe_down::cases()).await;
}
