//! The phases of a program: twins of the structs in `kernels/common_program.cuh`.

use super::StoreArg;
use super::moe_route::Rule;
use super::norm_products::Conv;
use super::ssm_scan::Scan;
use crate::view::{Bank, Window, format_number};
use bytemuck::{Pod, Zeroable};
use whipsnake_core::weight::Format;

/// What products meet: `Staged` of the kernels.
pub(super) const NORM: u32 = 0;
pub(super) const GATED: u32 = 1;
pub(super) const ROWS: u32 = 2;
pub(crate) const AGAIN: u32 = 3;

/// Kinds of phases.
pub(crate) const PRODUCTS: u32 = 0;
pub(crate) const CHOICE: u32 = 1;
pub(crate) const SCAN: u32 = 2;

/// Formats of a bank.
pub(super) const BANK_F32: u32 = format_number(Format::F32);
pub(super) const BANK_BF16: u32 = format_number(Format::BF16);
pub(super) const BANK_NVFP4: u32 = format_number(Format::Nvfp4);

/// Units of one phase of products.
pub(super) const UNITS: usize = 4;

/// Products with matrices that lie one after the other.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Unit {
    pub weight: Bank,
    pub bias: u64,
    pub out: Window,
    pub function: u32,
    pub tiles: u32,
    pub end: u32,
    pub chosen: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Products {
    pub staged: u32,
    pub format: u32,
    pub chained: u32,
    pub share: u32,
    pub extra: u32,
    pub length: u32,
    pub steps: u32,
    pub x_place: u32,
    pub sums_place: u32,
    pub extra_place: u32,
    pub plain: u32,
    pub keep: u32,
    pub eps: f32,
    pub norm_groups: u32,
    pub gate_first: u32,
    pub how: StoreArg,
    pub unused: u32,
    pub x: Window,
    pub z: Window,
    pub normed: Window,
    pub gain: u64,
    pub conv: Conv,
    pub unit: [Unit; UNITS],
}

impl Products {
    /// Whether they meet what products before them have staged.
    pub fn again(&self) -> bool {
        self.staged == AGAIN
    }

    /// Whether weights are NVFP4.
    pub fn integers(&self) -> bool {
        self.format == BANK_NVFP4
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Choice {
    pub logits: Window,
    pub bias: u64,
    pub ids: Window,
    pub weights: Window,
    pub rule: Rule,
    pub unused: u32,
}

/// 8-byte words of the largest body.
const BODY: usize = size_of::<Products>() / 8;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Phase {
    pub kind: u32,
    pub meet: u32,
    pub arrive: u32,
    pub lead: u32,
    body: [u64; BODY],
}

impl Phase {
    fn new<T: Pod>(kind: u32, meet: bool, value: T) -> Self {
        let mut phase = Self { kind, meet: u32::from(meet), ..Self::zeroed() };
        let bytes = bytemuck::bytes_of(&value);
        bytemuck::cast_slice_mut::<u64, u8>(&mut phase.body)[..bytes.len()].copy_from_slice(bytes);
        phase
    }

    /// Products, which blocks begin once they have met or, where they read nothing that the phases since then wrote, at once.
    pub fn products(meet: bool, products: Products) -> Self {
        Self::new(PRODUCTS, meet, products)
    }

    pub fn choice(choice: Choice) -> Self {
        Self::new(CHOICE, true, choice)
    }

    pub fn scan(scan: Scan) -> Self {
        Self::new(SCAN, true, scan)
    }

    /// What it says, where it has products.
    pub fn as_products(&self) -> Option<&Products> {
        (self.kind == PRODUCTS).then(|| bytemuck::from_bytes(bytemuck::cast_slice(&self.body)))
    }

    /// What it says, where it is a choice of experts.
    pub fn as_choice(&self) -> Option<&Choice> {
        let words = size_of::<Choice>() / 8;
        (self.kind == CHOICE)
            .then(|| bytemuck::from_bytes(bytemuck::cast_slice(&self.body[..words])))
    }

    /// Whether its weights are told by a choice.
    pub fn chosen(&self) -> bool {
        self.as_products().is_some_and(|products| products.unit.iter().any(|unit| unit.chosen != 0))
    }
}
