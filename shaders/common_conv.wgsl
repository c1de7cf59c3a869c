// A convolution over columns of a product, one row a sequence, in the hands of whoever stores the product: CONV taps, the
// last on the new input, the others on the slot's window of raw inputs, which moves on by one. See causal_conv1d.wgsl.
@group(0) @binding(8) var<storage, read> taps: array<f32>; // [channels, CONV]
@group(0) @binding(9) var<storage, read> conv_bias: array<f32>; // [1, channels]
@group(0) @binding(10) var<storage, read_write> state: array<f32>; // [slots * channels, CONV - 1]
@group(0) @binding(11) var<storage, read> places: array<u32>; // [rows, 4] slot position segment index
@group(0) @binding(12) var<storage, read_write> conv_out: array<f32>; // [rows, channels]

fn after(row: u32, col: u32, value: f32) {
    // Wraps to a large number before the first channel.
    let channel = col - params.conv_first;
    let place = params.places.x + row * params.places.y;
    let slot = places[place];
    if (channel >= params.channels || slot == 0xffffffffu) {
        return;
    }
    let fresh = places[place + 1u] == 0u;
    let window = params.state.x + (slot * params.channels + channel) * params.state.y;
    let tap = params.taps.x + channel * params.taps.y;
    var history: array<f32, CONV>;
    for (var j = 0u; j + 1u < CONV; j++) {
        history[j] = select(state[window + j], 0.0, fresh);
    }
    history[CONV - 1u] = value;
    var sum = 0.0;
    if (params.conv_biased == 1u) {
        sum = conv_bias[params.conv_bias.x + channel];
    }
    for (var j = 0u; j < CONV; j++) {
        sum += taps[tap + j] * history[j];
    }
    for (var j = 0u; j + 1u < CONV; j++) {
        state[window + j] = history[j + 1u];
    }
    conv_out[params.conv_out.x + row * params.conv_out.y + channel] = pointwise(params.conv_kind, sum);
}
