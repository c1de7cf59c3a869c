// What the forms of gated_norm_matmul share.
#pragma once
#include "common.cuh"

// Twin of `GatedProduct` in gated_norm_matmul.rs.
struct GatedProduct {
    Window y, z;
    const float* gain;
    u32 norm_groups, gate_first;
    float eps;
    u32 rows;
    Bank w;
    const float* bias;
    Store how;
    Window out;
    u32 groups, splits;
};
