// The outputs of causal_conv1d.wgsl for long segments and at most four taps: for software adapters, where a load costs as
// much as a dozen products.
//
// One invocation a (segment, run of 8 of its rows, channel), 64 a workgroup, walks the run with the taps and the last
// inputs in registers. The entry `window` of causal_conv1d.wgsl, dispatched after this one, keeps the window.
struct Params {
    x: vec2<u32>, weight: vec2<u32>, bias: vec2<u32>, state: vec2<u32>, table: vec2<u32>, out: vec2<u32>,
    items: u32, channels: u32, width: u32, kind: u32, biased: u32, runs: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>; // [rows, channels]
@group(0) @binding(2) var<storage, read> weight: array<f32>; // [channels, width]
@group(0) @binding(3) var<storage, read> bias: array<f32>; // [1, channels]
@group(0) @binding(4) var<storage, read_write> state: array<f32>; // [slots * channels, width - 1]
@group(0) @binding(5) var<storage, read> table: array<u32>; // [items, 4] segments
@group(0) @binding(6) var<storage, read_write> out: array<f32>; // [rows, channels]

// Tap of the input `back` rows before the output, zero past the first.
fn tap(channel: u32, back: u32) -> f32 {
    if (back >= params.width) {
        return 0.0;
    }
    return weight[params.weight.x + channel * params.weight.y + params.width - 1u - back];
}

// Input `back` rows before row `start` of a segment: of the segment, of the slot's window, or zero.
fn before(entry: vec4<u32>, start: u32, back: u32, channel: u32) -> f32 {
    if (back >= params.width) {
        return 0.0;
    }
    if (back <= start) {
        return x[params.x.x + (entry.x + start - back) * params.x.y + channel];
    }
    if (entry.w == 0u) {
        return 0.0;
    }
    let window = params.state.x + (entry.z * params.channels + channel) * params.state.y;
    return state[window + params.width - 1u - back + start];
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count) * 64u + lane;
    let channels = params.channels;
    if (i >= params.items * params.runs * channels) {
        return;
    }
    let channel = i % channels;
    let start = i / channels % params.runs * 8u;
    let at = params.table.x + i / channels / params.runs * params.table.y;
    let entry = vec4<u32>(table[at], table[at + 1u], table[at + 2u], table[at + 3u]); // first_row len slot position
    if (start >= entry.y) {
        return;
    }
    let taps = vec4<f32>(tap(channel, 3u), tap(channel, 2u), tap(channel, 1u), tap(channel, 0u));
    var last = vec3<f32>(
        before(entry, start, 3u, channel), before(entry, start, 2u, channel), before(entry, start, 1u, channel),
    );
    var first_sum = 0.0;
    if (params.biased == 1u) {
        first_sum = bias[params.bias.x + channel];
    }
    let kind = params.kind;
    for (var row = entry.x + start; row < entry.x + min(start + 8u, entry.y); row++) {
        let value = x[params.x.x + row * params.x.y + channel];
        let sum = first_sum + dot(vec4<f32>(last, value), taps);
        out[params.out.x + row * params.out.y + channel] = pointwise(kind, sum);
        last = vec3<f32>(last.yz, value);
    }
}
