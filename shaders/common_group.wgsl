// Tiles of PAIRS pairs sorted by expert. The shader that includes this defines PAIRS, binds `order` and `offsets` and has
// their windows, `top_k`, `first` and `count` in its parameters.

// The expert of a tile and its run of `order`: (expert, first, end).
fn find(tile: u32) -> vec3<u32> {
    if (SORTED == 0u) {
        let expert = order[params.order.x + tile / params.top_k * params.order.y + tile % params.top_k];
        return vec3<u32>(expert, tile, tile + 1u);
    }
    var before = 0u;
    for (var e = params.first; e < params.first + params.count; e++) {
        let first = offsets[params.offsets.x + e * params.offsets.y];
        let end = offsets[params.offsets.x + (e + 1u) * params.offsets.y];
        let tiles = (end - first + PAIRS - 1u) / PAIRS;
        if (tile < before + tiles) {
            let start = first + (tile - before) * PAIRS;
            return vec3<u32>(e, start, min(end, start + PAIRS));
        }
        before += tiles;
    }
    return vec3<u32>(0xffffffffu, 0u, 0u);
}

fn pair_at(place: u32) -> u32 {
    if (SORTED == 0u) {
        return place;
    }
    return order[params.order.x + place * params.order.y];
}
