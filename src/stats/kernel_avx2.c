/* The kernels with AVX2, FMA and F16C. kernel_scalar.c says what they compute. */
#include "stats/kernel_table.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <math.h>

#include "stats/avx2.h"

typedef struct pass32 {
    sums s;
    counts c;
    __m256 min;
    __m256 max;
    __m256 eps;
    __m256i normal;
} pass32;

INLINE __m256i count32(__m256i counter, __m256 elements, __m256i valid, bool full)
{
    const __m256i mask = _mm256_castps_si256(elements);
    return _mm256_sub_epi32(counter, full ? mask : _mm256_and_si256(mask, valid));
}

/* left >= 16 in full groups, which is known at compile time. */
INLINE void step32(pass32 *p, floats x, size_t left, bool full, bool clean)
{
    UNROLL
    for (int v = 0; v < 2; v++) {
        const __m256i valid = full ? _mm256_setzero_si256() : valid32(left, v);
        const __m256 magnitude = abs_ps(x.v[v]);
        const __m256i bits = _mm256_castps_si256(magnitude);
        const __m256 below_eps = _mm256_cmp_ps(magnitude, p->eps, _CMP_LT_OQ);
        p->c.zeros = count32(p->c.zeros, below_eps, valid, full);
        /* The padding is 0 and thereby not subnormal. */
        const __m256i subnormal = _mm256_and_si256(_mm256_cmpgt_epi32(bits, _mm256_setzero_si256()),
                                                   _mm256_cmpgt_epi32(p->normal, bits));
        p->c.subnormal = _mm256_sub_epi32(p->c.subnormal, subnormal);
        __m256 low = x.v[v];
        __m256 high = x.v[v];
        if (!clean) {
            const __m256 infinite = _mm256_set1_ps(INFINITY);
            const __m256 minus = _mm256_set1_ps(-INFINITY);
            const __m256 finite = _mm256_cmp_ps(magnitude, infinite, _CMP_LT_OQ);
            const __m256 is_nan = _mm256_cmp_ps(x.v[v], x.v[v], _CMP_UNORD_Q);
            const __m256 is_plus = _mm256_cmp_ps(x.v[v], infinite, _CMP_EQ_OQ);
            const __m256 is_minus = _mm256_cmp_ps(x.v[v], minus, _CMP_EQ_OQ);
            p->c.nan = count32(p->c.nan, is_nan, valid, true);
            p->c.pos_inf = count32(p->c.pos_inf, is_plus, valid, true);
            p->c.neg_inf = count32(p->c.neg_inf, is_minus, valid, true);
            low = _mm256_blendv_ps(infinite, x.v[v], finite);
            high = _mm256_blendv_ps(minus, x.v[v], finite);
            x.v[v] = _mm256_and_ps(x.v[v], finite);
        }
        if (!full) {
            const __m256 inside = _mm256_castsi256_ps(valid);
            low = _mm256_blendv_ps(_mm256_set1_ps(INFINITY), low, inside);
            high = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), high, inside);
        }
        p->min = _mm256_min_ps(p->min, low);
        p->max = _mm256_max_ps(p->max, high);
    }
    const lanes wide = widen(&x);
    add_lanes(&p->s, &wide, true);
}

INLINE double least32(__m256 x)
{
    __m128 four = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_min_ps(four, _mm_movehl_ps(four, four));
    return (double)_mm_cvtss_f32(_mm_min_ss(four, _mm_movehdup_ps(four)));
}

INLINE double most32(__m256 x)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return (double)_mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

INLINE void block32(uint32_t dtype, bool clean, const uint8_t *data, size_t n,
                    const tp_bounds *bounds, tp_block *out)
{
    const size_t size = size_of(dtype);
    pass32 p = {
        .s = {lanes_all(0.0), lanes_all(0.0), lanes_all(0.0)},
        .min = _mm256_set1_ps(INFINITY),
        .max = _mm256_set1_ps(-INFINITY),
        .eps = _mm256_set1_ps((float)bounds->eps),
        .normal = _mm256_castps_si256(_mm256_set1_ps((float)bounds->normal)),
    };
    const size_t ahead = bounds->ahead;
    size_t i = 0;
    for (; i + TP_LANES <= n; i += TP_LANES) {
        prefetch(data + i * size, TP_LANES * size, ahead);
        step32(&p, load_floats(dtype, data + i * size), TP_LANES, true, clean);
    }
    if (i < n) {
        uint8_t group[TP_LANES * sizeof(double)];
        const floats x =
            load_floats(dtype, pad(group, sizeof(group), data + i * size, (n - i) * size));
        step32(&p, x, n - i, false, clean);
    }
    store(&p.s, &p.c, least32(p.min), most32(p.max), false, clean, out);
}

/* Of each group the elements 8 half to 8 half + 7. One half after the other (the block is in the
 * cache by then), as the sums of both don't fit into the registers. */
INLINE void lean_half(const uint8_t *from, int half, sums *s, __m256 *least, __m256 *min,
                      __m256 *max)
{
    __m256d sum[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()};
    __m256d sum_abs[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()};
    __m256d sum_sq[2] = {_mm256_setzero_pd(), _mm256_setzero_pd()};
    for (size_t i = 0; i < TP_BLOCK; i += TP_LANES) {
        const uint8_t *at = from + 4 * i;
        /* Half of the next block. */
        _mm_prefetch((const char *)from + sizeof(float) * TP_BLOCK * (2 + (size_t)half) / 2 + 2 * i,
                     _MM_HINT_T0);
        const __m256 x = _mm256_loadu_ps((const float *)(const void *)(at + 32 * half));
        *least = _mm256_min_ps(*least, abs_ps(x));
        *min = _mm256_min_ps(*min, x);
        *max = _mm256_max_ps(*max, x);
        const __m256d wide[2] = {_mm256_cvtps_pd(_mm256_castps256_ps128(x)),
                                 _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))};
        UNROLL
        for (int v = 0; v < 2; v++) {
            sum[v] = _mm256_add_pd(sum[v], wide[v]);
            sum_abs[v] = _mm256_add_pd(sum_abs[v], abs_pd(wide[v]));
            sum_sq[v] = _mm256_fmadd_pd(wide[v], wide[v], sum_sq[v]);
        }
    }
    UNROLL
    for (int v = 0; v < 2; v++) {
        s->sum.v[2 * half + v] = sum[v];
        s->sum_abs.v[2 * half + v] = sum_abs[v];
        s->sum_sq.v[2 * half + v] = sum_sq[v];
    }
}

static bool f32_lean(const void *data, const tp_bounds *bounds, tp_block *out)
{
    const double bound = bounds->eps > bounds->normal ? bounds->eps : bounds->normal;
    sums s;
    __m256 least = _mm256_set1_ps(INFINITY);
    __m256 min = _mm256_set1_ps(INFINITY);
    __m256 max = _mm256_set1_ps(-INFINITY);
    lean_half(data, 0, &s, &least, &min, &max);
    lean_half(data, 1, &s, &least, &min, &max);
    store_lean(&s, least32(min), most32(max), out);
    return least32(least) >= bound;
}

typedef struct pass64 {
    sums s;
    counts c;
    __m256d min;
    __m256d max;
    __m256d eps;
    __m256i normal;
    __m256d scale;
} pass64;

INLINE __m256i count64(__m256i counter, __m256d elements, __m256i valid, bool full)
{
    const __m256i mask = _mm256_castpd_si256(elements);
    return _mm256_sub_epi64(counter, full ? mask : _mm256_and_si256(mask, valid));
}

INLINE void step64(pass64 *p, lanes x, size_t left, bool full, bool clean)
{
    UNROLL
    for (int v = 0; v < 4; v++) {
        const __m256i valid = full ? _mm256_setzero_si256() : valid64(left, v);
        const __m256d magnitude = abs_pd(x.v[v]);
        const __m256i bits = _mm256_castpd_si256(magnitude);
        const __m256d below_eps = _mm256_cmp_pd(magnitude, p->eps, _CMP_LT_OQ);
        p->c.zeros = count64(p->c.zeros, below_eps, valid, full);
        /* The padding is 0 and thereby not subnormal. */
        const __m256i subnormal = _mm256_and_si256(_mm256_cmpgt_epi64(bits, _mm256_setzero_si256()),
                                                   _mm256_cmpgt_epi64(p->normal, bits));
        p->c.subnormal = _mm256_sub_epi64(p->c.subnormal, subnormal);
        __m256d low = x.v[v];
        __m256d high = x.v[v];
        if (!clean) {
            const __m256d infinite = _mm256_set1_pd(INFINITY);
            const __m256d minus = _mm256_set1_pd(-INFINITY);
            const __m256d finite = _mm256_cmp_pd(magnitude, infinite, _CMP_LT_OQ);
            const __m256d is_nan = _mm256_cmp_pd(x.v[v], x.v[v], _CMP_UNORD_Q);
            const __m256d is_plus = _mm256_cmp_pd(x.v[v], infinite, _CMP_EQ_OQ);
            const __m256d is_minus = _mm256_cmp_pd(x.v[v], minus, _CMP_EQ_OQ);
            p->c.nan = count64(p->c.nan, is_nan, valid, true);
            p->c.pos_inf = count64(p->c.pos_inf, is_plus, valid, true);
            p->c.neg_inf = count64(p->c.neg_inf, is_minus, valid, true);
            low = _mm256_blendv_pd(infinite, x.v[v], finite);
            high = _mm256_blendv_pd(minus, x.v[v], finite);
            x.v[v] = _mm256_mul_pd(_mm256_and_pd(x.v[v], finite), p->scale);
        }
        if (!full) {
            const __m256d inside = _mm256_castsi256_pd(valid);
            low = _mm256_blendv_pd(_mm256_set1_pd(INFINITY), low, inside);
            high = _mm256_blendv_pd(_mm256_set1_pd(-INFINITY), high, inside);
        }
        p->min = _mm256_min_pd(p->min, low);
        p->max = _mm256_max_pd(p->max, high);
    }
    add_lanes(&p->s, &x, false);
}

INLINE double least64(__m256d x)
{
    const __m128d two = _mm_min_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_min_sd(two, _mm_unpackhi_pd(two, two)));
}

INLINE double most64(__m256d x)
{
    const __m128d two = _mm_max_pd(_mm256_castpd256_pd128(x), _mm256_extractf128_pd(x, 1));
    return _mm_cvtsd_f64(_mm_max_sd(two, _mm_unpackhi_pd(two, two)));
}

INLINE void block64(bool clean, const uint8_t *data, size_t n, const tp_bounds *bounds,
                    double scale, tp_block *out)
{
    pass64 p = {
        .s = {lanes_all(0.0), lanes_all(0.0), lanes_all(0.0)},
        .min = _mm256_set1_pd(INFINITY),
        .max = _mm256_set1_pd(-INFINITY),
        .eps = _mm256_set1_pd(bounds->eps),
        .normal = _mm256_castpd_si256(_mm256_set1_pd(bounds->normal)),
        .scale = _mm256_set1_pd(scale),
    };
    const size_t ahead = bounds->ahead;
    size_t i = 0;
    for (; i + TP_LANES <= n; i += TP_LANES) {
        prefetch(data + 8 * i, TP_LANES * sizeof(double), ahead);
        step64(&p, load_doubles(data + 8 * i), TP_LANES, true, clean);
    }
    if (i < n) {
        uint8_t group[TP_LANES * sizeof(double)];
        step64(&p, load_doubles(pad(group, sizeof(group), data + 8 * i, 8 * (n - i))), n - i, false,
               clean);
    }
    store(&p.s, &p.c, least64(p.min), most64(p.max), true, clean, out);
}

static bool f64_lean(const void *data, const tp_bounds *bounds, tp_block *out)
{
    const uint8_t *from = data;
    const double bound = bounds->eps > bounds->normal ? bounds->eps : bounds->normal;
    sums s = {lanes_all(0.0), lanes_all(0.0), lanes_all(0.0)};
    __m256d least = _mm256_set1_pd(INFINITY);
    __m256d min = _mm256_set1_pd(INFINITY);
    __m256d max = _mm256_set1_pd(-INFINITY);
    for (size_t i = 0; i < TP_BLOCK; i += TP_LANES) {
        prefetch(from + 8 * i, TP_LANES * sizeof(double), bounds->ahead);
        const lanes x = load_doubles(from + 8 * i);
        UNROLL
        for (int v = 0; v < 4; v++) {
            least = _mm256_min_pd(least, abs_pd(x.v[v]));
            min = _mm256_min_pd(min, x.v[v]);
            max = _mm256_max_pd(max, x.v[v]);
        }
        add_lanes(&s, &x, false);
    }
    store_lean(&s, least64(min), most64(max), out);
    return least64(least) >= bound;
}

INLINE lanes load_lanes(uint32_t dtype, const uint8_t *data)
{
    if (dtype == TP_F64) {
        return load_doubles(data);
    }
    const floats x = load_floats(dtype, data);
    return widen(&x);
}

INLINE void spread(uint32_t dtype, const uint8_t *data, size_t n, double scale, double pivot,
                   double moments[2])
{
    const size_t size = size_of(dtype);
    const __m256d times = _mm256_set1_pd(scale);
    const __m256d from = _mm256_set1_pd(pivot);
    const __m256d infinite = _mm256_set1_pd(INFINITY);
    lanes sum = lanes_all(0.0);
    lanes sum_sq = lanes_all(0.0);
    for (size_t i = 0; i < n; i += TP_LANES) {
        const uint8_t *at = data + i * size;
        const size_t left = n - i;
        uint8_t group[TP_LANES * sizeof(double)];
        const bool whole = left >= TP_LANES;
        const lanes x = load_lanes(dtype, whole ? at : pad(group, sizeof(group), at, left * size));
        UNROLL
        for (int v = 0; v < 4; v++) {
            const __m256d finite = _mm256_cmp_pd(abs_pd(x.v[v]), infinite, _CMP_LT_OQ);
            const __m256d counted = _mm256_and_pd(finite, _mm256_castsi256_pd(valid64(left, v)));
            const __m256d d =
                _mm256_and_pd(_mm256_sub_pd(_mm256_mul_pd(x.v[v], times), from), counted);
            sum.v[v] = _mm256_add_pd(sum.v[v], d);
            sum_sq.v[v] = _mm256_add_pd(sum_sq.v[v], _mm256_mul_pd(d, d));
        }
    }
    moments[0] = lanes_sum(&sum);
    moments[1] = lanes_sum(&sum_sq);
}

INLINE size_t find(uint32_t dtype, const uint8_t *data, size_t n, double magnitude)
{
    const size_t size = size_of(dtype);
    const __m256d wanted = _mm256_set1_pd(magnitude);
    for (size_t i = 0; i < n; i += TP_LANES) {
        const uint8_t *at = data + i * size;
        const size_t left = n - i;
        uint8_t group[TP_LANES * sizeof(double)];
        const bool whole = left >= TP_LANES;
        const lanes x = load_lanes(dtype, whole ? at : pad(group, sizeof(group), at, left * size));
        unsigned int found = 0;
        UNROLL
        for (int v = 0; v < 4; v++) {
            const __m256d equal = _mm256_cmp_pd(abs_pd(x.v[v]), wanted, _CMP_EQ_OQ);
            found |= (unsigned int)_mm256_movemask_pd(equal) << (4 * v);
        }
        if (found != 0) {
            const size_t index = i + (size_t)__builtin_ctz(found);
            return index < n ? index : n;
        }
    }
    return n;
}

static void f64_clean(const void *data, size_t n, const tp_bounds *bounds, tp_block *out)
{
    block64(true, data, n, bounds, 1.0, out);
}

static void f64_masked(const void *data, size_t n, const tp_bounds *bounds, double scale,
                       tp_block *out)
{
    block64(false, data, n, bounds, scale, out);
}

static void f32_clean(const void *data, size_t n, const tp_bounds *bounds, tp_block *out)
{
    block32(TP_F32, true, data, n, bounds, out);
}

#define MASKED32(type, TYPE)                                                                       \
    static void type##_masked(const void *data, size_t n, const tp_bounds *bounds, double scale,   \
                              tp_block *out)                                                       \
    {                                                                                              \
        (void)scale;                                                                               \
        block32(TYPE, false, data, n, bounds, out);                                                \
    }

MASKED32(f32, TP_F32)
MASKED32(f16, TP_F16)
MASKED32(bf16, TP_BF16)

#define f16_clean tp_avx2_f16
#define bf16_clean tp_avx2_bf16
#define f16_lean tp_avx2_f16_lean
#define bf16_lean tp_avx2_bf16_lean

TP_KERNEL_TABLE(avx2)

#else

TP_KERNEL_ABSENT(avx2)

#endif
