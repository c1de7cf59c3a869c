// The k largest values of each row with their indices, largest first, ties to the lowest index.
//
// One workgroup of 256 a row, or a (row, part of a long row). Radix selection: eight bits a pass find the key of the k-th
// value, then, where several have that key, the largest index that is still taken. The chosen are collected and sorted in
// workgroup memory.
//
// PART: 0 a whole row; 1 a part of `width` columns, which leaves keys and places, its unused entries below every other;
// 2 joins what the parts of a row left, of which earlier entries hold lower indices wherever keys are equal.
// Limits: k at most 1,024, workgroup memory 11 KiB.
struct Params {
    x: vec2<u32>, values: vec2<u32>, indices: vec2<u32>, rows: u32, cols: u32, k: u32, size: u32, parts: u32, width: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>; // [rows, cols] f32, or [rows * cols, 2] keys and places
@group(0) @binding(2) var<storage, read_write> values: array<f32>; // [rows, k]
@group(0) @binding(3) var<storage, read_write> indices: array<u32>; // [rows, k], or [rows * parts * k, 2]

var<workgroup> counts: array<atomic<u32>, 256>;
var<workgroup> above: array<u32, 256>; // entries whose digit is at least this
var<workgroup> chosen_keys: array<u32, 1024>;
var<workgroup> chosen_places: array<u32, 1024>;
var<workgroup> found: vec2<u32>; // digit of the pass, how many are still wanted within it
var<workgroup> taken: atomic<u32>;

fn key_at(row: u32, col: u32) -> u32 {
    if (PART == 2u) {
        return x[2u * (row * params.cols + col)];
    }
    return order_key(bitcast<f32>(x[params.x.x + row * params.x.y + col]));
}

// From the histogram: the digit in which the wanted-th largest lies.
fn pick(lane: u32, wanted: u32) -> vec2<u32> {
    workgroupBarrier();
    let own = atomicLoad(&counts[lane]);
    atomicStore(&counts[lane], 0u);
    var sum = own;
    above[lane] = sum;
    for (var step = 1u; step < 256u; step *= 2u) {
        workgroupBarrier();
        let more = select(0u, above[min(lane + step, 255u)], lane + step < 256u);
        workgroupBarrier();
        sum += more;
        above[lane] = sum;
    }
    if (sum >= wanted && sum - own < wanted) {
        found = vec2<u32>(lane, wanted - (sum - own));
    }
    workgroupBarrier();
    let result = found;
    workgroupBarrier();
    return result;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count);
    if (i >= params.rows * params.parts) {
        return;
    }
    let row = i / params.parts;
    let start = i % params.parts * params.width;
    let end = min(start + params.width, params.cols);
    let taken_here = min(params.k, end - start);
    atomicStore(&counts[lane], 0u);
    if (lane == 0u) {
        atomicStore(&taken, 0u);
    }
    workgroupBarrier();
    var wanted = taken_here;
    var key = 0u;
    for (var shift = 24i; shift >= 0i; shift -= 8i) {
        let s = u32(shift);
        for (var col = start + lane; col < end; col += 256u) {
            let own = key_at(row, col);
            // The digits above the pass agree with what was found so far.
            if (((own ^ key) >> s) < 256u) {
                atomicAdd(&counts[(own >> s) & 0xffu], 1u);
            }
        }
        let digit = pick(lane, wanted);
        key |= digit.x << s;
        wanted = digit.y;
    }
    // Among equal keys the lowest indices are taken: the largest inverted ones.
    var place = 0u;
    for (var shift = 24i; shift >= 0i; shift -= 8i) {
        let s = u32(shift);
        for (var col = start + lane; col < end; col += 256u) {
            if (key_at(row, col) == key && (((~col) ^ place) >> s) < 256u) {
                atomicAdd(&counts[((~col) >> s) & 0xffu], 1u);
            }
        }
        let digit = pick(lane, wanted);
        place |= digit.x << s;
        wanted = digit.y;
    }
    collect(row, lane, key, ~place, vec2<u32>(start, end));
    sort(lane);
    for (var k = lane; k < params.k; k += 256u) {
        let col = chosen_places[k];
        if (PART == 1u) {
            let at = 2u * (i * params.k + k);
            indices[at] = chosen_keys[k];
            indices[at + 1u] = col;
            continue;
        }
        var index = col;
        if (PART == 2u) {
            index = x[2u * (row * params.cols + col) + 1u];
        }
        values[params.values.x + row * params.values.y + k] = order_value(chosen_keys[k]);
        indices[params.indices.x + row * params.indices.y + k] = index;
    }
}

// Everything above the key, and at the key up to column `last`: exactly k.
fn collect(row: u32, lane: u32, key: u32, last: u32, range: vec2<u32>) {
    for (var i = lane; i < params.size; i += 256u) {
        chosen_keys[i] = 0u;
        chosen_places[i] = 0xffffffffu;
    }
    workgroupBarrier();
    for (var col = range.x + lane; col < range.y; col += 256u) {
        let own = key_at(row, col);
        if (own > key || (own == key && col <= last)) {
            let at = atomicAdd(&taken, 1u);
            chosen_keys[at] = own;
            chosen_places[at] = col;
        }
    }
    workgroupBarrier();
}

// Bitonic sort of `size` entries, a power of two: keys falling, columns rising within a key.
fn sort(lane: u32) {
    for (var block = 2u; block <= params.size; block *= 2u) {
        for (var step = block / 2u; step > 0u; step /= 2u) {
            for (var i = lane; i < params.size; i += 256u) {
                let other = i ^ step;
                if (other > i) {
                    let a = vec2<u32>(chosen_keys[i], chosen_places[i]);
                    let b = vec2<u32>(chosen_keys[other], chosen_places[other]);
                    let behind = b.x > a.x || (b.x == a.x && b.y < a.y);
                    let falling = (i & block) == 0u;
                    let ahead = a.x > b.x || (a.x == b.x && a.y < b.y);
                    if ((falling && behind) || (!falling && ahead)) {
                        chosen_keys[i] = b.x;
                        chosen_places[i] = b.y;
                        chosen_keys[other] = a.x;
                        chosen_places[other] = a.y;
                    }
                }
            }
            workgroupBarrier();
        }
    }
}
