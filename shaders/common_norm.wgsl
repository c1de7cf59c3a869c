// What the norms share: the sum of squares of a group by one workgroup of THREADS, four loads of an invocation in flight.
// The shader that includes this defines squared(at, col): the square of column col of the group whose first is `at`.

var<workgroup> sums: array<f32, THREADS>;

fn sum_of_squares(at: u32, width: u32, lane: u32) -> f32 {
    let last = width - 1u;
    var four = vec4<f32>();
    for (var c = lane; c < width; c += 4u * THREADS) {
        let near = squared(at, c);
        let second = squared(at, min(c + THREADS, last));
        let third = squared(at, min(c + 2u * THREADS, last));
        let far = squared(at, min(c + 3u * THREADS, last));
        four.x += near;
        four.y += select(0.0, second, c + THREADS < width);
        four.z += select(0.0, third, c + 2u * THREADS < width);
        four.w += select(0.0, far, c + 3u * THREADS < width);
    }
    sums[lane] = four.x + four.y + four.z + four.w;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            sums[lane] += sums[lane + half];
        }
    }
    workgroupBarrier();
    return sums[0];
}
