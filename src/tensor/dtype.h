/* What is known of dtypes beyond the public header. */
#ifndef TP_TENSOR_DTYPE_H
#define TP_TENSOR_DTYPE_H

#include <stdbool.h>

#include "tensorprobe/tensor.h"

/* The largest finite number of a floating-point dtype; NaN of one without: complex numbers, and
 * f8_e8m0fnu. */
double tp_dtype_limit(uint32_t dtype);

/* Its normal numbers lie in 2^smallest <= |x| < 2^(largest + 1). False: as above. */
bool tp_dtype_exponents(uint32_t dtype, int *smallest, int *largest);

#endif
