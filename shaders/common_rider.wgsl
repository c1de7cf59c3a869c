// A product of f32 weights with the one normed row, by workgroups of their own behind those of the product that it rides
// with: a subgroup an output, x read where it lies.
@group(0) @binding(8) var<storage, read> rider: array<vec4<f32>>; // [rider_outputs, units * FOURS]
@group(0) @binding(9) var<storage, read_write> rider_out: array<f32>; // [1, rider_outputs]

const AHEAD: u32 = 7u; // fours of the weight in flight

fn spare(i: u32, width: u32, which: u32, lane: u32) {
    let blocks = (params.outputs + width - 1u) / width;
    let output = (i - blocks) * (THREADS / SUBGROUP) + which;
    let fours = params.units * FOURS;
    let at = min(output, params.rider_outputs - 1u) * fours;
    var sum = 0.0;
    var total = 0.0;
    for (var first = lane; first < fours; first += AHEAD * SUBGROUP) {
        var w: array<vec4<f32>, AHEAD>;
        for (var k = 0u; k < AHEAD; k++) {
            w[k] = rider[at + min(first + k * SUBGROUP, fours - 1u)];
        }
        for (var k = 0u; k < AHEAD; k++) {
            let col = first + k * SUBGROUP;
            if (col < fours) {
                let four = x_four(0u, col);
                sum += dot(w[k], four * gain(col));
                total += dot(four, four);
            }
        }
    }
    let product = subgroupAdd(sum);
    let squares_of_row = subgroupAdd(total);
    if (lane == 0u && output < params.rider_outputs) {
        rider_out[params.rider_out.x + output] = product * factor(squares_of_row);
    }
}
