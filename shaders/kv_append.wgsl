// cache[slot * context + position] = (k, v) of each row, rounded to the cache's form. Padding rows write nowhere.
// FORMAT: 0 f32, 1 f16, 2 bf16, 4 e4m3; PER elements a word.
//
// `main`: one invocation a word of both caches, for rows of whole words. `ragged`: one invocation an element, by atomics,
// since neighbouring rows share words. 256 a workgroup.
struct Params {
    k: vec2<u32>, v: vec2<u32>, places: vec2<u32>, cache_k: vec2<u32>, cache_v: vec2<u32>,
    rows: u32, words: u32, context: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> k: array<f32>; // [rows, kv_heads * head_dim]
@group(0) @binding(2) var<storage, read> v: array<f32>; // [rows, kv_heads * head_dim]
@group(0) @binding(3) var<storage, read> places: array<u32>; // [rows, 4]
@group(0) @binding(4) var<storage, read_write> cache_k: array<u32>; // [slots * context, kv_heads * head_dim], packed
@group(0) @binding(5) var<storage, read_write> cache_v: array<u32>; // [slots * context, kv_heads * head_dim], packed
@group(0) @binding(4) var<storage, read_write> shared_k: array<atomic<u32>>; // cache_k, for `ragged`
@group(0) @binding(5) var<storage, read_write> shared_v: array<atomic<u32>>; // cache_v, for `ragged`

// bfloat16 bits, ties to even.
fn bf16_bits(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    if (value != value) {
        return 0x7fc0u;
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

// E4M3 bits, ties to even, saturating at 448.
fn e4m3_bits(value: f32) -> u32 {
    let sign = (bitcast<u32>(value) >> 24u) & 0x80u;
    if (value != value) {
        return 0x7fu;
    }
    let magnitude = min(abs(value), 448.0);
    let exponent = max(bitcast<u32>(magnitude) >> 23u, 121u); // biased; 2^-6 is the smallest normal
    // Steps of 2^(exponent - 3), counted by a multiplication with their exact reciprocal.
    let steps = u32(round(magnitude * bitcast<f32>((257u - exponent) << 23u)));
    return sign | (steps + (exponent - 121u) * 8u);
}

fn packed(a: f32, b: f32, c: f32, d: f32) -> u32 {
    if (FORMAT == 1u) {
        return pack2x16float(vec2<f32>(a, b));
    }
    if (FORMAT == 2u) {
        return bf16_bits(a) | (bf16_bits(b) << 16u);
    }
    if (FORMAT == 4u) {
        return e4m3_bits(a) | (e4m3_bits(b) << 8u) | (e4m3_bits(c) << 16u) | (e4m3_bits(d) << 24u);
    }
    return bitcast<u32>(a);
}

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
    let row = i / params.words;
    let word = i % params.words;
    let place = params.places.x + row * params.places.y;
    if (places[place] == 0xffffffffu) {
        return;
    }
    let target_row = places[place] * params.context + places[place + 1u];
    // Elements of the word; narrower words repeat their last.
    let last = PER - 1u;
    let a = params.k.x + row * params.k.y + word * PER;
    let b = params.v.x + row * params.v.y + word * PER;
    cache_k[(params.cache_k.x + target_row * params.cache_k.y) / PER + word] =
        packed(k[a], k[a + min(1u, last)], k[a + min(2u, last)], k[a + last]);
    cache_v[(params.cache_v.x + target_row * params.cache_v.y) / PER + word] =
        packed(v[b], v[b + min(1u, last)], v[b + min(2u, last)], v[b + last]);
}

@compute @workgroup_size(256)
fn ragged(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat(group, count) * 256u + lane;
    if (i >= params.rows * params.words) {
        return;
    }
    let row = i / params.words;
    let column = i % params.words;
    let place = params.places.x + row * params.places.y;
    if (places[place] == 0xffffffffu) {
        return;
    }
    let target_row = places[place] * params.context + places[place + 1u];
    let bits = 32u / PER;
    let mask = (1u << (bits & 31u)) - 1u;
    let a = params.cache_k.x + target_row * params.cache_k.y + column;
    let new_k = packed(k[params.k.x + row * params.k.y + column], 0.0, 0.0, 0.0) & mask;
    atomicAnd(&shared_k[a / PER], ~(mask << (a % PER * bits)));
    atomicOr(&shared_k[a / PER], new_k << (a % PER * bits));
    let b = params.cache_v.x + target_row * params.cache_v.y + column;
    let new_v = packed(v[params.v.x + row * params.v.y + column], 0.0, 0.0, 0.0) & mask;
    atomicAnd(&shared_v[b / PER], ~(mask << (b % PER * bits)));
    atomicOr(&shared_v[b / PER], new_v << (b % PER * bits));
}
