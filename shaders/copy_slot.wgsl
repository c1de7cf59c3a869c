// state[to + row] = state[from + row]. Slots never overlap, so no invocation reads what another writes.
//
// `main`: one invocation a word, for rows of whole words; widths and places count words. `ragged`: one invocation an
// element of 32 / PER bits, by atomics, since slots share words; widths and places count elements. 256 a workgroup.
struct Params { rows: u32, width: u32, stride: u32, source: u32, destination: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> state: array<u32>; // [slots * rows_per_slot, cols], packed
@group(0) @binding(1) var<storage, read_write> shared_state: array<atomic<u32>>; // the same, for `ragged`

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count) * 256u + lane;
    if (i >= params.rows * params.width) {
        return;
    }
    let at = i / params.width * params.stride + i % params.width;
    state[params.destination + at] = state[params.source + at];
}

@compute @workgroup_size(256)
fn ragged(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count) * 256u + lane;
    if (i >= params.rows * params.width) {
        return;
    }
    let at = i / params.width * params.stride + i % params.width;
    let bits = 32u / PER;
    let mask = (1u << (bits & 31u)) - 1u;
    let source = params.source + at;
    let destination = params.destination + at;
    let value = (atomicLoad(&shared_state[source / PER]) >> (source % PER * bits)) & mask;
    atomicAnd(&shared_state[destination / PER], ~(mask << (destination % PER * bits)));
    atomicOr(&shared_state[destination / PER], value << (destination % PER * bits));
}
