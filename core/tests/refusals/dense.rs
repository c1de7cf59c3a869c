//! Ops on rows alone.

use super::*;

#[test]
fn embed() {
    let table = bank(1, 10, 4);
    let op = || Embed { tokens: u(3, 1), table: &table, scale: 1.0, out: t(3, 4) };
    refused(
        Embed { tokens: u(2, 1), ..op() },
        "embed: tokens is [2, 1], want [3, 1] (rows of out, 1)",
    );
    refused(Embed { tokens: t(3, 1), ..op() }, "embed: tokens is f32, want u32");
    refused(Embed { out: t(3, 5), ..op() }, "embed: out is [3, 5], want [3, 4] (rows, hidden)");
    refused(Embed { out: of(DType::BF16, 3, 4), ..op() }, "embed: out is bf16, want f32");
    let banked = bank(2, 10, 4);
    let text = "embed: table w is [2, 10, 4], want [1, 10, 4] (1, vocabulary, hidden)";
    refused(Embed { table: &banked, ..op() }, text);
}

#[test]
fn rms_norm() {
    let op = || RmsNorm { x: t(3, 8), weight: t(1, 8), groups: 2, eps: 1e-5, out: t(3, 8) };
    refused(RmsNorm { x: u(3, 8), ..op() }, "rms_norm: x is u32, want f32 or bf16 or f16");
    refused(
        RmsNorm { weight: t(1, 4), ..op() },
        "rms_norm: weight is [1, 4], want [1, 8] (1, cols of x)",
    );
    refused(
        RmsNorm { weight: of(DType::BF16, 1, 8), ..op() },
        "rms_norm: weight is bf16, want f32",
    );
    refused(RmsNorm { out: t(2, 8), ..op() }, "rms_norm: out is [2, 8], want [3, 8] (shape of x)");
    refused(RmsNorm { groups: 3, ..op() }, "rms_norm: 3 groups do not divide 8 columns");
    refused(RmsNorm { groups: 0, ..op() }, "rms_norm: 0 groups do not divide 8 columns");
    let x = t(3, 8);
    refused(
        RmsNorm { x: x.clone(), out: x, ..op() },
        "rms_norm: out and x share a buffer, want two",
    );
}

#[test]
fn gated_rms_norm() {
    let order = GateOrder::GateThenNorm;
    let op = || GatedRmsNorm {
        y: t(3, 8),
        z: t(3, 8),
        weight: t(1, 8),
        groups: 2,
        eps: 0.0,
        order,
        out: t(3, 8),
    };
    refused(
        GatedRmsNorm { y: u(3, 8), ..op() },
        "gated_rms_norm: y is u32, want f32 or bf16 or f16",
    );
    refused(
        GatedRmsNorm { z: t(3, 4), ..op() },
        "gated_rms_norm: z is [3, 4], want [3, 8] (shape of y)",
    );
    refused(
        GatedRmsNorm { weight: t(8, 1), ..op() },
        "gated_rms_norm: weight is [8, 1], want [1, 8] (1, cols of y)",
    );
    refused(
        GatedRmsNorm { out: t(3, 9), ..op() },
        "gated_rms_norm: out is [3, 9], want [3, 8] (shape of y)",
    );
    refused(GatedRmsNorm { groups: 5, ..op() }, "gated_rms_norm: 5 groups do not divide 8 columns");
    let z = t(3, 8);
    refused(
        GatedRmsNorm { z: z.clone(), out: z, ..op() },
        "gated_rms_norm: out and z share a buffer, want two",
    );
}

#[test]
fn matmul() {
    let weight = bank(1, 5, 8);
    let op =
        || Matmul { x: t(3, 8), weight: &weight, bias: None, store: Store::Replace, out: t(3, 5) };
    refused(Matmul { x: u(3, 8), ..op() }, "matmul: x is u32, want f32 or bf16 or f16");
    refused(
        Matmul { x: t(3, 7), ..op() },
        "matmul: weight w is [1, 5, 8], want [1, 5, 7] (1, cols of out, cols of x)",
    );
    refused(
        Matmul { out: t(3, 6), ..op() },
        "matmul: weight w is [1, 5, 8], want [1, 6, 8] (1, cols of out, cols of x)",
    );
    refused(
        Matmul { bias: Some(t(1, 8)), ..op() },
        "matmul: bias is [1, 8], want [1, 5] (1, outputs)",
    );
    refused(
        Matmul { out: t(2, 5), ..op() },
        "matmul: out is [2, 5], want [3, 5] (rows of x, outputs)",
    );
    let banked = bank(2, 5, 8);
    refused(
        Matmul { weight: &banked, ..op() },
        "matmul: weight w is [2, 5, 8], want [1, 5, 8] (1, cols of out, cols of x)",
    );
    let out = t(3, 16);
    let (x, out) = (out.columns(0, 8), out.columns(8, 5));
    refused(Matmul { x, out, ..op() }, "matmul: out and x share a buffer, want two");
}

#[test]
fn norm_matmul() {
    let weight = bank(1, 5, 8);
    let op = || NormMatmul {
        x: t(3, 8),
        norm: t(1, 8),
        eps: 1e-5,
        normed: t(3, 8),
        weight: &weight,
        out: t(3, 5),
    };
    refused_fused(
        NormMatmul { norm: t(1, 7), ..op() },
        "rms_norm: weight is [1, 7], want [1, 8] (1, cols of x)",
    );
    refused_fused(
        NormMatmul { normed: t(2, 8), ..op() },
        "rms_norm: out is [2, 8], want [3, 8] (shape of x)",
    );
    let text = "matmul: weight w is [1, 5, 8], want [1, 6, 8] (1, cols of out, cols of x)";
    refused_fused(NormMatmul { out: t(3, 6), ..op() }, text);
}

#[test]
fn activate() {
    let function = Activation::Silu;
    let op = || Activate { function, x: t(3, 8), gate: Some(t(3, 8)), out: t(3, 8) };
    refused(
        Activate { x: of(DType::F8E4M3, 3, 8), ..op() },
        "activate: x is f8e4m3, want f32 or bf16 or f16",
    );
    refused(
        Activate { gate: Some(t(3, 4)), ..op() },
        "activate: gate is [3, 4], want [3, 8] (shape of x)",
    );
    refused(Activate { out: t(8, 3), ..op() }, "activate: out is [8, 3], want [3, 8] (shape of x)");
    let x = t(3, 8);
    refused(
        Activate { x: x.clone(), out: x, ..op() },
        "activate: out and x share a buffer, want two",
    );
}

#[test]
fn pointwise_in_place() {
    let add = || Add { x: t(3, 8), scale: 1.0, out: t(3, 8) };
    refused(Add { x: u(3, 8), ..add() }, "add: x is u32, want f32 or bf16 or f16");
    refused(Add { out: t(3, 7), ..add() }, "add: out is [3, 7], want [3, 8] (shape of x)");
    let x = t(3, 8);
    refused(Add { x: x.clone(), out: x, ..add() }, "add: out and x share a buffer, want two");
    refused(Scale { x: u(3, 8), factor: 2.0 }, "scale: x is u32, want f32 or bf16 or f16");
}

#[test]
fn select_rows() {
    let op = || SelectRows { x: t(3, 8), indices: u(2, 1), out: t(2, 8) };
    refused(
        SelectRows { indices: u(2, 2), ..op() },
        "select_rows: indices is [2, 2], want [2, 1] (count, 1)",
    );
    refused(SelectRows { indices: t(2, 1), ..op() }, "select_rows: indices is f32, want u32");
    refused(
        SelectRows { out: t(3, 8), ..op() },
        "select_rows: out is [3, 8], want [2, 8] (count, cols of x)",
    );
}

#[test]
fn choices_of_tokens() {
    let argmax = || Argmax { x: t(3, 8), out: u(3, 1) };
    refused(Argmax { x: of(DType::BF16, 3, 8), ..argmax() }, "argmax: x is bf16, want f32");
    refused(Argmax { x: t(3, 0), ..argmax() }, "argmax: x has no columns");
    refused(
        Argmax { out: u(3, 2), ..argmax() },
        "argmax: out is [3, 2], want [3, 1] (rows of x, 1)",
    );
    let top_k = || TopK { x: t(3, 8), values: t(3, 4), indices: u(3, 4) };
    refused(TopK { x: u(3, 8), ..top_k() }, "top_k: x is u32, want f32");
    let text = "top_k: k is 9, want 1 to 8 (columns of x, at most 1024)";
    refused(TopK { values: t(3, 9), ..top_k() }, text);
    let text = "top_k: k is 1025, want 1 to 1024 (columns of x, at most 1024)";
    refused(TopK { x: t(1, 2000), values: t(1, 1025), ..top_k() }, text);
    refused(
        TopK { values: t(2, 4), ..top_k() },
        "top_k: values is [2, 4], want [3, 4] (rows of x, k)",
    );
    refused(
        TopK { indices: u(3, 5), ..top_k() },
        "top_k: indices is [3, 5], want [3, 4] (rows of x, k)",
    );
    let draw = || Draw { x: t(3, 8), columns: Some(u(3, 8)), rows: u(3, 8), out: u(3, 1) };
    refused(Draw { x: t(3, 0), ..draw() }, "draw: x has no columns");
    refused(
        Draw { columns: Some(u(3, 7)), ..draw() },
        "draw: columns is [3, 7], want [3, 8] (rows of x, cols of x)",
    );
    refused(
        Draw { x: t(3, 1025), columns: Some(u(3, 1025)), ..draw() },
        "draw: 1025 candidates, want at most 1024",
    );
    refused(Draw { rows: u(2, 8), ..draw() }, "draw: rows is [2, 8], want [3, 8] (rows of x, 8)");
    refused(Draw { out: t(3, 1), ..draw() }, "draw: out is f32, want u32");
}
