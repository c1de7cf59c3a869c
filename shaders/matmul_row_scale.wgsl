// out[row] = the power of two that brings the largest |x[row]| to between 2^14 and 2^15: the scale of a row whose elements
// become halves. 1 where the row is zero or not finite. One workgroup of 256 a row, in fours.
struct Params { x: vec2<u32>, rows: u32, fours: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>; // [rows, fours]
@group(0) @binding(2) var<storage, read_write> out: array<f32>; // [rows]

var<workgroup> largest: array<u32, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = flat(group, count);
    if (row >= params.rows) {
        return;
    }
    let first = (params.x.x + row * params.x.y) >> 2u;
    // The bits of magnitudes have the order of their values, NaN above all.
    var own = 0u;
    for (var c = lane; c < params.fours; c += 256u) {
        let bits = bitcast<vec4<u32>>(x[first + c]) & vec4<u32>(0x7fffffffu);
        own = max(own, max(max(bits.x, bits.y), max(bits.z, bits.w)));
    }
    largest[lane] = own;
    for (var half = 128u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            largest[lane] = max(largest[lane], largest[lane + half]);
        }
    }
    workgroupBarrier();
    if (lane == 0u) {
        let exponent = largest[0] >> 23u;
        // 2^(14 - e) has the biased exponent 127 + 14 - (exponent - 127); both ends stay normal numbers.
        let scale = clamp(268u - min(exponent, 254u), 14u, 240u);
        out[row] = bitcast<f32>(select(scale, 127u, exponent == 0u || exponent == 255u) << 23u);
    }
}
