/* What is known of dtypes beyond the public header. */
#ifndef TP_TENSOR_DTYPE_H
#define TP_TENSOR_DTYPE_H

#include "tensorprobe/tensor.h"

/* The largest finite number of a floating-point dtype; NaN of one without, or whose limit hasn't
 * been needed. */
double tp_dtype_limit(uint32_t dtype);

#endif
