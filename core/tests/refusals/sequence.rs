//! Ops on sequences and their slots.

use super::*;

#[test]
fn causal_conv1d() {
    let op = || CausalConv1d {
        x: t(3, 6),
        weight: t(6, 4),
        bias: Some(t(1, 6)),
        activation: Activation::Silu,
        state: t(12, 3),
        segments: tables(3),
        out: t(3, 6),
    };
    refused(
        CausalConv1d { weight: t(5, 4), ..op() },
        "causal_conv1d: weight is [5, 4], want [6, 4] (channels, width)",
    );
    refused(CausalConv1d { weight: t(6, 9), ..op() }, "causal_conv1d: width is 9, want 2 to 8");
    refused(CausalConv1d { weight: t(6, 1), ..op() }, "causal_conv1d: width is 1, want 2 to 8");
    refused(
        CausalConv1d { bias: Some(t(1, 5)), ..op() },
        "causal_conv1d: bias is [1, 5], want [1, 6] (1, channels)",
    );
    let state = "want [12, 3] (slots * channels, width - 1)";
    refused(
        CausalConv1d { state: t(13, 3), ..op() },
        &format!("causal_conv1d: state is [13, 3], {state}"),
    );
    refused(
        CausalConv1d { state: t(12, 4), ..op() },
        &format!("causal_conv1d: state is [12, 4], {state}"),
    );
    refused(
        CausalConv1d { state: of(DType::BF16, 12, 3), ..op() },
        "causal_conv1d: state is bf16, want f32",
    );
    let places = "want [3, 4] (rows of x, slot position segment index)";
    refused(
        CausalConv1d { segments: tables(2), ..op() },
        &format!("causal_conv1d: segments.places is [2, 4], {places}"),
    );
    let segments = Segments { table: u(3, 4), ..tables(3) };
    let text =
        "causal_conv1d: segments.table is [3, 4], want [2, 4] (segments, row len slot position)";
    refused(CausalConv1d { segments, ..op() }, text);
    refused(
        CausalConv1d { out: t(3, 5), ..op() },
        "causal_conv1d: out is [3, 5], want [3, 6] (shape of x)",
    );
    let x = t(3, 6);
    refused(
        CausalConv1d { x: x.clone(), out: x, ..op() },
        "causal_conv1d: out and x share a buffer, want two",
    );
}

#[test]
fn ssm_scan() {
    // Four heads of 2, state 5, two groups.
    let op = || SsmScan {
        x: t(3, 8),
        b: t(3, 10),
        c: t(3, 10),
        dt: t(3, 4),
        head_params: t(3, 4),
        dt_limit: [0.0, f32::INFINITY],
        head_dim: 2,
        state_size: 5,
        state: t(16, 5),
        segments: tables(3),
        out: t(3, 8),
    };
    refused(SsmScan { state_size: 0, ..op() }, "ssm_scan: state size is 0, want 1 to 1024");
    refused(SsmScan { state_size: 1025, ..op() }, "ssm_scan: state size is 1025, want 1 to 1024");
    refused(SsmScan { head_dim: 257, ..op() }, "ssm_scan: head_dim is 257, want 1 to 256");
    refused(SsmScan { b: t(3, 15), ..op() }, "ssm_scan: 3 groups do not divide 4 heads");
    refused(
        SsmScan { x: t(3, 9), ..op() },
        "ssm_scan: x is [3, 9], want [3, 8] (rows, heads * head_dim)",
    );
    refused(
        SsmScan { b: t(3, 11), ..op() },
        "ssm_scan: b is [3, 11], want [3, 10] (rows of x, groups * state)",
    );
    refused(
        SsmScan { c: t(3, 5), ..op() },
        "ssm_scan: c is [3, 5], want [3, 10] (rows of x, groups * state)",
    );
    refused(
        SsmScan { dt: t(2, 4), ..op() },
        "ssm_scan: dt is [2, 4], want [3, 4] (rows of x, heads)",
    );
    refused(
        SsmScan { head_params: t(2, 4), ..op() },
        "ssm_scan: head_params is [2, 4], want [3, 4] (A_log D dt_bias, heads)",
    );
    refused(
        SsmScan { state: t(17, 5), ..op() },
        "ssm_scan: state is [17, 5], want [16, 5] (slots * heads * head_dim, state)",
    );
    refused(
        SsmScan { state: of(DType::F16, 16, 5), ..op() },
        "ssm_scan: state is f16, want f32 or bf16",
    );
    let text =
        "ssm_scan: segments.places is [4, 4], want [3, 4] (rows of x, slot position segment index)";
    refused(SsmScan { segments: tables(4), ..op() }, text);
    refused(SsmScan { out: t(3, 4), ..op() }, "ssm_scan: out is [3, 4], want [3, 8] (shape of x)");
    let x = t(3, 8);
    refused(
        SsmScan { x: x.clone(), out: x, ..op() },
        "ssm_scan: out and x share a buffer, want two",
    );
}

#[test]
fn rope() {
    let op = || Rope { x: t(3, 16), inv_freq: t(1, 4), head_dim: 8, segments: tables(3) };
    refused(Rope { x: u(3, 16), ..op() }, "rope: x is u32, want f32 or bf16 or f16");
    refused(
        Rope { inv_freq: t(2, 4), ..op() },
        "rope: inv_freq is [2, 4], want [1, 4] (1, rotated pairs)",
    );
    refused(Rope { head_dim: 7, ..op() }, "rope: head_dim 7 does not divide 16 columns");
    refused(Rope { head_dim: 0, ..op() }, "rope: head_dim 0 does not divide 16 columns");
    refused(Rope { inv_freq: t(1, 5), ..op() }, "rope: 5 pairs do not fit a head of 8");
    let text =
        "rope: segments.places is [2, 4], want [3, 4] (rows of x, slot position segment index)";
    refused(Rope { segments: tables(2), ..op() }, text);
}

fn cache(rows: usize, cols: usize) -> KvCache<Cpu> {
    KvCache { k: t(rows, cols), v: t(rows, cols), context: 8 }
}

#[test]
fn kv_append() {
    let op = || KvAppend { k: t(3, 6), v: t(3, 6), cache: cache(16, 6), segments: tables(3) };
    let meaning = "(slots * context, kv_heads * head_dim)";
    refused(KvAppend { v: t(3, 5), ..op() }, "kv_append: v is [3, 5], want [3, 6] (shape of k)");
    refused(
        KvAppend { cache: cache(17, 6), ..op() },
        &format!("kv_append: cache.k is [17, 6], want [16, 6] {meaning}"),
    );
    refused(
        KvAppend { cache: cache(16, 7), ..op() },
        &format!("kv_append: cache.k is [16, 7], want [16, 6] {meaning}"),
    );
    let short = KvCache { v: t(8, 6), ..cache(16, 6) };
    refused(
        KvAppend { cache: short, ..op() },
        &format!("kv_append: cache.v is [8, 6], want [16, 6] {meaning}"),
    );
    let table = KvCache { k: u(16, 6), ..cache(16, 6) };
    refused(
        KvAppend { cache: table, ..op() },
        "kv_append: cache.k is u32, want f32 or bf16 or f16 or f8e4m3",
    );
    let text = "kv_append: segments.places is [4, 4], want [3, 4] (rows of x, slot position segment index)";
    refused(KvAppend { segments: tables(4), ..op() }, text);
    let one = t(16, 6);
    let shared = KvCache { k: one.clone(), v: one, context: 8 };
    refused(
        KvAppend { cache: shared, ..op() },
        "kv_append: cache.k and cache.v share a buffer, want two",
    );
}

#[test]
fn attention() {
    // Four query heads of 3 over two.
    let op = || Attention {
        q: t(3, 12),
        cache: cache(16, 6),
        head_dim: 3,
        scale: 1.0,
        segments: tables(3),
        out: t(3, 12),
    };
    refused(Attention { head_dim: 0, ..op() }, "attention: head_dim is 0, want 1 to 256");
    refused(Attention { head_dim: 300, ..op() }, "attention: head_dim is 300, want 1 to 256");
    refused(
        Attention { cache: cache(16, 9), ..op() },
        "attention: 3 kv heads do not divide 4 heads",
    );
    refused(
        Attention { cache: cache(16, 2), ..op() },
        "attention: 0 kv heads do not divide 4 heads",
    );
    refused(
        Attention { q: t(3, 13), ..op() },
        "attention: q is [3, 13], want [3, 12] (rows, heads * head_dim)",
    );
    let text = "attention: cache.k is [16, 7], want [16, 6] (slots * context, kv_heads * head_dim)";
    refused(Attention { cache: cache(16, 7), ..op() }, text);
    let text = "attention: segments.places is [2, 4], want [3, 4] (rows of x, slot position segment index)";
    refused(Attention { segments: tables(2), ..op() }, text);
    refused(
        Attention { out: t(3, 6), ..op() },
        "attention: out is [3, 6], want [3, 12] (shape of q)",
    );
    let q = t(3, 12);
    refused(
        Attention { q: q.clone(), out: q, ..op() },
        "attention: out and q share a buffer, want two",
    );
}

#[test]
fn copy_slot() {
    let op = || CopySlot { state: t(12, 5), rows_per_slot: 4, rows: 4, from: 0, to: 2 };
    refused(
        CopySlot { rows_per_slot: 5, ..op() },
        "copy_slot: 5 rows a slot do not divide 12 rows",
    );
    refused(
        CopySlot { rows_per_slot: 0, ..op() },
        "copy_slot: 0 rows a slot do not divide 12 rows",
    );
    refused(CopySlot { rows: 5, ..op() }, "copy_slot: rows is 5, want at most 4 (rows of a slot)");
    refused(CopySlot { from: 3, ..op() }, "copy_slot: from is slot 3, want below 3");
    refused(CopySlot { to: 7, ..op() }, "copy_slot: to is slot 7, want below 3");
    refused(CopySlot { from: 2, ..op() }, "copy_slot: from and to are both slot 2");
}
