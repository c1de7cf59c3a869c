// The scan's B, C and state by elements, for rows of any length and place.
@group(0) @binding(2) var<storage, read> b: array<f32>; // [rows, groups * N]
@group(0) @binding(3) var<storage, read> c: array<f32>; // [rows, groups * N]
@group(0) @binding(6) var<storage, read_write> state: array<f32>; // [slots * heads * P, N]

// Four values of a row from column `col`, zero past the state.
fn four_b(base: u32, col: u32) -> vec4<f32> {
    var v = vec4<f32>();
    if (col < params.state_size) { v.x = b[base + col]; }
    if (col + 1u < params.state_size) { v.y = b[base + col + 1u]; }
    if (col + 2u < params.state_size) { v.z = b[base + col + 2u]; }
    if (col + 3u < params.state_size) { v.w = b[base + col + 3u]; }
    return v;
}

fn four_c(base: u32, col: u32) -> vec4<f32> {
    var v = vec4<f32>();
    if (col < params.state_size) { v.x = c[base + col]; }
    if (col + 1u < params.state_size) { v.y = c[base + col + 1u]; }
    if (col + 2u < params.state_size) { v.z = c[base + col + 2u]; }
    if (col + 3u < params.state_size) { v.w = c[base + col + 3u]; }
    return v;
}

fn four_state(base: u32, col: u32) -> vec4<f32> {
    var v = vec4<f32>();
    if (col < params.state_size) { v.x = state[base + col]; }
    if (col + 1u < params.state_size) { v.y = state[base + col + 1u]; }
    if (col + 2u < params.state_size) { v.z = state[base + col + 2u]; }
    if (col + 3u < params.state_size) { v.w = state[base + col + 3u]; }
    return v;
}

fn keep_state(base: u32, col: u32, v: vec4<f32>) {
    if (col < params.state_size) { state[base + col] = v.x; }
    if (col + 1u < params.state_size) { state[base + col + 1u] = v.y; }
    if (col + 2u < params.state_size) { state[base + col + 2u] = v.z; }
    if (col + 3u < params.state_size) { state[base + col + 3u] = v.w; }
}
