// out[r] = the next token of row r, by the way to choose in ways[r]: the best, or the first column at which the running
// sum of exp((x - max x) / temperature) passes a random number's share of the whole.
//
// One workgroup of 256 a row; sums are f32, a 16th of a 16th of a range each. A place in the running sum is found by
// cutting the range in 16: `levels` of that leave one column. What a row does not want is computed and not taken, so that
// all invocations meet at every barrier.
struct Params {
    x: vec2<u32>, columns: vec2<u32>, ways: vec2<u32>, out: vec2<u32>,
    rows: u32, cols: u32, sorted: u32, levels: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>; // [rows, cols] f32
@group(0) @binding(2) var<storage, read> columns: array<u32>; // [rows, cols], where `sorted`
@group(0) @binding(3) var<storage, read_write> ways: array<u32>; // [rows, 8]
@group(0) @binding(4) var<storage, read_write> out: array<u32>; // [rows, 1]

const NEVER = 0xffffffffu;

struct Weights { start: u32, highest: f32, temperature: f32, floor: f32 }

var<workgroup> sums: array<f32, 256>;
var<workgroup> broken: atomic<u32>;

fn weight(w: Weights, i: u32) -> f32 {
    let power = (bitcast<f32>(x[w.start + i]) - w.highest) / w.temperature;
    // Less than what an f32 holds is none; the bound keeps the exponential of -inf defined.
    let value = select(exp(max(power, -100.0)), 0.0, power < -87.0);
    return select(0.0, value, value >= w.floor);
}

fn total(w: Weights, lane: u32, count: u32) -> f32 {
    var sum = 0.0;
    for (var i = lane; i < count; i += 256u) {
        sum += weight(w, i);
    }
    sums[lane] = sum;
    for (var half = 128u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            sums[lane] += sums[lane + half];
        }
    }
    workgroupBarrier();
    let all = sums[0];
    workgroupBarrier();
    return all;
}

// The first column whose running sum passes `wanted`, or reaches it, else the last that weighs anything.
fn locate(w: Weights, lane: u32, count: u32, wanted: f32, reach: bool) -> u32 {
    var low = 0u;
    var high = count;
    var left = wanted;
    for (var level = 0u; level < params.levels; level++) {
        let width = max((high - low + 15u) / 16u, 1u);
        let first = low + lane / 16u * width;
        let last = min(first + width, high);
        var sum = 0.0;
        for (var i = first + lane % 16u; i < last; i += 16u) {
            sum += weight(w, i);
        }
        sums[lane] = sum;
        workgroupBarrier();
        var piece = NEVER;
        var heavy = 0u;
        var before = 0.0;
        var before_heavy = 0.0;
        for (var p = 0u; p < 16u && piece == NEVER; p++) {
            var own = 0.0;
            for (var member = 0u; member < 16u; member++) {
                own += sums[p * 16u + member];
            }
            if (own > 0.0) {
                heavy = p;
                before_heavy = before;
                if ((reach && before + own >= left) || (!reach && before + own > left)) {
                    piece = p;
                }
            }
            before += own;
        }
        workgroupBarrier();
        low += heavy * width;
        left -= before_heavy;
        high = min(low + width, high);
    }
    return low;
}

fn multiply(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = (a.x & 0xffffu) * (b.x & 0xffffu);
    let one = (a.x >> 16u) * (b.x & 0xffffu) + (low >> 16u);
    let two = (a.x & 0xffffu) * (b.x >> 16u) + (one & 0xffffu);
    let high = (a.x >> 16u) * (b.x >> 16u) + (one >> 16u) + (two >> 16u);
    return vec2<u32>((two << 16u) | (low & 0xffffu), high + a.x * b.y + a.y * b.x);
}

// z ^ (z >> by), for less than 32.
fn fold(z: vec2<u32>, by: u32) -> vec2<u32> {
    return z ^ vec2<u32>((z.x >> by) | (z.y << (32u - by)), z.y >> by);
}

// The next state of SplitMix64, as random.rs has it, low word first.
fn advance(state: vec2<u32>) -> vec2<u32> {
    let low = state.x + 0x7f4a7c15u;
    return vec2<u32>(low, state.y + 0x9e3779b9u + select(0u, 1u, low < state.x));
}

// Its number of 0..1, to 24 bits.
fn unit(state: vec2<u32>) -> f32 {
    let first = multiply(fold(state, 30u), vec2<u32>(0x1ce4e5b9u, 0xbf58476du));
    let second = multiply(fold(first, 27u), vec2<u32>(0x133111ebu, 0x94d049bbu));
    return f32(fold(second, 31u).y >> 8u) / 16777216.0;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = flat(group, groups);
    if (row >= params.rows) {
        return;
    }
    let way = params.ways.x + row * params.ways.y;
    let temperature = bitcast<f32>(ways[way]);
    let top_k = ways[way + 1u];
    let top_p = bitcast<f32>(ways[way + 2u]);
    let state = advance(vec2<u32>(ways[way + 4u], ways[way + 5u]));
    let start = params.x.x + row * params.x.y;
    var count = params.cols;
    if (params.sorted == 1u && top_k > 0u) {
        count = min(count, top_k);
    }
    var key = 0u;
    var place = NEVER;
    var bad = 0u;
    for (var i = lane; i < count; i += 256u) {
        let bits = x[start + i];
        bad |= select(0u, 1u, (bits & 0x7f800000u) == 0x7f800000u && bits != 0xff800000u);
        let own = order_key(bitcast<f32>(bits));
        if (own > key || place == NEVER) {
            key = own;
            place = i;
        }
    }
    if (lane == 0u) {
        atomicStore(&broken, 0u);
    }
    workgroupBarrier();
    if (bad != 0u) {
        atomicMax(&broken, 1u);
    }
    reduce(lane, key, place);
    let best = places[0];
    // The key of -inf, and of NaNs below it.
    let unusable = atomicLoad(&broken) != 0u || keys[0] <= 0x007fffffu;
    var w = Weights(start, bitcast<f32>(x[start + best]), select(temperature, 1.0, temperature == 0.0), 0.0);
    if (params.sorted == 1u) {
        let last = locate(w, lane, count, total(w, lane, count) * top_p, true);
        count = select(count, last + 1u, top_p < 1.0);
    }
    w.floor = bitcast<f32>(ways[way + 3u]);
    let drawn = locate(w, lane, count, total(w, lane, count) * unit(state), false);
    if (lane == 0u) {
        let greedy = temperature == 0.0 || top_k == 1u;
        var token = select(drawn, best, greedy);
        if (params.sorted == 1u) {
            token = columns[params.columns.x + row * params.columns.y + token];
        }
        out[params.out.x + row * params.out.y] = select(token, NEVER, unusable);
        if (!greedy && !unusable) {
            ways[way + 4u] = state.x;
            ways[way + 5u] = state.y;
        }
    }
}
