// out[t, c] = f(bias[c] + sum_j weight[c, j] * x[t - width + 1 + j, c]); inputs before the segment come from the slot's
// window, or are zero where the segment is fresh. The window keeps raw inputs.
//
// `step`: one invocation a (segment, channel) walks the segment and leaves the window: one dispatch for short segments.
// `rows`: one invocation a (row, channel), outputs alone. `window`: one invocation a (segment, channel), the window
// alone, dispatched after `rows`, which reads the old one. Padding rows and entries do nothing. Width at most 8.
struct Params {
    x: vec2<u32>, weight: vec2<u32>, bias: vec2<u32>, state: vec2<u32>, table: vec2<u32>, out: vec2<u32>,
    items: u32, channels: u32, width: u32, kind: u32, biased: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>; // [rows, channels]
@group(0) @binding(2) var<storage, read> weight: array<f32>; // [channels, width]
@group(0) @binding(3) var<storage, read> bias: array<f32>; // [1, channels]
@group(0) @binding(4) var<storage, read_write> state: array<f32>; // [slots * channels, width - 1]
@group(0) @binding(5) var<storage, read> table: array<u32>; // segments or places, [items, 4]
@group(0) @binding(6) var<storage, read_write> out: array<f32>; // [rows, channels]

fn entry(item: u32) -> vec4<u32> {
    let at = params.table.x + item * params.table.y;
    return vec4<u32>(table[at], table[at + 1u], table[at + 2u], table[at + 3u]);
}

fn input(row: u32, channel: u32) -> f32 {
    return x[params.x.x + row * params.x.y + channel];
}

// Row of a slot's window.
fn window_at(slot: u32, channel: u32) -> u32 {
    return params.state.x + (slot * params.channels + channel) * params.state.y;
}

fn first_sum(channel: u32) -> f32 {
    if (params.biased == 1u) {
        return bias[params.bias.x + channel];
    }
    return 0.0;
}

@compute @workgroup_size(256)
fn step(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count) * 256u + lane;
    if (i >= params.items * params.channels) {
        return;
    }
    let channel = i % params.channels;
    let segment = entry(i / params.channels); // first_row len slot position
    if (segment.y == 0u) {
        return;
    }
    let kept = params.width - 1u;
    let place = window_at(segment.z, channel);
    var history: array<f32, 8>;
    if (segment.w != 0u) {
        for (var j = 0u; j < kept; j++) {
            history[j] = state[place + j];
        }
    }
    let taps = params.weight.x + channel * params.weight.y;
    for (var t = 0u; t < segment.y; t++) {
        let row = segment.x + t;
        history[kept] = input(row, channel);
        var sum = first_sum(channel);
        for (var j = 0u; j < params.width; j++) {
            sum += weight[taps + j] * history[j];
        }
        out[params.out.x + row * params.out.y + channel] = pointwise(params.kind, sum);
        for (var j = 0u; j < kept; j++) {
            history[j] = history[j + 1u];
        }
    }
    for (var j = 0u; j < kept; j++) {
        state[place + j] = history[j];
    }
}

@compute @workgroup_size(256)
fn rows(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count) * 256u + lane;
    if (i >= params.items * params.channels) {
        return;
    }
    let channel = i % params.channels;
    let row = i / params.channels;
    let place = entry(row); // slot position segment index
    if (place.x == 0xffffffffu) {
        return;
    }
    let taps = params.weight.x + channel * params.weight.y;
    let fresh = place.y == place.w;
    let history = window_at(place.x, channel);
    var sum = first_sum(channel);
    for (var j = 0u; j < params.width; j++) {
        let back = params.width - 1u - j;
        var value = 0.0;
        if (back <= place.w) {
            value = input(row - back, channel);
        } else if (!fresh) {
            value = state[history + j + place.w];
        }
        sum += weight[taps + j] * value;
    }
    out[params.out.x + row * params.out.y + channel] = pointwise(params.kind, sum);
}

@compute @workgroup_size(256)
fn window(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count) * 256u + lane;
    if (i >= params.items * params.channels) {
        return;
    }
    let channel = i % params.channels;
    let segment = entry(i / params.channels); // first_row len slot position
    if (segment.y == 0u) {
        return;
    }
    let kept = params.width - 1u;
    let place = window_at(segment.z, channel);
    // Rising, so that a short segment shifts the old window before it is overwritten.
    for (var j = 0u; j < kept; j++) {
        let back = kept - j;
        var value = 0.0;
        if (back <= segment.y) {
            value = input(segment.x + segment.y - back, channel);
        } else if (segment.w != 0u) {
            value = state[place + j + segment.y];
        }
        state[place + j] = value;
    }
}
