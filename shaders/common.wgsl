// Helpers of every kernel. A window in the parameters is (offset, stride) in elements of its binding.

// Index of a workgroup in a grid that the host spread over two dimensions.
fn flat(id: vec3<u32>, count: vec3<u32>) -> u32 {
    return id.y * count.x + id.x;
}

// 1 / (1 + exp(-x)); the bound keeps the exponential finite.
fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(min(-x, 88.0)));
}

// ln(1 + exp(x)), linear above 20; a series where 1 + exp(x) would round the exponential away.
fn softplus(x: f32) -> f32 {
    if (x > 20.0) {
        return x;
    }
    let e = exp(x);
    if (e < 0.03) {
        return e * (1.0 - e * (0.5 - e * (0.33333334 - e * 0.25)));
    }
    return log(1.0 + e);
}

// Error function by Abramowitz and Stegun 7.1.26: absolute error below 5e-7 in f32.
fn error_function(x: f32) -> f32 {
    let v = min(abs(x), 9.0);
    let t = 1.0 / (1.0 + 0.3275911 * v);
    let poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    let y = 1.0 - poly * exp(-v * v);
    return select(y, -y, x < 0.0);
}

// Pointwise functions by number: identity, silu, relu squared, gelu, sigmoid.
fn pointwise(kind: u32, x: f32) -> f32 {
    switch (kind) {
        case 1u: { return x * sigmoid(x); }
        case 2u: { return max(x, 0.0) * max(x, 0.0); }
        case 3u: { return 0.5 * x * (1.0 + error_function(x * 0.70710678)); }
        case 4u: { return sigmoid(x); }
        default: { return x; }
    }
}

// Floats as integers of the same total order.
fn order_key(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}

// The float that order_key made the integer of.
fn order_value(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, (key & 0x80000000u) != 0u));
}
