// A norm with the products and the convolution that wait for it, up to 4 rows (common_norm_products.cuh).
#include "common_norm_products.cuh"

FORM(1, 4)
