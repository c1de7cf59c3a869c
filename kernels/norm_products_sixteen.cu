// A norm with the products and the convolution that wait for it, up to 16 rows (common_norm_products.cuh).
#include "common_norm_products.cuh"

FORM(4, 2)
