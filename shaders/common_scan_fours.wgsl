// The scan's B, C and state in fours: states of a multiple of four, rows and windows that begin at one.
@group(0) @binding(2) var<storage, read> b: array<vec4<f32>>; // [rows, groups * N / 4]
@group(0) @binding(3) var<storage, read> c: array<vec4<f32>>; // [rows, groups * N / 4]
@group(0) @binding(6) var<storage, read_write> state: array<vec4<f32>>; // [slots * heads * P, N / 4]

// Four values of a row from column `col`, zero past the state.
fn four_b(base: u32, col: u32) -> vec4<f32> {
    if (col < params.state_size) {
        return b[(base + col) >> 2u];
    }
    return vec4<f32>();
}

fn four_c(base: u32, col: u32) -> vec4<f32> {
    if (col < params.state_size) {
        return c[(base + col) >> 2u];
    }
    return vec4<f32>();
}

fn four_state(base: u32, col: u32) -> vec4<f32> {
    if (col < params.state_size) {
        return state[(base + col) >> 2u];
    }
    return vec4<f32>();
}

fn keep_state(base: u32, col: u32, v: vec4<f32>) {
    if (col < params.state_size) {
        state[(base + col) >> 2u] = v;
    }
}
