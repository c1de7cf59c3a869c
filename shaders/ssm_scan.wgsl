// Mamba2's recurrence: dt = clamp(softplus(dt + dt_bias)), a = exp(-exp(A_log) dt), S <- a S + dt x B^T, y = S C + D x.
// P = head_dim, N = state.
//
// One workgroup a (segment, head, CHANNELS channels of the head); LANES invocations share a channel's state, each with
// FOURS * 4 of its N values in registers over the whole segment. Tokens are staged TOKENS at a time in workgroup memory;
// partial sums of y meet there too, so there are three barriers a chunk and none a token. f32 throughout.
// B, C and the state are bound in fours where their rows allow it (common_scan_fours.wgsl), else by elements.
// Prefill, decode and mixtures are the same kernel; entries of length 0 do nothing; position 0 never reads the slot. Where
// ONCE is 1 no segment is longer than one token.
// Limits: N at most LANES * FOURS * 4; workgroup memory by the host's choice of TOKENS.
struct Params {
    x: vec2<u32>, b: vec2<u32>, c: vec2<u32>, dt: vec2<u32>, head_params: vec2<u32>, state: vec2<u32>,
    table: vec2<u32>, out: vec2<u32>,
    segments: u32, heads: u32, heads_per_group: u32, head_dim: u32, state_size: u32, blocks: u32,
    dt_low: f32, dt_high: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>; // [rows, heads * P]
@group(0) @binding(4) var<storage, read> dt: array<f32>; // [rows, heads]
@group(0) @binding(5) var<storage, read> head_params: array<f32>; // [3, heads] A_log D dt_bias
@group(0) @binding(7) var<storage, read> table: array<u32>; // [segments, 4]
@group(0) @binding(8) var<storage, read_write> out: array<f32>; // [rows, heads * P]

const THREADS: u32 = LANES * CHANNELS;
const WIDTH: u32 = LANES * FOURS; // vectors of one token's B or C

var<workgroup> staged_b: array<vec4<f32>, TOKENS * WIDTH>;
var<workgroup> staged_c: array<vec4<f32>, TOKENS * WIDTH>;
var<workgroup> staged_x: array<f32, TOKENS * CHANNELS>;
var<workgroup> decays: array<f32, TOKENS>;
var<workgroup> steps: array<f32, TOKENS>;
var<workgroup> partials: array<f32, TOKENS * CHANNELS * LANES>;

// Stages `count` tokens from row `row`: B and C of the head's group, x of the block's channels, decay and step.
fn stage(row: u32, count: u32, head: u32, first_channel: u32, lane: u32) {
    let group = head / params.heads_per_group * params.state_size;
    // Constant bounds, so that compilers unroll the loops and all loads are in flight at once; tokens past the end repeat
    // the last.
    for (var k = 0u; k < (TOKENS * WIDTH + THREADS - 1u) / THREADS; k++) {
        let i = min(k * THREADS + lane, TOKENS * WIDTH - 1u);
        let t = row + min(i / WIDTH, count - 1u);
        let col = i % WIDTH * 4u;
        staged_b[i] = four_b(params.b.x + t * params.b.y + group, col);
        staged_c[i] = four_c(params.c.x + t * params.c.y + group, col);
    }
    let columns = params.x.x + head * params.head_dim;
    for (var k = 0u; k < (TOKENS * CHANNELS + THREADS - 1u) / THREADS; k++) {
        let i = min(k * THREADS + lane, TOKENS * CHANNELS - 1u);
        let t = row + min(i / CHANNELS, count - 1u);
        let channel = min(first_channel + i % CHANNELS, params.head_dim - 1u);
        staged_x[i] = x[columns + t * params.x.y + channel];
    }
    for (var t = lane; t < count; t += THREADS) {
        let a = exp(head_params[params.head_params.x + head]);
        let bias = head_params[params.head_params.x + 2u * params.head_params.y + head];
        let raw = dt[params.dt.x + (row + t) * params.dt.y + head] + bias;
        let size = clamp(softplus(raw), params.dt_low, params.dt_high);
        steps[t] = size;
        decays[t] = exp(-a * size);
    }
}

// One token: B, C and x are each read once by who needs them, so nothing is staged and all loads are in flight together.
// `here`: where the invocation's state begins, whether its channel is inside the head, the token's position.
fn once(row: u32, head: u32, first_channel: u32, lane: u32, here: vec3<u32>) {
    let part = lane % LANES;
    let group = head / params.heads_per_group * params.state_size;
    let b_at = params.b.x + row * params.b.y + group;
    let c_at = params.c.x + row * params.c.y + group;
    var s: array<vec4<f32>, FOURS>;
    var bs: array<vec4<f32>, FOURS>;
    var cs: array<vec4<f32>, FOURS>;
    if (here.y == 1u && here.z != 0u) {
        for (var k = 0u; k < FOURS; k++) {
            s[k] = four_state(here.x, (k * LANES + part) * 4u);
        }
    }
    for (var k = 0u; k < FOURS; k++) {
        bs[k] = four_b(b_at, (k * LANES + part) * 4u);
        cs[k] = four_c(c_at, (k * LANES + part) * 4u);
    }
    let channel = min(first_channel + lane / LANES, params.head_dim - 1u);
    let own = x[params.x.x + head * params.head_dim + row * params.x.y + channel];
    let at = params.head_params.x + head;
    let raw = dt[params.dt.x + row * params.dt.y + head] + head_params[at + 2u * params.head_params.y];
    let size = clamp(softplus(raw), params.dt_low, params.dt_high);
    let decay = exp(-exp(head_params[at]) * size);
    let drive = size * own;
    var sum = vec4<f32>();
    for (var k = 0u; k < FOURS; k++) {
        s[k] = decay * s[k] + drive * bs[k];
        sum += s[k] * cs[k];
    }
    partials[lane] = sum.x + sum.y + sum.z + sum.w;
    if (here.y == 1u) {
        for (var k = 0u; k < FOURS; k++) {
            keep_state(here.x, (k * LANES + part) * 4u, s[k]);
        }
    }
    workgroupBarrier();
    if (lane < CHANNELS && first_channel + lane < params.head_dim) {
        let target_channel = first_channel + lane;
        let own_x = x[params.x.x + head * params.head_dim + row * params.x.y + target_channel];
        var y = head_params[at + params.head_params.y] * own_x;
        for (var l = 0u; l < LANES; l++) {
            y += partials[lane * LANES + l];
        }
        out[params.out.x + row * params.out.y + head * params.head_dim + target_channel] = y;
    }
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count);
    if (i >= params.segments * params.heads * params.blocks) {
        return;
    }
    let first_channel = i % params.blocks * CHANNELS;
    let head = i / params.blocks % params.heads;
    let entry = params.table.x + i / params.blocks / params.heads * params.table.y;
    let first_row = table[entry];
    let length = table[entry + 1u];
    if (length == 0u) {
        return;
    }
    let channel = first_channel + lane / LANES;
    let part = lane % LANES;
    let inside = channel < params.head_dim;
    let base = params.state.x
        + ((table[entry + 2u] * params.heads + head) * params.head_dim + channel) * params.state.y;
    if (ONCE == 1u) {
        once(first_row, head, first_channel, lane, vec3<u32>(base, u32(inside), table[entry + 3u]));
        return;
    }
    var s: array<vec4<f32>, FOURS>;
    if (inside && table[entry + 3u] != 0u) {
        for (var k = 0u; k < FOURS; k++) {
            s[k] = four_state(base, (k * LANES + part) * 4u);
        }
    }
    let d = head_params[params.head_params.x + params.head_params.y + head];
    for (var start = 0u; start < length; start += TOKENS) {
        let tokens = min(TOKENS, length - start);
        stage(first_row + start, tokens, head, first_channel, lane);
        workgroupBarrier();
        for (var t = 0u; t < tokens; t++) {
            let decay = decays[t];
            let drive = steps[t] * staged_x[t * CHANNELS + lane / LANES];
            var sum = vec4<f32>();
            for (var k = 0u; k < FOURS; k++) {
                let at = t * WIDTH + k * LANES + part;
                s[k] = decay * s[k] + drive * staged_b[at];
                sum += s[k] * staged_c[at];
            }
            partials[t * THREADS + lane] = sum.x + sum.y + sum.z + sum.w;
        }
        workgroupBarrier();
        for (var k = lane; k < tokens * CHANNELS; k += THREADS) {
            let target_channel = first_channel + k % CHANNELS;
            var y = d * staged_x[k];
            for (var l = 0u; l < LANES; l++) {
                y += partials[k * LANES + l];
            }
            if (target_channel < params.head_dim) {
                let row = first_row + start + k / CHANNELS;
                out[params.out.x + row * params.out.y + head * params.head_dim + target_channel] = y;
            }
        }
        workgroupBarrier();
    }
    if (inside) {
        for (var k = 0u; k < FOURS; k++) {
            keep_state(base, (k * LANES + part) * 4u, s[k]);
        }
    }
}
