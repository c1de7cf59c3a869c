// Three products of one format with the same normed rows, as queries, keys and values are: workgroups of the second and
// the third stand behind those of the first.
@group(0) @binding(8) var<storage, read> weight_b: array<vec4<u32>>; // [outputs_b, units]
@group(0) @binding(9) var<storage, read> scales_b: array<u32>; // [outputs_b, 2 * units] bytes, nvfp4 alone
@group(0) @binding(10) var<storage, read_write> out_b: array<f32>; // [rows, outputs_b]
@group(0) @binding(11) var<storage, read> weight_c: array<vec4<u32>>; // [outputs_c, units]
@group(0) @binding(12) var<storage, read> scales_c: array<u32>; // [outputs_c, 2 * units] bytes, nvfp4 alone
@group(0) @binding(13) var<storage, read_write> out_c: array<f32>; // [rows, outputs_c]

// Whose outputs the workgroup has: 0 the first product's.
var<private> sibling: u32;

fn of_siblings(which: u32, a: u32, b: u32, c: u32) -> u32 {
    return select(select(a, b, which == 1u), c, which == 2u);
}

fn place_among(i: u32, width: u32) -> u32 {
    let second = (params.outputs + width - 1u) / width;
    let third = second + (params.outputs_b + width - 1u) / width;
    // A variable of its own, which a compiler sees to be uniform.
    let which = u32(i >= second) + u32(i >= third);
    sibling = which;
    let first = (i - of_siblings(which, 0u, second, third)) * width;
    return select(NONE, first, first < of_siblings(which, params.outputs, params.outputs_b, params.outputs_c));
}

fn outputs_here() -> u32 {
    return of_siblings(sibling, params.outputs, params.outputs_b, params.outputs_c);
}

fn matrix_scale() -> f32 {
    return select(select(params.matrix_scale, params.scale_b, sibling == 1u), params.scale_c, sibling == 2u);
}

fn unit_at(i: u32) -> vec4<u32> {
    if (sibling == 0u) {
        return weight[i];
    }
    if (sibling == 1u) {
        return weight_b[i];
    }
    return weight_c[i];
}

fn scale_word(i: u32) -> u32 {
    if (sibling == 0u) {
        return scales[i];
    }
    if (sibling == 1u) {
        return scales_b[i];
    }
    return scales_c[i];
}

fn leave(row: u32, col: u32, value: f32) {
    if (sibling == 0u) {
        out[params.out.x + row * params.out.y + col] = value;
    } else if (sibling == 1u) {
        out_b[params.out_b.x + row * params.out_b.y + col] = value;
    } else {
        out_c[params.out_c.x + row * params.out_c.y + col] = value;
    }
}
