// Mamba2's recurrence as in ssm_scan.wgsl, without barriers: for software adapters. P = head_dim, N = state.
//
// One invocation has four channels of a head and walks the segment once for every 4 * FOURS of its N states, which stay in
// registers; each walk adds its part to y. Four channels share a load of B and C, which is what the time goes into.
// One workgroup of 8 has 32 channels of a (segment, head). FOURS, at most 4, divides N / 4; B, C and the state in fours.
struct Params {
    x: vec2<u32>, b: vec2<u32>, c: vec2<u32>, dt: vec2<u32>, head_params: vec2<u32>, state: vec2<u32>,
    table: vec2<u32>, out: vec2<u32>,
    segments: u32, heads: u32, heads_per_group: u32, head_dim: u32, state_size: u32, blocks: u32,
    dt_low: f32, dt_high: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>; // [rows, heads * P]
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>; // [rows, groups * N / 4]
@group(0) @binding(3) var<storage, read> c: array<vec4<f32>>; // [rows, groups * N / 4]
@group(0) @binding(4) var<storage, read> dt: array<f32>; // [rows, heads]
@group(0) @binding(5) var<storage, read> head_params: array<f32>; // [3, heads] A_log D dt_bias
@group(0) @binding(6) var<storage, read_write> state: array<vec4<f32>>; // [slots * heads * P, N / 4]
@group(0) @binding(7) var<storage, read> table: array<u32>; // [segments, 4]
@group(0) @binding(8) var<storage, read_write> out: array<f32>; // [rows, heads * P]

// What is the same for all tokens: rates of the head, the column of its first channel, where B and
// C of its group begin, in fours, and how many of the four channels there are.
var<private> rate: f32;
var<private> bias: f32;
var<private> skip: f32;
var<private> column: u32;
var<private> b_at: u32;
var<private> c_at: u32;
var<private> channels: u32;

fn four_x(row: u32) -> vec4<f32> {
    let at = params.x.x + row * params.x.y + column;
    let last = channels - 1u;
    return vec4<f32>(x[at], x[at + min(1u, last)], x[at + min(2u, last)], x[at + min(3u, last)]);
}

// Four states of four channels, a column a channel, after a token.
fn driven(s: mat4x4<f32>, decay: f32, drive: vec4<f32>, at: u32) -> mat4x4<f32> {
    let four = b[at];
    return decay * s + mat4x4<f32>(four * drive.x, four * drive.y, four * drive.z, four * drive.w);
}

// Channels past the head's repeat the last.
fn load_states(at: u32) -> mat4x4<f32> {
    let last = channels - 1u;
    let stride = params.state.y >> 2u;
    return mat4x4<f32>(
        state[at], state[at + min(1u, last) * stride], state[at + min(2u, last) * stride],
        state[at + min(3u, last) * stride],
    );
}

fn keep_states(at: u32, s: mat4x4<f32>) {
    var columns = s;
    for (var j = 0u; j < channels; j++) {
        state[at + j * (params.state.y >> 2u)] = columns[j];
    }
}

// Walks the segment with the FOURS fours of the state from `base`; the first walk also begins y.
fn walk(head: u32, entry: vec4<u32>, base: u32, part: u32) {
    var s0 = mat4x4<f32>();
    var s1 = mat4x4<f32>();
    var s2 = mat4x4<f32>();
    var s3 = mat4x4<f32>();
    if (entry.w != 0u) {
        s0 = load_states(base);
        if (FOURS > 1u) { s1 = load_states(base + 1u); }
        if (FOURS > 2u) { s2 = load_states(base + 2u); }
        if (FOURS > 3u) { s3 = load_states(base + 3u); }
    }
    let b_stride = params.b.y >> 2u;
    let c_stride = params.c.y >> 2u;
    for (var t = 0u; t < entry.y; t++) {
        let row = entry.x + t;
        let raw = dt[params.dt.x + row * params.dt.y + head] + bias;
        let size = clamp(softplus(raw), params.dt_low, params.dt_high);
        let decay = exp(-rate * size);
        let four = four_x(row);
        let drive = size * four;
        let u = b_at + row * b_stride + part * FOURS;
        let v = c_at + row * c_stride + part * FOURS;
        s0 = driven(s0, decay, drive, u);
        var y = c[v] * s0;
        if (FOURS > 1u) { s1 = driven(s1, decay, drive, u + 1u); y += c[v + 1u] * s1; }
        if (FOURS > 2u) { s2 = driven(s2, decay, drive, u + 2u); y += c[v + 2u] * s2; }
        if (FOURS > 3u) { s3 = driven(s3, decay, drive, u + 3u); y += c[v + 3u] * s3; }
        let at = params.out.x + row * params.out.y + column;
        if (part == 0u) {
            y += skip * four;
        }
        for (var j = 0u; j < channels; j++) {
            var sum = y[j];
            if (part > 0u) {
                sum += out[at + j];
            }
            out[at + j] = sum;
        }
    }
    keep_states(base, s0);
    if (FOURS > 1u) { keep_states(base + 1u, s1); }
    if (FOURS > 2u) { keep_states(base + 2u, s2); }
    if (FOURS > 3u) { keep_states(base + 3u, s3); }
}

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count);
    if (i >= params.segments * params.heads * params.blocks) {
        return;
    }
    let first = i % params.blocks * 32u + lane * 4u;
    if (first >= params.head_dim) {
        return;
    }
    let head = i / params.blocks % params.heads;
    let at = params.table.x + i / params.blocks / params.heads * params.table.y;
    let entry = vec4<u32>(table[at], table[at + 1u], table[at + 2u], table[at + 3u]); // first_row len slot position
    if (entry.y == 0u) {
        return;
    }
    let heads = params.head_params.x + head;
    rate = exp(head_params[heads]);
    skip = head_params[heads + params.head_params.y];
    bias = head_params[heads + 2u * params.head_params.y];
    channels = min(4u, params.head_dim - first);
    column = head * params.head_dim + first;
    let group_column = head / params.heads_per_group * params.state_size;
    b_at = (params.b.x + group_column) >> 2u;
    c_at = (params.c.x + group_column) >> 2u;
    let channel = (entry.z * params.heads + head) * params.head_dim + first;
    let base = (params.state.x + channel * params.state.y) >> 2u;
    for (var part = 0u; part < params.state_size / (4u * FOURS); part++) {
        walk(head, entry, base + part * FOURS, part);
    }
}
