/* Where a tensor is broken. */
#ifndef TP_RECORD_ELEMENT_H
#define TP_RECORD_ELEMENT_H

#include <stdbool.h>

#include "tensorprobe/tensor.h"

/* The row-major index of the first NaN or infinity in the traversal, and its pattern. False: there
 * is none among so many elements, or the dtype isn't one of f64, f32, f16 and bf16. *looked: how
 * many have been looked at. */
bool tp_element_find(const tp_tensor *tensor, uint64_t most, uint64_t *looked, uint64_t *index,
                     uint64_t *bits);

#endif
