// Mamba2's recurrence, one state a head (common_scan_rows.cuh has the formula): bf16 activations, up to 8 lanes a row.
#include "common_scan_rows.cuh"

FORMS(bf16, u16)
