/* How a kernel file ends: its functions as the table of one instruction set, and the look-up in it.
 * Before this the file has defined, for any dtype, `spread` and `find`, and for each of f64, f32,
 * f16 and bf16 <type>_clean, <type>_lean and <type>_masked. */
#ifndef TP_STATS_KERNEL_TABLE_H
#define TP_STATS_KERNEL_TABLE_H

#include "stats/kernels.h"

#define TP_SPREAD_FIND(type, TYPE)                                                                 \
    static void type##_spread(const void *data, size_t n, double scale, double pivot,              \
                              double moments[2])                                                   \
    {                                                                                              \
        spread(TYPE, data, n, scale, pivot, moments);                                              \
    }                                                                                              \
    static size_t type##_find(const void *data, size_t n, double magnitude)                        \
    {                                                                                              \
        return find(TYPE, data, n, magnitude);                                                     \
    }

#define TP_KERNEL_ROW(type, isa)                                                                   \
    {                                                                                              \
        .name = #type "_" #isa, .clean = type##_clean, .lean = type##_lean,                        \
        .masked = type##_masked, .spread = type##_spread, .find = type##_find                      \
    }

#define TP_KERNEL_TABLE(isa)                                                                       \
    TP_SPREAD_FIND(f64, TP_F64)                                                                    \
    TP_SPREAD_FIND(f32, TP_F32)                                                                    \
    TP_SPREAD_FIND(f16, TP_F16)                                                                    \
    TP_SPREAD_FIND(bf16, TP_BF16)                                                                  \
    static const tp_kernel table[] = {                                                             \
        [TP_F64] = TP_KERNEL_ROW(f64, isa),                                                        \
        [TP_F32] = TP_KERNEL_ROW(f32, isa),                                                        \
        [TP_F16] = TP_KERNEL_ROW(f16, isa),                                                        \
        [TP_BF16] = TP_KERNEL_ROW(bf16, isa),                                                      \
    };                                                                                             \
    const tp_kernel *tp_kernel_##isa(uint32_t dtype)                                               \
    {                                                                                              \
        return dtype > TP_DTYPE_NONE && dtype <= TP_BF16 ? &table[dtype] : NULL;                   \
    }

/* For a build without the instruction set. */
#define TP_KERNEL_ABSENT(isa)                                                                      \
    const tp_kernel *tp_kernel_##isa(uint32_t dtype)                                               \
    {                                                                                              \
        (void)dtype;                                                                               \
        return NULL;                                                                               \
    }

#endif
