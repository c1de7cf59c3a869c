// What products with experts are told; moe_matmul.cu says what lies where.
#pragma once
#include "common.cuh"

// Twin of `Moe` in moe_matmul.rs.
struct Moe {
    Window x;
    Bank w;
    Window ids;
    const u32* order;
    const u32* offsets;
    u32 by_pair, function, pairs, unused;
    Window out;
};
