// What products of many rows are told.
#pragma once
#include "common.cuh"

// Twin of `Linear` in matmul_many.rs.
struct Linear {
    Window x;
    Bank w;
    const float* bias;
    Store how;
    Window out;
    u32 rows, unused;
};
