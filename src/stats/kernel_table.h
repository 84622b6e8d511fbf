/* How a kernel file ends: its functions as the table of one instruction set, and the look-up in it.
 * Before this the file has defined, for any dtype, `spread` and `find`, and for each of f64, f32,
 * f16 and bf16 <type>_clean, <type>_lean and <type>_masked. */
#ifndef TP_STATS_KERNEL_TABLE_H
#define TP_STATS_KERNEL_TABLE_H

#include "stats/block.h"
#include "stats/kernels.h"

/* All in one function: between the operations of a model, when nothing is in the nearest caches, as
 * few lines of code as can be are what counts. */
#define TP_WHOLE(type, TYPE)                                                                       \
    static __attribute__((flatten)) bool type##_whole(const void *data, size_t n,                  \
                                                      const tp_bounds *bounds, tp_stats *out)      \
    {                                                                                              \
        tp_block block;                                                                            \
        type##_clean(data, n, bounds, &block);                                                     \
        const double largest = tp_block_largest(&block);                                           \
        const double count = (double)n;                                                            \
        const bool halves = (TYPE) == TP_F16 || (TYPE) == TP_BF16;                                 \
        const uint64_t broken = block.nan | block.pos_inf | block.neg_inf; /* some kernels tell */ \
        if (broken != 0 || !(block.sum_sq < INFINITY) || (halves && tp_is_extreme(largest)) ||     \
            ((TYPE) == TP_F64 && tp_is_scaled(largest))) {                                         \
            return false;                                                                          \
        }                                                                                          \
        bool is_right = true;                                                                      \
        out->m2 = block.min == block.max ? 0.0 : tp_block_m2(&block, halves, count, &is_right);    \
        if (!is_right) {                                                                           \
            double moments[2];                                                                     \
            type##_spread(data, n, 1.0, block.sum / count, moments);                               \
            out->m2 = tp_moments_m2(moments, count);                                               \
        }                                                                                          \
        out->count = n;                                                                            \
        out->nan = out->pos_inf = out->neg_inf = 0;                                                \
        out->zeros = block.zeros;                                                                  \
        out->subnormal = block.subnormal;                                                          \
        out->min = out->finite_min = block.min;                                                    \
        out->max = out->finite_max = block.max;                                                    \
        out->abs_max = largest;                                                                    \
        out->abs_max_index = find(TYPE, data, n, largest);                                         \
        out->sum = block.sum;                                                                      \
        out->sum_abs = block.sum_abs;                                                              \
        out->sum_sq = block.sum_sq;                                                                \
        out->sq_exp = 0;                                                                           \
        return true;                                                                               \
    }

#define TP_SPREAD_FIND(type, TYPE)                                                                 \
    static __attribute__((noinline)) void type##_spread(const void *data, size_t n, double scale,  \
                                                        double pivot, double moments[2])           \
    {                                                                                              \
        spread(TYPE, data, n, scale, pivot, moments);                                              \
    }                                                                                              \
    static size_t type##_find(const void *data, size_t n, double magnitude)                        \
    {                                                                                              \
        return find(TYPE, data, n, magnitude);                                                     \
    }                                                                                              \
    TP_WHOLE(type, TYPE)

#define TP_KERNEL_ROW(type, isa)                                                                   \
    {                                                                                              \
        .name = #type "_" #isa, .clean = type##_clean, .lean = type##_lean,                        \
        .masked = type##_masked, .spread = type##_spread, .find = type##_find,                     \
        .whole = type##_whole                                                                      \
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
