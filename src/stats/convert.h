/* Elements that have no kernel of their own: read as f64 and given to the kernel of f64. */
#ifndef TP_STATS_CONVERT_H
#define TP_STATS_CONVERT_H

#include <stddef.h>
#include <stdint.h>

/* Integers become the nearest f64 (exact below 2^53), a complex number its modulus: Inf or NaN if a
 * part is, NaN if both. data needs no alignment. */
typedef void (*tp_convert)(const void *data, size_t n, double *out);

/* The conversion of a dtype of 16 bits or more that has no kernel; else NULL. */
tp_convert tp_convert_of(uint32_t dtype);

#endif
