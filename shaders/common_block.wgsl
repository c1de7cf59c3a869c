// Products of ROWS rows of x (1 to 8) and eight outputs by one invocation, four columns a turn, without barriers: for
// software adapters. There a lane's load of one word costs as much as a dozen products, so every word that is loaded meets
// all rows or all outputs of the block; a workgroup with a barrier costs more than all of that. f32 accumulation.
//
// The shader that includes this binds `weight` and `scales` as words and `x` in fours.

// Elements 4 i to 4 i + 3 of the weight.
fn weights_at(i: u32) -> vec4<f32> {
    if (FORMAT == F32) {
        let w = 4u * i;
        return bitcast<vec4<f32>>(vec4<u32>(weight[w], weight[w + 1u], weight[w + 2u], weight[w + 3u]));
    }
    if (FORMAT == FP8) {
        return e4m3_four(weight[i]);
    }
    if (FORMAT == NVFP4) {
        let byte = (scales[i >> 4u] >> (((i >> 2u) & 3u) * 8u)) & 0xffu;
        return e2m1_eight(weight[i >> 1u] >> ((i & 1u) * 16u))[0] * block_scale(byte);
    }
    return vec4<f32>(half_pair(weight[2u * i]), half_pair(weight[2u * i + 1u]));
}

// Four elements of four outputs, as the factor that takes four elements of x to four sums.
fn factor(first: vec4<u32>, col: u32) -> mat4x4<f32> {
    return transpose(mat4x4<f32>(
        weights_at(first.x + col), weights_at(first.y + col), weights_at(first.z + col), weights_at(first.w + col),
    ));
}

// Two fours of sums a row. `near` and `far` say where rows 0 to 3 and 4 to 7 of x begin, `low` and `high` where the first
// four and the last four outputs do, all in fours.
fn products(fours: u32, near: vec4<u32>, far: vec4<u32>, low: vec4<u32>, high: vec4<u32>) -> array<vec4<f32>, 16> {
    var a0 = vec4<f32>();
    var a1 = vec4<f32>();
    var a2 = vec4<f32>();
    var a3 = vec4<f32>();
    var a4 = vec4<f32>();
    var a5 = vec4<f32>();
    var a6 = vec4<f32>();
    var a7 = vec4<f32>();
    var b0 = vec4<f32>();
    var b1 = vec4<f32>();
    var b2 = vec4<f32>();
    var b3 = vec4<f32>();
    var b4 = vec4<f32>();
    var b5 = vec4<f32>();
    var b6 = vec4<f32>();
    var b7 = vec4<f32>();
    for (var col = 0u; col < fours; col++) {
        let w = factor(low, col);
        let v = factor(high, col);
        let x0 = x[near.x + col];
        a0 += w * x0;
        b0 += v * x0;
        if (ROWS > 1u) {
            let x1 = x[near.y + col];
            a1 += w * x1;
            b1 += v * x1;
        }
        if (ROWS > 2u) {
            let x2 = x[near.z + col];
            a2 += w * x2;
            b2 += v * x2;
            let x3 = x[near.w + col];
            a3 += w * x3;
            b3 += v * x3;
        }
        if (ROWS > 4u) {
            let x4 = x[far.x + col];
            a4 += w * x4;
            b4 += v * x4;
            let x5 = x[far.y + col];
            a5 += w * x5;
            b5 += v * x5;
            let x6 = x[far.z + col];
            a6 += w * x6;
            b6 += v * x6;
            let x7 = x[far.w + col];
            a7 += w * x7;
            b7 += v * x7;
        }
    }
    return array<vec4<f32>, 16>(a0, b0, a1, b1, a2, b2, a3, b3, a4, b4, a5, b5, a6, b6, a7, b7);
}
