/* The loops of loops.h. A file that includes this is compiled for one instruction set; it ends in
 * TP_LOOPS_TABLE, before which it defines `count`. */
#ifndef TP_STATS_LOOPS_BODY_H
#define TP_STATS_LOOPS_BODY_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "stats/convert.h"
#include "stats/loops.h"

/* After some steps a correction is 1, and there is nothing to divide. */
#define ADAM_LOOP(type, root, correct1, correct2)                                                  \
    for (size_t i = 0; i < n; i++) {                                                               \
        const type m = exp_avg[i] correct1;                                                        \
        const type deviation = root(exp_avg_sq[i] correct2);                                       \
        update[i] = m / (deviation + eps);                                                         \
        ratio[i] = m / deviation;                                                                  \
    }

#define ADAM(type, root)                                                                           \
    static void adam_##type(const type *restrict exp_avg, const type *restrict exp_avg_sq,         \
                            size_t n, const tp_adam_terms *terms, type *restrict update,           \
                            type *restrict ratio)                                                  \
    {                                                                                              \
        const type correction1 = (type)terms->correction1;                                         \
        const type correction2 = (type)terms->correction2;                                         \
        const type eps = (type)terms->eps;                                                         \
        if (correction1 == 1 && correction2 == 1) {                                                \
            ADAM_LOOP(type, root, , )                                                              \
        } else if (correction1 == 1) {                                                             \
            ADAM_LOOP(type, root, , / correction2)                                                 \
        } else {                                                                                   \
            ADAM_LOOP(type, root, / correction1, / correction2)                                    \
        }                                                                                          \
    }

ADAM(float, sqrtf)
ADAM(double, sqrt)

/* The counters are as wide as the elements, so that they fill vectors as the elements do. */
#define AGREE(type, counter)                                                                       \
    static void agree_##type(const type *restrict gradient, const type *restrict momentum,         \
                             size_t n, tp_agreement *out)                                          \
    {                                                                                              \
        counter same = 0;                                                                          \
        counter opposite = 0;                                                                      \
        counter nan = 0;                                                                           \
        for (size_t i = 0; i < n; i++) {                                                           \
            const type g = gradient[i];                                                            \
            const type m = momentum[i];                                                            \
            same += (counter)(((g > 0) & (m > 0)) | ((g < 0) & (m < 0)));                          \
            opposite += (counter)(((g > 0) & (m < 0)) | ((g < 0) & (m > 0)));                      \
            nan += (counter)((g != g) | (m != m));                                                 \
        }                                                                                          \
        out->same += same;                                                                         \
        out->opposite += opposite;                                                                 \
        out->nan += nan;                                                                           \
    }

AGREE(float, uint32_t)
AGREE(double, uint64_t)

#define WIDEN_HALVES(name, dtype)                                                                  \
    static void name(const void *from, size_t n, float *to)                                        \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            uint16_t bits;                                                                         \
            memcpy(&bits, (const uint8_t *)from + 2 * i, sizeof(bits));                            \
            to[i] = tp_half_value(dtype, bits);                                                    \
        }                                                                                          \
    }

WIDEN_HALVES(widen_f16, TP_F16)
WIDEN_HALVES(widen_bf16, TP_BF16)

static void widen_f32(const float *from, size_t n, double *to)
{
    for (size_t i = 0; i < n; i++) {
        to[i] = (double)from[i];
    }
}

#define BINS_PIECE 256

/* The number of the bin, in the order of torch.histc's arithmetic. A function of its own, whose
 * bounds come in registers: inlined, gcc moves their conversion into the loop, and it is no vector
 * any more. */
#define NUMBER(name, type, integer, operator)                                                      \
    __attribute__((noinline)) static void name(const type *restrict x, size_t n, type low,         \
                                               type high, type bins, type width, integer last,     \
                                               integer *restrict number)                           \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            const type from_low = x[i] > low ? x[i] : low; /* NaN becomes low */                   \
            const type inside = from_low < high ? from_low : high;                                 \
            const integer at = (integer)((inside - low) * bins operator width);                    \
            number[i] = at < last ? at : last;                                                     \
        }                                                                                          \
    }

NUMBER(divide_float, float, int32_t, /)
NUMBER(divide_double, double, int64_t, /)
NUMBER(multiply_float, float, int32_t, *)
NUMBER(multiply_double, double, int64_t, *)

/* Dividing by a power of two is multiplying by another. */
#define BINS(type, integer, frexp)                                                                 \
    static void bins_##type(const type *restrict x, size_t n, const tp_stats_options *options,     \
                            uint8_t *restrict bin)                                                 \
    {                                                                                              \
        const type low = (type)options->low;                                                       \
        const type high = (type)options->high;                                                     \
        const type width = high - low;                                                             \
        const type bins = (type)options->bin_count;                                                \
        const integer last = (integer)options->bin_count - 1;                                      \
        int exponent;                                                                              \
        const bool power = frexp(width, &exponent) == (type)0.5;                                   \
        const bool multiply = power && exponent > -100 && exponent < 100;                          \
        for (size_t start = 0; start < n; start += BINS_PIECE) {                                   \
            const size_t size = n - start < BINS_PIECE ? n - start : BINS_PIECE;                   \
            const type *from = x + start;                                                          \
            integer number[BINS_PIECE];                                                            \
            if (multiply) {                                                                        \
                multiply_##type(from, size, low, high, bins, 1 / width, last, number);             \
            } else {                                                                               \
                divide_##type(from, size, low, high, bins, width, last, number);                   \
            }                                                                                      \
            for (size_t i = 0; i < size; i++) { /* outside all bits become 1: TP_NO_BIN */         \
                const integer outside = (integer)((from[i] >= low) & (from[i] <= high)) - 1;       \
                bin[start + i] = (uint8_t)(number[i] | outside);                                   \
            }                                                                                      \
        }                                                                                          \
    }

BINS(float, int32_t, frexpf)
BINS(double, int64_t, frexp)

#define TP_LOOPS_TABLE(isa)                                                                        \
    const tp_loops *tp_loops_##isa(void)                                                           \
    {                                                                                              \
        static const tp_loops table = {                                                            \
            .adam_f32 = adam_float,                                                                \
            .adam_f64 = adam_double,                                                               \
            .agree_f32 = agree_float,                                                              \
            .agree_f64 = agree_double,                                                             \
            .widen_f16 = widen_f16,                                                                \
            .widen_bf16 = widen_bf16,                                                              \
            .widen_f32 = widen_f32,                                                                \
            .bins_f32 = bins_float,                                                                \
            .bins_f64 = bins_double,                                                               \
            .count = count,                                                                        \
        };                                                                                         \
        return &table;                                                                             \
    }

#endif
