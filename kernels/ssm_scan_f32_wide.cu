// Mamba2's recurrence, one state a head (common_scan_rows.cuh has the formula): f32 activations, 16 and 32 lanes a row.
#include "common_scan_rows.cuh"

WIDE_FORMS(f32, float)
