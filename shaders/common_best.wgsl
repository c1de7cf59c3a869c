// The best of what the 256 invocations of a workgroup hold.
var<workgroup> keys: array<u32, 256>;
var<workgroup> places: array<u32, 256>;

// Leaves it in entry 0: the largest key, of equals the lowest place.
fn reduce(lane: u32, key: u32, place: u32) {
    keys[lane] = key;
    places[lane] = place;
    for (var half = 128u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            let rival = keys[lane + half];
            let other = places[lane + half];
            if (rival > keys[lane] || (rival == keys[lane] && other < places[lane])) {
                keys[lane] = rival;
                places[lane] = other;
            }
        }
    }
    workgroupBarrier();
}
