/* The kernels with NEON, for AArch64. kernel_scalar.c says what they compute. */
#include "stats/kernel_table.h"

#if defined(__aarch64__)

#include <arm_neon.h>
#include <math.h>
#include <stdbool.h>

#include "stats/kernel_inline.h"

/* 16 lanes of f64: vector v holds lanes 2v and 2v + 1. */
typedef struct lanes {
    float64x2_t v[8];
} lanes;

typedef struct sums {
    lanes sum;
    lanes sum_abs;
    lanes sum_sq;
} sums;

/* Counts per 32-bit lane (f64: per 64-bit lane). */
typedef struct counts {
    uint64x2_t nan;
    uint64x2_t pos_inf;
    uint64x2_t neg_inf;
    uint64x2_t zeros;
    uint64x2_t subnormal;
} counts;

INLINE lanes lanes_zero(void)
{
    const float64x2_t zero = vdupq_n_f64(0.0);
    return (lanes){{zero, zero, zero, zero, zero, zero, zero, zero}};
}

INLINE double lanes_sum(const lanes *x)
{
    float64x2_t v[4];
    for (int k = 0; k < 4; k++) {
        v[k] = vaddq_f64(x->v[k], x->v[k + 4]);
    }
    const float64x2_t two = vaddq_f64(vaddq_f64(v[0], v[2]), vaddq_f64(v[1], v[3]));
    return vgetq_lane_f64(two, 0) + vgetq_lane_f64(two, 1);
}

/* Elements 4q to 4q + 3 of a group as floats. */
INLINE float32x4_t load_floats(uint32_t dtype, const uint8_t *at)
{
    if (dtype == TP_F32) {
        return vreinterpretq_f32_u8(vld1q_u8(at));
    }
    const uint8x8_t half = vld1_u8(at);
    return dtype == TP_F16 ? vcvt_f32_f16(vreinterpret_f16_u8(half))
                           : vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(half), 16));
}

INLINE lanes load_lanes(uint32_t dtype, const uint8_t *at)
{
    lanes x;
    UNROLL
    for (int q = 0; q < 4; q++) {
        if (dtype == TP_F64) {
            x.v[2 * q] = vreinterpretq_f64_u8(vld1q_u8(at + 32 * q));
            x.v[2 * q + 1] = vreinterpretq_f64_u8(vld1q_u8(at + 32 * q + 16));
        } else {
            const float32x4_t four = load_floats(dtype, at + 4 * (size_t)q * size_of(dtype));
            x.v[2 * q] = vcvt_f64_f32(vget_low_f32(four));
            x.v[2 * q + 1] = vcvt_high_f64_f32(four);
        }
    }
    return x;
}

/* The square of a float is exact in f64, so that rounding once or twice is the same. */
INLINE void add(sums *s, int v, float64x2_t x)
{
    s->sum.v[v] = vaddq_f64(s->sum.v[v], x);
    s->sum_abs.v[v] = vaddq_f64(s->sum_abs.v[v], vabsq_f64(x));
    s->sum_sq.v[v] = vaddq_f64(s->sum_sq.v[v], vmulq_f64(x, x));
}

INLINE uint64x2_t count32(uint64x2_t counter, uint32x4_t elements)
{
    return vreinterpretq_u64_u32(vsubq_u32(vreinterpretq_u32_u64(counter), elements));
}

INLINE uint64_t total(uint64x2_t counter, bool wide)
{
    return wide ? vaddvq_u64(counter) : vaddlvq_u32(vreinterpretq_u32_u64(counter));
}

INLINE void store(const sums *s, const counts *c, double min, double max, bool wide, tp_block *out)
{
    *out = (tp_block){
        .nan = total(c->nan, wide),
        .pos_inf = total(c->pos_inf, wide),
        .neg_inf = total(c->neg_inf, wide),
        .zeros = total(c->zeros, wide),
        .subnormal = total(c->subnormal, wide),
        .min = min + 0.0, /* -0 becomes +0 */
        .max = max + 0.0,
        .sum = lanes_sum(&s->sum),
        .sum_abs = lanes_sum(&s->sum_abs),
        .sum_sq = lanes_sum(&s->sum_sq),
    };
}

typedef struct pass32 {
    sums s;
    counts c;
    float32x4_t min;
    float32x4_t max;
    float32x4_t eps;
    uint32x4_t normal_less_1; /* bits of the smallest normal number, less 1 */
} pass32;

INLINE pass32 pass32_open(const tp_bounds *bounds)
{
    const uint64x2_t none = vdupq_n_u64(0);
    const uint32x4_t normal = vreinterpretq_u32_f32(vdupq_n_f32((float)bounds->normal));
    return (pass32){
        .s = {lanes_zero(), lanes_zero(), lanes_zero()},
        .c = {none, none, none, none, none},
        .min = vdupq_n_f32(INFINITY),
        .max = vdupq_n_f32(-INFINITY),
        .eps = vdupq_n_f32((float)bounds->eps),
        .normal_less_1 = vsubq_u32(normal, vdupq_n_u32(1)),
    };
}

/* Counts and extremes of four elements, of which the first `left` are there and the others are 0;
 * returns them with 0 for what is not finite. */
INLINE float32x4_t look32(pass32 *p, float32x4_t x, size_t left, bool full, bool clean)
{
    static const uint32_t numbers[] = {0, 1, 2, 3};
    const uint32x4_t valid =
        full ? vdupq_n_u32(UINT32_MAX) : vcltq_u32(vld1q_u32(numbers), vdupq_n_u32((uint32_t)left));
    const float32x4_t magnitude = vabsq_f32(x);
    const uint32x4_t bits = vreinterpretq_u32_f32(magnitude);
    p->c.zeros = count32(p->c.zeros, vandq_u32(valid, vcltq_f32(magnitude, p->eps)));
    /* 0 < bits < normal in one comparison: 0 wraps round to the largest number. */
    p->c.subnormal =
        count32(p->c.subnormal, vcltq_u32(vsubq_u32(bits, vdupq_n_u32(1)), p->normal_less_1));
    uint32x4_t counted = valid;
    if (!clean) {
        const float32x4_t infinite = vdupq_n_f32(INFINITY);
        const uint32x4_t finite = vcltq_f32(magnitude, infinite);
        p->c.nan = count32(p->c.nan, vmvnq_u32(vceqq_f32(x, x)));
        p->c.pos_inf = count32(p->c.pos_inf, vceqq_f32(x, infinite));
        p->c.neg_inf = count32(p->c.neg_inf, vceqq_f32(x, vdupq_n_f32(-INFINITY)));
        x = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), finite));
        counted = vandq_u32(valid, finite);
    }
    p->min = vminq_f32(p->min, vbslq_f32(counted, x, vdupq_n_f32(INFINITY)));
    p->max = vmaxq_f32(p->max, vbslq_f32(counted, x, vdupq_n_f32(-INFINITY)));
    return x;
}

INLINE size_t after(size_t left, size_t start)
{
    return left > start ? left - start : 0;
}

INLINE void step32(pass32 *p, uint32_t dtype, const uint8_t *at, size_t left, bool full, bool clean)
{
    UNROLL
    for (int q = 0; q < 4; q++) {
        const size_t start = 4 * (size_t)q;
        const float32x4_t x = load_floats(dtype, at + start * size_of(dtype));
        const float32x4_t y = look32(p, x, after(left, start), full, clean);
        add(&p->s, 2 * q, vcvt_f64_f32(vget_low_f32(y)));
        add(&p->s, 2 * q + 1, vcvt_high_f64_f32(y));
    }
}

INLINE void block32(uint32_t dtype, bool clean, const uint8_t *data, size_t n,
                    const tp_bounds *bounds, tp_block *out)
{
    const size_t size = size_of(dtype);
    pass32 p = pass32_open(bounds);
    size_t i = 0;
    for (; i + TP_LANES <= n; i += TP_LANES) {
        step32(&p, dtype, data + i * size, TP_LANES, true, clean);
    }
    if (i < n) {
        uint8_t group[TP_LANES * sizeof(float)];
        const uint8_t *at = pad(group, sizeof(group), data + i * size, (n - i) * size);
        step32(&p, dtype, at, n - i, false, clean);
    }
    store(&p.s, &p.c, (double)vminvq_f32(p.min), (double)vmaxvq_f32(p.max), false, out);
}

INLINE float32x4_t tree(const float32x4_t x[8])
{
    return vaddq_f32(vaddq_f32(vaddq_f32(x[0], x[1]), vaddq_f32(x[2], x[3])),
                     vaddq_f32(vaddq_f32(x[4], x[5]), vaddq_f32(x[6], x[7])));
}

/* To lanes 4q to 4q + 3. */
INLINE void add_partial(lanes *sum, int q, float32x4_t partial)
{
    sum->v[2 * q] = vaddq_f64(sum->v[2 * q], vcvt_f64_f32(vget_low_f32(partial)));
    sum->v[2 * q + 1] = vaddq_f64(sum->v[2 * q + 1], vcvt_high_f64_f32(partial));
}

/* TP_HALVES elements, of which `left` are there and the others are 0. */
INLINE void step16(pass32 *p, uint32_t dtype, const uint8_t *at, size_t left, bool full)
{
    UNROLL
    for (int q = 0; q < 4; q++) {
        float32x4_t x[8];
        float32x4_t y[8];
        UNROLL
        for (int v = 0; v < 8; v++) {
            if (dtype == TP_F16) {
                const size_t start = 16 * (size_t)v + 4 * (size_t)q;
                x[v] = load_floats(dtype, at + 2 * start);
                (void)look32(p, x[v], after(left, start), full, true);
            } else {
                const size_t start = 32 * (size_t)(v / 2) + 8 * (size_t)q;
                const uint32x4_t pairs = vreinterpretq_u32_u8(vld1q_u8(at + 2 * start));
                x[v] =
                    vreinterpretq_f32_u32(v % 2 == 0 ? vshlq_n_u32(pairs, 16)
                                                     : vandq_u32(pairs, vdupq_n_u32(0xffff0000)));
                /* Of the even ones and the odd ones there are these. */
                const size_t there = (after(left, start) + (v % 2 == 0)) / 2;
                (void)look32(p, x[v], there, full, true);
            }
        }
        add_partial(&p->s.sum, q, tree(x));
        UNROLL
        for (int v = 0; v < 8; v++) {
            y[v] = vabsq_f32(x[v]);
        }
        add_partial(&p->s.sum_abs, q, tree(y));
        UNROLL
        for (int v = 0; v < 8; v++) {
            y[v] = vmulq_f32(x[v], x[v]);
        }
        add_partial(&p->s.sum_sq, q, tree(y));
    }
}

INLINE void block16(uint32_t dtype, const uint8_t *data, size_t n, const tp_bounds *bounds,
                    tp_block *out)
{
    pass32 p = pass32_open(bounds);
    size_t i = 0;
    for (; i + TP_HALVES <= n; i += TP_HALVES) {
        step16(&p, dtype, data + 2 * i, TP_HALVES, true);
    }
    if (i < n) {
        uint8_t group[2 * TP_HALVES];
        step16(&p, dtype, pad(group, sizeof(group), data + 2 * i, 2 * (n - i)), n - i, false);
    }
    store(&p.s, &p.c, (double)vminvq_f32(p.min), (double)vmaxvq_f32(p.max), false, out);
}

typedef struct pass64 {
    sums s;
    counts c;
    float64x2_t min;
    float64x2_t max;
    float64x2_t eps;
    uint64x2_t normal_less_1;
    double scale;
} pass64;

INLINE uint64x2_t valid64(size_t left, int v)
{
    static const uint64_t numbers[] = {0, 1};
    return vcltq_u64(vld1q_u64(numbers), vdupq_n_u64(after(left, 2 * (size_t)v)));
}

INLINE float64x2_t masked64(float64x2_t x, uint64x2_t mask)
{
    return vreinterpretq_f64_u64(vandq_u64(vreinterpretq_u64_f64(x), mask));
}

INLINE void step64(pass64 *p, const lanes *group, size_t left, bool full, bool clean)
{
    UNROLL
    for (int v = 0; v < 8; v++) {
        float64x2_t x = group->v[v];
        const uint64x2_t valid = full ? vdupq_n_u64(UINT64_MAX) : valid64(left, v);
        const float64x2_t magnitude = vabsq_f64(x);
        const uint64x2_t bits = vreinterpretq_u64_f64(magnitude);
        p->c.zeros = vsubq_u64(p->c.zeros, vandq_u64(valid, vcltq_f64(magnitude, p->eps)));
        p->c.subnormal =
            vsubq_u64(p->c.subnormal, vcltq_u64(vsubq_u64(bits, vdupq_n_u64(1)), p->normal_less_1));
        uint64x2_t counted = valid;
        if (!clean) {
            const float64x2_t infinite = vdupq_n_f64(INFINITY);
            const uint64x2_t finite = vcltq_f64(magnitude, infinite);
            const uint64x2_t number = vceqq_f64(x, x);
            p->c.nan = vaddq_u64(p->c.nan, vaddq_u64(number, vdupq_n_u64(1)));
            p->c.pos_inf = vsubq_u64(p->c.pos_inf, vceqq_f64(x, infinite));
            p->c.neg_inf = vsubq_u64(p->c.neg_inf, vceqq_f64(x, vdupq_n_f64(-INFINITY)));
            x = masked64(x, finite);
            counted = vandq_u64(valid, finite);
        }
        p->min = vminq_f64(p->min, vbslq_f64(counted, x, vdupq_n_f64(INFINITY)));
        p->max = vmaxq_f64(p->max, vbslq_f64(counted, x, vdupq_n_f64(-INFINITY)));
        add(&p->s, v, clean ? x : vmulq_n_f64(x, p->scale));
    }
}

INLINE void block64(bool clean, const uint8_t *data, size_t n, const tp_bounds *bounds,
                    double scale, tp_block *out)
{
    const uint64x2_t none = vdupq_n_u64(0);
    const uint64x2_t normal = vreinterpretq_u64_f64(vdupq_n_f64(bounds->normal));
    pass64 p = {
        .s = {lanes_zero(), lanes_zero(), lanes_zero()},
        .c = {none, none, none, none, none},
        .min = vdupq_n_f64(INFINITY),
        .max = vdupq_n_f64(-INFINITY),
        .eps = vdupq_n_f64(bounds->eps),
        .normal_less_1 = vsubq_u64(normal, vdupq_n_u64(1)),
        .scale = scale,
    };
    size_t i = 0;
    for (; i + TP_LANES <= n; i += TP_LANES) {
        const lanes x = load_lanes(TP_F64, data + 8 * i);
        step64(&p, &x, TP_LANES, true, clean);
    }
    if (i < n) {
        uint8_t group[TP_LANES * sizeof(double)];
        const lanes x = load_lanes(TP_F64, pad(group, sizeof(group), data + 8 * i, 8 * (n - i)));
        step64(&p, &x, n - i, false, clean);
    }
    store(&p.s, &p.c, vminvq_f64(p.min), vmaxvq_f64(p.max), true, out);
}

/* The group that starts at element i; what is behind the end is 0. */
INLINE lanes group_at(uint32_t dtype, const uint8_t *data, size_t n, size_t i)
{
    const size_t size = size_of(dtype);
    uint8_t group[TP_LANES * sizeof(double)];
    const uint8_t *at = data + i * size;
    return load_lanes(dtype, n - i < TP_LANES ? pad(group, sizeof(group), at, (n - i) * size) : at);
}

INLINE void spread(uint32_t dtype, const uint8_t *data, size_t n, double scale, double pivot,
                   double moments[2])
{
    lanes sum = lanes_zero();
    lanes sum_sq = lanes_zero();
    for (size_t i = 0; i < n; i += TP_LANES) {
        const lanes x = group_at(dtype, data, n, i);
        UNROLL
        for (int v = 0; v < 8; v++) {
            const uint64x2_t finite = vcltq_f64(vabsq_f64(x.v[v]), vdupq_n_f64(INFINITY));
            const float64x2_t away = vsubq_f64(vmulq_n_f64(x.v[v], scale), vdupq_n_f64(pivot));
            const float64x2_t d = masked64(away, vandq_u64(finite, valid64(n - i, v)));
            sum.v[v] = vaddq_f64(sum.v[v], d);
            sum_sq.v[v] = vaddq_f64(sum_sq.v[v], vmulq_f64(d, d));
        }
    }
    moments[0] = lanes_sum(&sum);
    moments[1] = lanes_sum(&sum_sq);
}

INLINE size_t find(uint32_t dtype, const uint8_t *data, size_t n, double magnitude)
{
    for (size_t i = 0; i < n; i += TP_LANES) {
        const lanes x = group_at(dtype, data, n, i);
        for (size_t v = 0; v < 8; v++) {
            const uint64x2_t equal = vceqq_f64(vabsq_f64(x.v[v]), vdupq_n_f64(magnitude));
            if (vmaxvq_u32(vreinterpretq_u32_u64(equal)) != 0) {
                const size_t index = i + 2 * v + (vgetq_lane_u64(equal, 0) == 0);
                return index < n ? index : n;
            }
        }
    }
    return n;
}

#define KERNEL(type, TYPE, CLEAN, MASKED)                                                          \
    static void type##_clean(const void *data, size_t n, const tp_bounds *bounds, tp_block *out)   \
    {                                                                                              \
        CLEAN;                                                                                     \
    }                                                                                              \
    static void type##_masked(const void *data, size_t n, const tp_bounds *bounds, double scale,   \
                              tp_block *out)                                                       \
    {                                                                                              \
        (void)scale;                                                                               \
        MASKED;                                                                                    \
    }

KERNEL(f64, TP_F64, block64(true, data, n, bounds, 1.0, out),
       block64(false, data, n, bounds, scale, out))
KERNEL(f32, TP_F32, block32(TP_F32, true, data, n, bounds, out),
       block32(TP_F32, false, data, n, bounds, out))
KERNEL(f16, TP_F16, block16(TP_F16, data, n, bounds, out),
       block32(TP_F16, false, data, n, bounds, out))
KERNEL(bf16, TP_BF16, block16(TP_BF16, data, n, bounds, out),
       block32(TP_BF16, false, data, n, bounds, out))

/* None: they would gain little. */
#define f64_lean NULL
#define f32_lean NULL
#define f16_lean NULL
#define bf16_lean NULL

TP_KERNEL_TABLE(neon)

#else

TP_KERNEL_ABSENT(neon)

#endif
