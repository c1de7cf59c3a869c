// A norm with the BF16 and F32 products and the convolution that wait for it, up to 4 rows (common_norm_products.cuh).
#include "common_norm_products.cuh"

extern "C" __global__ void __launch_bounds__(256, 4) norm_products_lines(const __grid_constant__ NormProducts p) {
    products<1, true>(p);
}
