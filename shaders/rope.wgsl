// Of each head's first 2 * pairs columns, column i turns with column i + pairs by position * inv_freq[i]. In place.
// One invocation a (row, head, pair); 256 a workgroup. Padding rows are left alone.
//
// WGSL's own sine is exact to 2^-11 only. Here the angle is reduced by multiples of a quarter turn in pieces whose
// products with a 24-bit count are exact (Cody and Waite), then a polynomial of the Cephes library's degree is applied.
struct Params {
    x: vec2<u32>, inv_freq: vec2<u32>, places: vec2<u32>,
    rows: u32, heads: u32, head_dim: u32, pairs: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>; // [rows, heads * head_dim]
@group(0) @binding(2) var<storage, read> inv_freq: array<f32>; // [1, pairs]
@group(0) @binding(3) var<storage, read> places: array<u32>; // [rows, 4]

// (sin, cos) of an angle from 0 to about 2^23.
fn turn(angle: f32) -> vec2<f32> {
    let count = round(angle * 0.63661977);
    let high = floor(count / 4096.0) * 4096.0;
    let low = count - high;
    // Quarter turn in three pieces of 12 bits and a rest.
    let c1 = 1.5703125;
    let c2 = 0.00048375129699707031;
    let c3 = 7.54953362047672271728515625e-8;
    var r = (angle - high * c1) - low * c1;
    r = (r - high * c2) - low * c2;
    r = (r - high * c3) - low * c3 - count * 2.5633441515945e-12;
    let q = r * r;
    let sine = r + r * q * (-0.16666654611 + q * (8.3321608736e-3 - q * 1.9515295891e-4));
    let cosine = 1.0 - 0.5 * q + q * q * (4.166664568298827e-2 + q * (-1.388731625493765e-3 + q * 2.443315711809948e-5));
    switch (u32(count) & 3u) {
        case 0u: { return vec2<f32>(sine, cosine); }
        case 1u: { return vec2<f32>(cosine, -sine); }
        case 2u: { return vec2<f32>(-sine, -cosine); }
        default: { return vec2<f32>(-cosine, sine); }
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count) * 256u + lane;
    if (i >= params.rows * params.heads * params.pairs) {
        return;
    }
    let pair = i % params.pairs;
    let head = i / params.pairs % params.heads;
    let row = i / params.pairs / params.heads;
    let place = params.places.x + row * params.places.y;
    if (places[place] == 0xffffffffu) {
        return;
    }
    let t = turn(f32(places[place + 1u]) * inv_freq[params.inv_freq.x + pair]);
    let at = params.x.x + row * params.x.y + head * params.head_dim + pair;
    let a = x[at];
    let b = x[at + params.pairs];
    x[at] = a * t.y - b * t.x;
    x[at + params.pairs] = b * t.y + a * t.x;
}
