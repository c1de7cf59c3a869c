// state[to + row] = state[from + row], in words of 4 bytes. One invocation a word; 256 words a workgroup.
// Slots never overlap, so no invocation reads what another writes.
struct Params { rows: u32, words: u32, row_words: u32, source: u32, destination: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> state: array<u32>; // [slots * rows_per_slot, words]

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count) * 256u + lane;
    if (i >= params.rows * params.words) {
        return;
    }
    let at = i / params.words * params.row_words + i % params.words;
    state[params.destination + at] = state[params.source + at];
}
