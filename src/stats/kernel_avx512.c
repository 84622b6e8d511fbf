/* The kernels with AVX-512 F, BW, DQ and VL. kernel_scalar.c says what they compute. */
#include "stats/kernel_table.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>

#include "stats/kernel_inline.h"

#define ALL 0xffff

/* Lanes 0-7 and 8-15. */
typedef struct lanes {
    __m512d low;
    __m512d high;
} lanes;

typedef struct sums {
    lanes sum;
    lanes sum_abs;
    lanes sum_sq;
} sums;

/* Counts per 32-bit lane: a block has at most 256 groups of 16. */
typedef struct counts {
    __m512i nan;
    __m512i pos_inf;
    __m512i neg_inf;
    __m512i zeros;
    __m512i subnormal;
} counts;

INLINE lanes lanes_zero(void)
{
    return (lanes){_mm512_setzero_pd(), _mm512_setzero_pd()};
}

INLINE double lanes_sum(lanes x)
{
    const __m512d eight = _mm512_add_pd(x.low, x.high);
    const __m256d four =
        _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

INLINE lanes widen(__m512 x)
{
    return (lanes){_mm512_cvtps_pd(_mm512_castps512_ps256(x)),
                   _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1))};
}

/* The square of a float is exact in f64, so that rounding once or twice is the same. */
INLINE void add_floats(sums *s, lanes x)
{
    s->sum.low = _mm512_add_pd(s->sum.low, x.low);
    s->sum.high = _mm512_add_pd(s->sum.high, x.high);
    s->sum_abs.low = _mm512_add_pd(s->sum_abs.low, _mm512_abs_pd(x.low));
    s->sum_abs.high = _mm512_add_pd(s->sum_abs.high, _mm512_abs_pd(x.high));
    s->sum_sq.low = _mm512_fmadd_pd(x.low, x.low, s->sum_sq.low);
    s->sum_sq.high = _mm512_fmadd_pd(x.high, x.high, s->sum_sq.high);
}

INLINE void add_doubles(sums *s, lanes x)
{
    s->sum.low = _mm512_add_pd(s->sum.low, x.low);
    s->sum.high = _mm512_add_pd(s->sum.high, x.high);
    s->sum_abs.low = _mm512_add_pd(s->sum_abs.low, _mm512_abs_pd(x.low));
    s->sum_abs.high = _mm512_add_pd(s->sum_abs.high, _mm512_abs_pd(x.high));
    s->sum_sq.low = _mm512_add_pd(s->sum_sq.low, _mm512_mul_pd(x.low, x.low));
    s->sum_sq.high = _mm512_add_pd(s->sum_sq.high, _mm512_mul_pd(x.high, x.high));
}

INLINE __m512i count(__m512i counter, __mmask16 elements)
{
    return _mm512_mask_sub_epi32(counter, elements, counter, _mm512_set1_epi32(-1));
}

INLINE uint64_t total(__m512i counter)
{
    return (uint64_t)(uint32_t)_mm512_reduce_add_epi32(counter);
}

INLINE void store(const sums *s, const counts *c, double min, double max, bool clean, tp_block *out)
{
    out->nan = clean ? 0 : total(c->nan);
    out->pos_inf = clean ? 0 : total(c->pos_inf);
    out->neg_inf = clean ? 0 : total(c->neg_inf);
    out->zeros = total(c->zeros);
    out->subnormal = total(c->subnormal);
    out->min = min + 0.0; /* -0 becomes +0 */
    out->max = max + 0.0;
    out->sum = lanes_sum(s->sum);
    out->sum_abs = lanes_sum(s->sum_abs);
    out->sum_sq = lanes_sum(s->sum_sq);
}

/* The first `left` of 16 elements. */
INLINE __mmask16 first(size_t left)
{
    return left < TP_LANES ? (__mmask16)((1U << left) - 1) : (__mmask16)ALL;
}

/* f32, f16, bf16: 16 elements as floats; those outside valid are not read and become 0. */
INLINE __m512 load_floats(uint32_t dtype, const uint8_t *data, size_t i, __mmask16 valid)
{
    if (dtype == TP_F32) {
        return _mm512_maskz_loadu_ps(valid, data + 4 * i);
    }
    const __m256i half = _mm256_maskz_loadu_epi16(valid, data + 2 * i);
    if (dtype == TP_F16) {
        return _mm512_cvtph_ps(half);
    }
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE lanes load_doubles(const uint8_t *data, size_t i, __mmask16 valid)
{
    return (lanes){_mm512_maskz_loadu_pd((__mmask8)valid, data + 8 * i),
                   _mm512_maskz_loadu_pd((__mmask8)(valid >> 8), data + 8 * i + 64)};
}

typedef struct pass32 {
    sums s;
    counts c;
    __m512 min;
    __m512 max;
    __m512 eps;
    __m512i normal_less_1; /* bits of the smallest normal number, less 1 */
    __m512i least_less_1;  /* of a clean block: bits of the smallest |x| that is not 0, less 1 */
} pass32;

/* |x| as unsigned numbers, less 1: 0 < |x| < normal is then one comparison, for 0 wraps round to
 * the largest. */
INLINE __m512i bits_less_1(__m512 x)
{
    return _mm512_sub_epi32(_mm512_castps_si512(_mm512_abs_ps(x)), _mm512_set1_epi32(1));
}

/* wide: the same elements as f64. */
INLINE void step32(pass32 *p, __m512 x, lanes wide, __mmask16 valid, bool clean)
{
    const __m512 magnitude = _mm512_abs_ps(x);
    const __m512i less_1 = bits_less_1(x);
    p->c.zeros = count(p->c.zeros, _mm512_mask_cmp_ps_mask(valid, magnitude, p->eps, _CMP_LT_OQ));
    if (clean) { /* where there are subnormal numbers at all, they are counted afterwards */
        p->least_less_1 = _mm512_mask_min_epu32(p->least_less_1, valid, p->least_less_1, less_1);
    } else {
        p->c.subnormal =
            count(p->c.subnormal, _mm512_mask_cmplt_epu32_mask(valid, less_1, p->normal_less_1));
        const __m512 infinite = _mm512_set1_ps(INFINITY);
        const __mmask16 finite = _mm512_mask_cmp_ps_mask(valid, magnitude, infinite, _CMP_LT_OQ);
        p->c.nan = count(p->c.nan, _mm512_mask_cmp_ps_mask(valid, x, x, _CMP_UNORD_Q));
        p->c.pos_inf = count(p->c.pos_inf, _mm512_mask_cmp_ps_mask(valid, x, infinite, _CMP_EQ_OQ));
        p->c.neg_inf = count(
            p->c.neg_inf, _mm512_mask_cmp_ps_mask(valid, x, _mm512_set1_ps(-INFINITY), _CMP_EQ_OQ));
        x = _mm512_maskz_mov_ps(finite, x);
        wide = widen(x);
        valid = finite;
    }
    p->min = _mm512_mask_min_ps(p->min, valid, p->min, x);
    p->max = _mm512_mask_max_ps(p->max, valid, p->max, x);
    add_floats(&p->s, wide);
}

/* Counted as the others are, by lanes. */
INLINE __m512i count_subnormal(uint32_t dtype, const uint8_t *data, size_t n, __m512i normal_less_1)
{
    __m512i counter = _mm512_setzero_si512();
    for (size_t i = 0; i < n; i += TP_LANES) {
        const __m512 x = load_floats(dtype, data, i, first(n - i)); /* the rest is 0 */
        counter = count(counter, _mm512_cmplt_epu32_mask(bits_less_1(x), normal_less_1));
    }
    return counter;
}

/* 16 whole elements. From memory f32 is widened without a shuffle. */
INLINE lanes load_wide(uint32_t dtype, const uint8_t *data, size_t i, __m512 x)
{
    if (dtype != TP_F32) {
        return widen(x);
    }
    const float *at = (const float *)(const void *)(data + 4 * i);
    return (lanes){_mm512_cvtps_pd(_mm256_loadu_ps(at)), _mm512_cvtps_pd(_mm256_loadu_ps(at + 8))};
}

INLINE void block32(uint32_t dtype, bool clean, const uint8_t *data, size_t n,
                    const tp_bounds *bounds, tp_block *out)
{
    const float normal = (float)bounds->normal;
    pass32 p = {
        .s = {lanes_zero(), lanes_zero(), lanes_zero()},
        .min = _mm512_set1_ps(INFINITY),
        .max = _mm512_set1_ps(-INFINITY),
        .eps = _mm512_set1_ps((float)bounds->eps),
        .normal_less_1 =
            _mm512_sub_epi32(_mm512_castps_si512(_mm512_set1_ps(normal)), _mm512_set1_epi32(1)),
        .least_less_1 = _mm512_set1_epi32(-1),
    };
    const size_t ahead = bounds->ahead;
    size_t i = 0;
    for (; i + TP_LANES <= n; i += TP_LANES) {
        prefetch(data + i * size_of(dtype), TP_LANES * size_of(dtype), ahead);
        const __m512 x = load_floats(dtype, data, i, ALL);
        step32(&p, x, load_wide(dtype, data, i, x), ALL, clean);
    }
    if (i < n) {
        const __mmask16 valid = first(n - i);
        const __m512 x = load_floats(dtype, data, i, valid);
        step32(&p, x, widen(x), valid, clean);
    }
    if (clean && _mm512_cmplt_epu32_mask(p.least_less_1, p.normal_less_1) != 0) {
        p.c.subnormal = count_subnormal(dtype, data, n, p.normal_less_1);
    }
    store(&p.s, &p.c, (double)_mm512_reduce_min_ps(p.min), (double)_mm512_reduce_max_ps(p.max),
          clean, out);
}

/* Nothing of the block is counted, for no magnitude is less than these. */
INLINE void store_lean(const sums *s, double min, double max, tp_block *out)
{
    *out = (tp_block){
        .min = min,
        .max = max,
        .sum = lanes_sum(s->sum),
        .sum_abs = lanes_sum(s->sum_abs),
        .sum_sq = lanes_sum(s->sum_sq),
    };
}

static bool f32_lean(const void *data, const tp_bounds *bounds, tp_block *out)
{
    const uint8_t *from = data;
    const double bound = bounds->eps > bounds->normal ? bounds->eps : bounds->normal;
    sums s = {lanes_zero(), lanes_zero(), lanes_zero()};
    __m512 least = _mm512_set1_ps(INFINITY);
    __m512 min = _mm512_set1_ps(INFINITY);
    __m512 max = _mm512_set1_ps(-INFINITY);
    for (size_t i = 0; i < TP_BLOCK; i += TP_LANES) {
        prefetch(from + 4 * i, TP_LANES * sizeof(float), bounds->ahead);
        const __m512 x = load_floats(TP_F32, from, i, ALL);
        least = _mm512_min_ps(least, _mm512_abs_ps(x));
        min = _mm512_min_ps(min, x);
        max = _mm512_max_ps(max, x);
        add_floats(&s, widen(x));
    }
    store_lean(&s, (double)_mm512_reduce_min_ps(min), (double)_mm512_reduce_max_ps(max), out);
    return (double)_mm512_reduce_min_ps(least) >= bound;
}

/* Blocks of f16 and bf16 without NaN and Inf. Everything but the sums is done on the 16-bit
 * patterns, whose order is that of sign and magnitude. */
typedef struct pass16 {
    sums s;
    __m512i zeros; /* counts per 16-bit lane: a block has at most 128 steps */
    __m512i subnormal;
    __m512i least; /* magnitude; in place of the counts */
    __m512i min;   /* keys: the patterns made comparable as signed integers */
    __m512i max;
    __m512i eps;
    __m512i normal_less_1;
} pass16;

/* Two's complement to sign and magnitude or back: flips the magnitude of negative numbers. */
INLINE __m512i key16(__m512i bits)
{
    const __m512i flip = _mm512_and_si512(_mm512_srai_epi16(bits, 15), _mm512_set1_epi16(0x7fff));
    return _mm512_xor_si512(bits, flip);
}

INLINE __m512i count16(__m512i counter, __mmask32 elements)
{
    return _mm512_mask_sub_epi16(counter, elements, counter, _mm512_set1_epi16(-1));
}

/* The counts and extremes of 32 elements; those outside valid are 0 in bits. */
INLINE void look16(pass16 *p, __m512i bits, __mmask32 valid, bool lean)
{
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi16(0x7fff));
    const __m512i key = key16(bits);
    if (lean) {
        p->least = _mm512_min_epu16(p->least, magnitude);
    } else {
        p->zeros = count16(p->zeros, _mm512_mask_cmplt_epu16_mask(valid, magnitude, p->eps));
        /* 0 < magnitude < normal in one comparison: 0 wraps round to the largest number. */
        const __m512i less_1 = _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1));
        p->subnormal =
            count16(p->subnormal, _mm512_mask_cmplt_epu16_mask(valid, less_1, p->normal_less_1));
    }
    p->min = _mm512_mask_min_epi16(p->min, valid, p->min, key);
    p->max = _mm512_mask_max_epi16(p->max, valid, p->max, key);
}

INLINE __m512 tree(const __m512 x[8])
{
    const __m512 low = _mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3]));
    const __m512 high = _mm512_add_ps(_mm512_add_ps(x[4], x[5]), _mm512_add_ps(x[6], x[7]));
    return _mm512_add_ps(low, high);
}

INLINE void add_partial(lanes *sum, __m512 partial)
{
    const lanes wide = widen(partial);
    sum->low = _mm512_add_pd(sum->low, wide.low);
    sum->high = _mm512_add_pd(sum->high, wide.high);
}

/* TP_HALVES elements, of which `left` are there; full says at compile time that all are. */
INLINE void step16(pass16 *p, uint32_t dtype, const uint8_t *at, size_t left, bool full, bool lean)
{
    __m512 x[8];
    __m512 magnitude[8];
    __m512 square[8];
    UNROLL
    for (size_t k = 0; k < 4; k++) {
        const size_t there = left > 32 * k ? left - 32 * k : 0;
        const __mmask32 valid = full || there >= 32 ? UINT32_MAX : (1U << there) - 1;
        const __m512i bits =
            full ? _mm512_loadu_si512(at + 64 * k) : _mm512_maskz_loadu_epi16(valid, at + 64 * k);
        look16(p, bits, valid, lean);
        if (dtype == TP_F16) {
            x[2 * k] = _mm512_cvtph_ps(_mm512_castsi512_si256(bits));
            x[2 * k + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1));
        } else {
            const __m512i odd = _mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000));
            x[2 * k] = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
            x[2 * k + 1] = _mm512_castsi512_ps(odd);
        }
    }
    UNROLL
    for (size_t v = 0; v < 8; v++) {
        magnitude[v] = _mm512_abs_ps(x[v]);
        square[v] = _mm512_mul_ps(x[v], x[v]);
    }
    add_partial(&p->s.sum, tree(x));
    add_partial(&p->s.sum_abs, tree(magnitude));
    add_partial(&p->s.sum_sq, tree(square));
}

INLINE uint64_t total16(__m512i counter)
{
    const __m512i one = _mm512_set1_epi16(1);
    return (uint64_t)(uint32_t)_mm512_reduce_add_epi32(_mm512_madd_epi16(counter, one));
}

INLINE __m512i widen16(__m512i key, int half)
{
    return _mm512_cvtepi16_epi32(half == 0 ? _mm512_castsi512_si256(key)
                                           : _mm512_extracti64x4_epi64(key, 1));
}

INLINE int least16(__m512i key)
{
    return _mm512_reduce_min_epi32(_mm512_min_epi32(widen16(key, 0), widen16(key, 1)));
}

/* lean: whether no magnitude is less than the bounds; else true. */
INLINE bool block16(uint32_t dtype, const uint8_t *data, size_t n, const tp_bounds *bounds,
                    bool lean, tp_block *out)
{
    const short normal = pattern_up(dtype, (float)bounds->normal);
    const short eps = pattern_up(dtype, (float)bounds->eps);
    pass16 p = {
        .s = {lanes_zero(), lanes_zero(), lanes_zero()},
        .min = _mm512_set1_epi16(INT16_MAX),
        .max = _mm512_set1_epi16(INT16_MIN),
        .least = _mm512_set1_epi16(INT16_MAX),
        .eps = _mm512_set1_epi16(eps),
        .normal_less_1 = _mm512_set1_epi16((short)(normal - 1)),
    };
    const size_t ahead = bounds->ahead;
    size_t i = 0;
    for (; i + TP_HALVES <= n; i += TP_HALVES) {
        prefetch(data + 2 * i, 2 * TP_HALVES, ahead);
        step16(&p, dtype, data + 2 * i, TP_HALVES, true, lean);
    }
    if (i < n) {
        step16(&p, dtype, data + 2 * i, n - i, false, lean);
    }
    const int min = least16(p.min);
    const int max = _mm512_reduce_max_epi32(_mm512_max_epi32(widen16(p.max, 0), widen16(p.max, 1)));
    *out = (tp_block){
        .zeros = total16(p.zeros),
        .subnormal = total16(p.subnormal),
        .min = value16(dtype, min) + 0.0, /* -0 becomes +0 */
        .max = value16(dtype, max) + 0.0,
        .sum = lanes_sum(p.s.sum),
        .sum_abs = lanes_sum(p.s.sum_abs),
        .sum_sq = lanes_sum(p.s.sum_sq),
    };
    return !lean || least16(p.least) >= (eps > normal ? eps : normal);
}

#define HALVES(type, TYPE)                                                                         \
    static void type##_clean(const void *data, size_t n, const tp_bounds *bounds, tp_block *out)   \
    {                                                                                              \
        (void)block16(TYPE, data, n, bounds, false, out);                                          \
    }                                                                                              \
    static bool type##_lean(const void *data, const tp_bounds *bounds, tp_block *out)              \
    {                                                                                              \
        return block16(TYPE, data, TP_BLOCK, bounds, true, out);                                   \
    }

HALVES(f16, TP_F16)
HALVES(bf16, TP_BF16)

typedef struct pass64 {
    sums s;
    counts c;
    lanes min;
    lanes max;
    __m512d eps;
    __m512d scale;
    __m512i normal_less_1;
} pass64;

/* Which of the 16 elements satisfy `x operator y`. A macro, for the operator must be a constant. */
#define COMPARE(valid, x, y, operator)                                                             \
    _mm512_kunpackb(_mm512_mask_cmp_pd_mask((__mmask8)((valid) >> 8), (x).high, (y), (operator)),  \
                    _mm512_mask_cmp_pd_mask((__mmask8)(valid), (x).low, (y), (operator)))

INLINE __mmask16 is_subnormal(lanes magnitude, __mmask16 valid, __m512i normal_less_1)
{
    const __m512i one = _mm512_set1_epi64(1);
    const __m512i low = _mm512_sub_epi64(_mm512_castpd_si512(magnitude.low), one);
    const __m512i high = _mm512_sub_epi64(_mm512_castpd_si512(magnitude.high), one);
    return _mm512_kunpackb(
        _mm512_mask_cmplt_epu64_mask((__mmask8)(valid >> 8), high, normal_less_1),
        _mm512_mask_cmplt_epu64_mask((__mmask8)valid, low, normal_less_1));
}

INLINE void step64(pass64 *p, lanes x, __mmask16 valid, bool clean)
{
    const lanes magnitude = {_mm512_abs_pd(x.low), _mm512_abs_pd(x.high)};
    p->c.zeros = count(p->c.zeros, COMPARE(valid, magnitude, p->eps, _CMP_LT_OQ));
    p->c.subnormal = count(p->c.subnormal, is_subnormal(magnitude, valid, p->normal_less_1));
    if (!clean) {
        const __m512d infinite = _mm512_set1_pd(INFINITY);
        const __mmask16 finite = COMPARE(valid, magnitude, infinite, _CMP_LT_OQ);
        const __mmask16 not_nan = COMPARE(valid, magnitude, infinite, _CMP_LE_OQ);
        p->c.nan = count(p->c.nan, (__mmask16)(valid & ~not_nan));
        p->c.pos_inf = count(p->c.pos_inf, COMPARE(valid, x, infinite, _CMP_EQ_OQ));
        p->c.neg_inf =
            count(p->c.neg_inf, COMPARE(valid, x, _mm512_set1_pd(-INFINITY), _CMP_EQ_OQ));
        x.low = _mm512_maskz_mov_pd((__mmask8)finite, x.low);
        x.high = _mm512_maskz_mov_pd((__mmask8)(finite >> 8), x.high);
        valid = finite;
    }
    const __mmask8 low = (__mmask8)valid;
    const __mmask8 high = (__mmask8)(valid >> 8);
    p->min.low = _mm512_mask_min_pd(p->min.low, low, p->min.low, x.low);
    p->min.high = _mm512_mask_min_pd(p->min.high, high, p->min.high, x.high);
    p->max.low = _mm512_mask_max_pd(p->max.low, low, p->max.low, x.low);
    p->max.high = _mm512_mask_max_pd(p->max.high, high, p->max.high, x.high);
    if (!clean) {
        x.low = _mm512_mul_pd(x.low, p->scale);
        x.high = _mm512_mul_pd(x.high, p->scale);
    }
    add_doubles(&p->s, x);
}

INLINE void block64(bool clean, const uint8_t *data, size_t n, const tp_bounds *bounds,
                    double scale, tp_block *out)
{
    const __m512d least = _mm512_set1_pd(INFINITY);
    const __m512d most = _mm512_set1_pd(-INFINITY);
    pass64 p = {
        .s = {lanes_zero(), lanes_zero(), lanes_zero()},
        .min = {least, least},
        .max = {most, most},
        .eps = _mm512_set1_pd(bounds->eps),
        .scale = _mm512_set1_pd(scale),
        .normal_less_1 = _mm512_sub_epi64(_mm512_castpd_si512(_mm512_set1_pd(bounds->normal)),
                                          _mm512_set1_epi64(1)),
    };
    const size_t ahead = bounds->ahead;
    size_t i = 0;
    for (; i + TP_LANES <= n; i += TP_LANES) {
        prefetch(data + 8 * i, TP_LANES * sizeof(double), ahead);
        step64(&p, load_doubles(data, i, ALL), ALL, clean);
    }
    if (i < n) {
        const __mmask16 valid = first(n - i);
        step64(&p, load_doubles(data, i, valid), valid, clean);
    }
    store(&p.s, &p.c, _mm512_reduce_min_pd(_mm512_min_pd(p.min.low, p.min.high)),
          _mm512_reduce_max_pd(_mm512_max_pd(p.max.low, p.max.high)), clean, out);
}

static bool f64_lean(const void *data, const tp_bounds *bounds, tp_block *out)
{
    const uint8_t *from = data;
    const double bound = bounds->eps > bounds->normal ? bounds->eps : bounds->normal;
    sums s = {lanes_zero(), lanes_zero(), lanes_zero()};
    __m512d least = _mm512_set1_pd(INFINITY);
    __m512d min = _mm512_set1_pd(INFINITY);
    __m512d max = _mm512_set1_pd(-INFINITY);
    for (size_t i = 0; i < TP_BLOCK; i += TP_LANES) {
        prefetch(from + 8 * i, TP_LANES * sizeof(double), bounds->ahead);
        const lanes x = load_doubles(from, i, ALL);
        least = _mm512_min_pd(least, _mm512_min_pd(_mm512_abs_pd(x.low), _mm512_abs_pd(x.high)));
        min = _mm512_min_pd(min, _mm512_min_pd(x.low, x.high));
        max = _mm512_max_pd(max, _mm512_max_pd(x.low, x.high));
        add_doubles(&s, x);
    }
    store_lean(&s, _mm512_reduce_min_pd(min), _mm512_reduce_max_pd(max), out);
    return _mm512_reduce_min_pd(least) >= bound;
}

INLINE lanes load_lanes(uint32_t dtype, const uint8_t *data, size_t i, __mmask16 valid)
{
    return dtype == TP_F64 ? load_doubles(data, i, valid)
                           : widen(load_floats(dtype, data, i, valid));
}

INLINE void spread(uint32_t dtype, const uint8_t *data, size_t n, double scale, double pivot,
                   double moments[2])
{
    const __m512d times = _mm512_set1_pd(scale);
    const __m512d from = _mm512_set1_pd(pivot);
    const __m512d infinite = _mm512_set1_pd(INFINITY);
    lanes sum = lanes_zero();
    lanes sum_sq = lanes_zero();
    for (size_t i = 0; i < n; i += TP_LANES) {
        const __mmask16 valid = first(n - i);
        const lanes x = load_lanes(dtype, data, i, valid);
        const lanes magnitude = {_mm512_abs_pd(x.low), _mm512_abs_pd(x.high)};
        const __mmask16 finite = COMPARE(valid, magnitude, infinite, _CMP_LT_OQ);
        const __m512d low =
            _mm512_maskz_sub_pd((__mmask8)finite, _mm512_mul_pd(x.low, times), from);
        const __m512d high =
            _mm512_maskz_sub_pd((__mmask8)(finite >> 8), _mm512_mul_pd(x.high, times), from);
        sum.low = _mm512_add_pd(sum.low, low);
        sum.high = _mm512_add_pd(sum.high, high);
        sum_sq.low = _mm512_add_pd(sum_sq.low, _mm512_mul_pd(low, low));
        sum_sq.high = _mm512_add_pd(sum_sq.high, _mm512_mul_pd(high, high));
    }
    moments[0] = lanes_sum(sum);
    moments[1] = lanes_sum(sum_sq);
}

INLINE size_t find(uint32_t dtype, const uint8_t *data, size_t n, double magnitude)
{
    const __m512d wanted = _mm512_set1_pd(magnitude);
    for (size_t i = 0; i < n; i += TP_LANES) {
        const __mmask16 valid = first(n - i);
        const lanes x = load_lanes(dtype, data, i, valid);
        const lanes absolute = {_mm512_abs_pd(x.low), _mm512_abs_pd(x.high)};
        const __mmask16 found = COMPARE(valid, absolute, wanted, _CMP_EQ_OQ);
        if (found != 0) {
            return i + (size_t)__builtin_ctz(found);
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

TP_KERNEL_TABLE(avx512)

#else

TP_KERNEL_ABSENT(avx512)

#endif
