// What the forms of norm_products share.
#pragma once
#include "common.cuh"

// Twin of `Conv` in norm_products.rs.
struct Conv {
    const float* weight;
    const float* bias;
    Window state, out;
    const RowPlace* places;
    u32 first, channels, width, function;
};
