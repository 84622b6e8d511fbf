/* The kernels in plain C: the specification of the others. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "stats/kernel_inline.h"
#include "stats/kernel_table.h"

/* IEEE 754 binary16, exactly. */
INLINE double f16_value(uint16_t bits)
{
    const int exponent = bits >> 10 & 0x1f;
    const uint64_t fraction = bits & 0x3ff;
    const uint64_t sign = (uint64_t)(bits >> 15) << 63;
    uint64_t wide;
    if (exponent == 0) {
        const double value = (double)fraction * 0x1p-24;
        memcpy(&wide, &value, sizeof(wide));
    } else {
        const uint64_t wide_exponent = exponent == 0x1f ? 0x7ff : (uint64_t)(exponent - 15 + 1023);
        wide = wide_exponent << 52 | fraction << 42;
    }
    wide |= sign;
    double value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

INLINE double load(uint32_t dtype, const uint8_t *data, size_t i)
{
    double f64;
    float f32;
    uint16_t half;
    uint32_t bits;
    switch (dtype) {
    case TP_F64:
        memcpy(&f64, data + 8 * i, sizeof(f64));
        return f64;
    case TP_F32:
        memcpy(&f32, data + 4 * i, sizeof(f32));
        return f32;
    case TP_F16:
        memcpy(&half, data + 2 * i, sizeof(half));
        return f16_value(half);
    default: /* TP_BF16 */
        memcpy(&half, data + 2 * i, sizeof(half));
        bits = (uint32_t)half << 16;
        memcpy(&f32, &bits, sizeof(f32));
        return f32;
    }
}

static double lanes_sum(const double lane[TP_LANES])
{
    double sum[TP_LANES];
    memcpy(sum, lane, sizeof(sum));
    for (int half = TP_LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) {
            sum[l] += sum[l + half];
        }
    }
    return sum[0];
}

INLINE void masked(uint32_t dtype, const uint8_t *data, size_t n, const tp_bounds *bounds,
                   double scale, tp_block *out)
{
    double sum[TP_LANES] = {0};
    double sum_abs[TP_LANES] = {0};
    double sum_sq[TP_LANES] = {0};
    *out = (tp_block){.min = INFINITY, .max = -INFINITY};
    for (size_t i = 0; i < n; i++) {
        const double x = load(dtype, data, i);
        const double magnitude = fabs(x);
        const int lane = (int)(i % TP_LANES);
        out->zeros += magnitude < bounds->eps;
        out->subnormal += magnitude > 0.0 && magnitude < bounds->normal;
        if (!(magnitude < INFINITY)) {
            out->nan += magnitude != magnitude;
            out->pos_inf += x == INFINITY;
            out->neg_inf += x == -INFINITY;
            continue;
        }
        out->min = x < out->min ? x : out->min;
        out->max = x > out->max ? x : out->max;
        sum[lane] += x * scale;
        sum_abs[lane] += magnitude * scale;
        sum_sq[lane] += (x * scale) * (x * scale);
    }
    out->sum = lanes_sum(sum);
    out->sum_abs = lanes_sum(sum_abs);
    out->sum_sq = lanes_sum(sum_sq);
    out->min += 0.0; /* -0 becomes +0 */
    out->max += 0.0;
}

INLINE float tree(const float x[8])
{
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

/* Blocks of f16 and bf16 without NaN and Inf: eight elements are added in f32, then one to a lane.
 * Lane l takes the pairs that lie side by side in a vector register once it is made floats: every
 * 16 elements (f16), or even and odd (bf16). */
INLINE void half_sums(uint32_t dtype, const uint8_t *data, size_t n, tp_block *out)
{
    double sum[TP_LANES] = {0};
    double sum_abs[TP_LANES] = {0};
    double sum_sq[TP_LANES] = {0};
    for (size_t group = 0; group < n; group += TP_HALVES) {
        for (size_t lane = 0; lane < TP_LANES; lane++) {
            float x[8];
            float magnitude[8];
            float square[8];
            for (size_t v = 0; v < 8; v++) {
                const size_t i = group + 32 * (v / 2) +
                                 (dtype == TP_F16 ? lane + 16 * (v % 2) : 2 * lane + v % 2);
                x[v] = i < n ? (float)load(dtype, data, i) : 0.0F;
                magnitude[v] = fabsf(x[v]);
                square[v] = x[v] * x[v];
            }
            sum[lane] += (double)tree(x);
            sum_abs[lane] += (double)tree(magnitude);
            sum_sq[lane] += (double)tree(square);
        }
    }
    out->sum = lanes_sum(sum);
    out->sum_abs = lanes_sum(sum_abs);
    out->sum_sq = lanes_sum(sum_sq);
}

INLINE void spread(uint32_t dtype, const uint8_t *data, size_t n, double scale, double pivot,
                   double moments[2])
{
    double first[TP_LANES] = {0};
    double second[TP_LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        const double x = load(dtype, data, i);
        if (fabs(x) < INFINITY) {
            const double d = x * scale - pivot;
            first[i % TP_LANES] += d;
            second[i % TP_LANES] += d * d;
        }
    }
    moments[0] = lanes_sum(first);
    moments[1] = lanes_sum(second);
}

INLINE size_t find(uint32_t dtype, const uint8_t *data, size_t n, double magnitude)
{
    size_t i = 0;
    while (i < n && fabs(load(dtype, data, i)) != magnitude) {
        i++;
    }
    return i;
}

#define KERNEL(type, TYPE)                                                                         \
    static void type##_masked(const void *data, size_t n, const tp_bounds *bounds, double scale,   \
                              tp_block *out)                                                       \
    {                                                                                              \
        masked(TYPE, data, n, bounds, scale, out);                                                 \
    }                                                                                              \
    static void type##_clean(const void *data, size_t n, const tp_bounds *bounds, tp_block *out)   \
    {                                                                                              \
        masked(TYPE, data, n, bounds, 1.0, out);                                                   \
        if (TYPE == TP_F16 || TYPE == TP_BF16) {                                                   \
            half_sums(TYPE, data, n, out);                                                         \
        }                                                                                          \
    }

KERNEL(f64, TP_F64)
KERNEL(f32, TP_F32)
KERNEL(f16, TP_F16)
KERNEL(bf16, TP_BF16)

/* None: they would gain little. */
#define f64_lean NULL
#define f32_lean NULL
#define f16_lean NULL
#define bf16_lean NULL

TP_KERNEL_TABLE(scalar)
