//! Ops of mixtures of experts.

use super::*;

#[test]
fn moe_route() {
    let rule = RouteRule {
        score: Score::Sigmoid,
        top_k: 2,
        groups: 4,
        top_groups: 2,
        normalise: None,
        scale: 1.0,
    };
    let op = || MoeRoute { logits: t(3, 8), bias: None, rule, ids: u(3, 2), weights: t(3, 2) };
    let ruled = |rule: RouteRule| MoeRoute {
        rule,
        ids: u(3, rule.top_k),
        weights: t(3, rule.top_k),
        ..op()
    };
    refused(
        MoeRoute { logits: of(DType::BF16, 3, 8), ..op() },
        "moe_route: logits is bf16, want f32",
    );
    refused(
        MoeRoute { bias: Some(t(1, 7)), ..op() },
        "moe_route: bias is [1, 7], want [1, 8] (1, experts)",
    );
    refused(
        MoeRoute { ids: u(3, 3), ..op() },
        "moe_route: ids is [3, 3], want [3, 2] (rows, top_k)",
    );
    refused(
        MoeRoute { weights: t(2, 2), ..op() },
        "moe_route: weights is [2, 2], want [3, 2] (rows, top_k)",
    );
    refused(ruled(RouteRule { groups: 3, ..rule }), "moe_route: 3 groups do not divide 8 experts");
    refused(ruled(RouteRule { groups: 0, ..rule }), "moe_route: 0 groups do not divide 8 experts");
    refused(ruled(RouteRule { top_groups: 5, ..rule }), "moe_route: top_groups is 5, want 1 to 4");
    let text = "moe_route: top_k is 5, want 1 to 4 (experts of the groups that stay)";
    refused(ruled(RouteRule { top_k: 5, ..rule }), text);
    let text = "moe_route: top_k is 0, want 1 to 4 (experts of the groups that stay)";
    refused(ruled(RouteRule { top_k: 0, ..rule }), text);
    let logits = t(3, 8);
    refused(
        MoeRoute { weights: logits.columns(0, 2), logits: logits.clone(), ..op() },
        "moe_route: weights and logits share a buffer, want two",
    );
}

fn groups(pairs: usize, experts: usize) -> ExpertGroups<Cpu> {
    ExpertGroups { order: u(pairs, 1), offsets: u(experts + 1, 1) }
}

#[test]
fn moe_group() {
    let op = || MoeGroup { ids: u(3, 2), experts: 4, groups: groups(6, 4) };
    refused(MoeGroup { ids: t(3, 2), ..op() }, "moe_group: ids is f32, want u32");
    refused(
        MoeGroup { groups: groups(5, 4), ..op() },
        "moe_group: groups.order is [5, 1], want [6, 1] (rows * top_k, 1)",
    );
    refused(
        MoeGroup { groups: groups(6, 3), ..op() },
        "moe_group: groups.offsets is [4, 1], want [5, 1] (experts + 1, 1)",
    );
    let ids = u(3, 2);
    let shared = ExpertGroups { order: ids.reshaped(6, 1), ..groups(6, 4) };
    refused(
        MoeGroup { ids, groups: shared, ..op() },
        "moe_group: groups.order and ids share a buffer, want two",
    );
}

#[test]
fn moe_matmul() {
    let weight = bank(4, 5, 8);
    let (input, activation) = (ExpertInput::Row, Activation::Relu2);
    let op = || MoeMatmul {
        x: t(3, 8),
        input,
        weight: &weight,
        ids: u(3, 2),
        groups: None,
        activation,
        out: t(6, 5),
    };
    refused(
        MoeMatmul { x: t(6, 8), ..op() },
        "moe_matmul: x is [6, 8], want [3, 8] (input rows, inputs)",
    );
    let text = "moe_matmul: x is [3, 8], want [6, 8] (input rows, inputs)";
    refused(MoeMatmul { input: ExpertInput::Pair, ..op() }, text);
    refused(MoeMatmul { ids: t(3, 2), ..op() }, "moe_matmul: ids is f32, want u32");
    let text =
        "moe_matmul: weight w is [4, 5, 8], want [4, 5, 7] (experts, cols of out, cols of x)";
    refused(MoeMatmul { x: t(3, 7), ..op() }, text);
    let text = "moe_matmul: groups.order is [3, 1], want [6, 1] (rows * top_k, 1)";
    refused(MoeMatmul { groups: Some(groups(3, 4)), ..op() }, text);
    refused(
        MoeMatmul { out: t(3, 5), ..op() },
        "moe_matmul: out is [3, 5], want [6, 5] (rows * top_k, outputs)",
    );
}

#[test]
fn moe_combine() {
    let op = || MoeCombine { x: t(6, 8), weights: t(3, 2), store: Store::Replace, out: t(3, 8) };
    refused(
        MoeCombine { x: t(5, 8), ..op() },
        "moe_combine: x is [5, 8], want [6, 8] (rows * top_k, cols of out)",
    );
    refused(
        MoeCombine { weights: of(DType::F16, 3, 2), ..op() },
        "moe_combine: weights is f16, want f32",
    );
    refused(
        MoeCombine { out: t(2, 8), ..op() },
        "moe_combine: out is [2, 8], want [3, 8] (rows, cols)",
    );
}
