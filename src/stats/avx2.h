/* What the AVX2 kernels share: 16 lanes of f64 in four registers. Included where the compiler may
 * use AVX2, FMA and F16C. */
#ifndef TP_STATS_AVX2_H
#define TP_STATS_AVX2_H

#include <immintrin.h>
#include <stdbool.h>

#include "stats/kernel_inline.h"

/* 16 lanes of f64: vector v holds lanes 4v to 4v + 3. */
typedef struct lanes {
    __m256d v[4];
} lanes;

/* 16 floats: vector v holds elements 8v to 8v + 7. */
typedef struct floats {
    __m256 v[2];
} floats;

typedef struct sums {
    lanes sum;
    lanes sum_abs;
    lanes sum_sq;
} sums;

/* Counts per 32-bit lane (f64: per 64-bit lane). */
typedef struct counts {
    __m256i nan;
    __m256i pos_inf;
    __m256i neg_inf;
    __m256i zeros;
    __m256i subnormal;
} counts;

INLINE __m256d abs_pd(__m256d x)
{
    return _mm256_andnot_pd(_mm256_set1_pd(-0.0), x);
}

INLINE __m256 abs_ps(__m256 x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x);
}

INLINE lanes lanes_all(double x)
{
    const __m256d all = _mm256_set1_pd(x);
    return (lanes){{all, all, all, all}};
}

INLINE double lanes_sum(const lanes *x)
{
    const __m256d four =
        _mm256_add_pd(_mm256_add_pd(x->v[0], x->v[2]), _mm256_add_pd(x->v[1], x->v[3]));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

INLINE lanes widen(const floats *x)
{
    return (lanes){{_mm256_cvtps_pd(_mm256_castps256_ps128(x->v[0])),
                    _mm256_cvtps_pd(_mm256_extractf128_ps(x->v[0], 1)),
                    _mm256_cvtps_pd(_mm256_castps256_ps128(x->v[1])),
                    _mm256_cvtps_pd(_mm256_extractf128_ps(x->v[1], 1))}};
}

/* The square of a float is exact in f64, so that rounding once or twice is the same; the square of
 * a double is rounded before it is added. */
INLINE void add_lanes(sums *s, const lanes *x, bool exact)
{
    UNROLL
    for (int v = 0; v < 4; v++) {
        const __m256d y = x->v[v];
        s->sum.v[v] = _mm256_add_pd(s->sum.v[v], y);
        s->sum_abs.v[v] = _mm256_add_pd(s->sum_abs.v[v], abs_pd(y));
        s->sum_sq.v[v] = exact ? _mm256_fmadd_pd(y, y, s->sum_sq.v[v])
                               : _mm256_add_pd(s->sum_sq.v[v], _mm256_mul_pd(y, y));
    }
}

INLINE uint64_t total32(__m256i counter)
{
    uint32_t part[8];
    uint64_t sum = 0;
    _mm256_storeu_si256((__m256i *)part, counter);
    for (int i = 0; i < 8; i++) {
        sum += part[i];
    }
    return sum;
}

INLINE uint64_t total64(__m256i counter)
{
    uint64_t part[4];
    _mm256_storeu_si256((__m256i *)part, counter);
    return part[0] + part[1] + part[2] + part[3];
}

INLINE uint64_t total(__m256i counter, bool wide)
{
    return wide ? total64(counter) : total32(counter);
}

INLINE void store(const sums *s, const counts *c, double min, double max, bool wide, bool clean,
                  tp_block *out)
{
    out->nan = clean ? 0 : total(c->nan, wide);
    out->pos_inf = clean ? 0 : total(c->pos_inf, wide);
    out->neg_inf = clean ? 0 : total(c->neg_inf, wide);
    out->zeros = total(c->zeros, wide);
    out->subnormal = total(c->subnormal, wide);
    out->min = min + 0.0; /* -0 becomes +0 */
    out->max = max + 0.0;
    out->sum = lanes_sum(&s->sum);
    out->sum_abs = lanes_sum(&s->sum_abs);
    out->sum_sq = lanes_sum(&s->sum_sq);
}

/* Of a block in which nothing has to be counted. */
INLINE void store_lean(const sums *s, double min, double max, tp_block *out)
{
    *out = (tp_block){
        .min = min,
        .max = max,
        .sum = lanes_sum(&s->sum),
        .sum_abs = lanes_sum(&s->sum_abs),
        .sum_sq = lanes_sum(&s->sum_sq),
    };
}

INLINE floats load_floats(uint32_t dtype, const uint8_t *data)
{
    floats x;
    UNROLL
    for (int v = 0; v < 2; v++) {
        if (dtype == TP_F32) {
            x.v[v] = _mm256_loadu_ps((const float *)(const void *)(data + 32 * v));
        } else {
            const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(data + 16 * v));
            x.v[v] = dtype == TP_F16
                         ? _mm256_cvtph_ps(half)
                         : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
        }
    }
    return x;
}

INLINE lanes load_doubles(const uint8_t *data)
{
    lanes x;
    UNROLL
    for (int v = 0; v < 4; v++) {
        x.v[v] = _mm256_loadu_pd((const double *)(const void *)(data + 32 * v));
    }
    return x;
}

/* Which of the elements v * 8 to v * 8 + 7 are among the first `left`. */
INLINE __m256i valid32(size_t left, int v)
{
    const __m256i index =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(8 * v));
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)left), index);
}

INLINE __m256i valid64(size_t left, int v)
{
    const __m256i index =
        _mm256_add_epi64(_mm256_setr_epi64x(0, 1, 2, 3), _mm256_set1_epi64x(4 * v));
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x((long long)left), index);
}

/* A clean block of f16 or bf16. */
void tp_avx2_f16(const void *data, size_t n, const tp_bounds *bounds, tp_block *out);
void tp_avx2_bf16(const void *data, size_t n, const tp_bounds *bounds, tp_block *out);
bool tp_avx2_f16_lean(const void *data, const tp_bounds *bounds, tp_block *out);
bool tp_avx2_bf16_lean(const void *data, const tp_bounds *bounds, tp_block *out);

#endif
