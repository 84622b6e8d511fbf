/* Elements that have no kernel of their own: read as f64 and given to the kernel of f64. */
#ifndef TP_STATS_CONVERT_H
#define TP_STATS_CONVERT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tensorprobe/tensor.h"

/* Integers become the nearest f64 (exact below 2^53), a complex number its modulus: Inf or NaN if a
 * part is, NaN if both. data needs no alignment. */
typedef void (*tp_convert)(const void *data, size_t n, double *out);

/* The conversion of a dtype of 16 bits or more that has no kernel; else NULL. */
tp_convert tp_convert_of(uint32_t dtype);

/* The value of a f16 or bf16. */
static inline float tp_half_value(uint32_t dtype, uint16_t half)
{
    float x;
    uint32_t bits = (uint32_t)half << 16;
    if (dtype == TP_BF16) {
        memcpy(&x, &bits, sizeof(x));
        return x;
    }
    /* As if the exponent were that of an f32, then put right by a multiplication, which is exact;
     * only Inf and NaN need another exponent. */
    bits = (uint32_t)(half & 0x7fff) << 13;
    memcpy(&x, &bits, sizeof(x));
    x *= 0x1p112F;
    memcpy(&bits, &x, sizeof(bits));
    bits |= x >= 0x1p16F ? 0x7f800000U : 0;
    bits |= (uint32_t)(half & 0x8000) << 16;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

#endif
