/* Clean blocks of f16 and bf16 with AVX2 and F16C. kernel_scalar.c says what they compute. */
#include "stats/kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "stats/avx2.h"

/* Everything but the sums is done on the 16-bit patterns, whose order is that of sign and
 * magnitude. */
typedef struct pass16 {
    sums s;
    __m256i zeros; /* counts per 16-bit lane: a block has at most 256 steps of 16 elements */
    __m256i subnormal;
    __m256i least; /* magnitude; in place of the counts */
    __m256i min;   /* keys: the patterns made comparable as signed integers */
    __m256i max;
    __m256i eps;
    __m256i normal;
} pass16;

/* The counts and extremes of 16 elements, of which `left` are there. */
INLINE void look16(pass16 *p, __m256i bits, size_t left, bool full, bool lean)
{
    const __m256i index = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi16(0x7fff));
    /* Two's complement to sign and magnitude: flips the magnitude of negative numbers. */
    const __m256i key = _mm256_xor_si256(
        bits, _mm256_and_si256(_mm256_srai_epi16(bits, 15), _mm256_set1_epi16(0x7fff)));
    __m256i zeros = _mm256_cmpgt_epi16(p->eps, magnitude);
    __m256i low = key;
    __m256i high = key;
    if (!full) {
        const short there = (short)(left < 16 ? left : 16);
        const __m256i valid = _mm256_cmpgt_epi16(_mm256_set1_epi16(there), index);
        zeros = _mm256_and_si256(zeros, valid);
        low = _mm256_blendv_epi8(_mm256_set1_epi16(INT16_MAX), key, valid);
        high = _mm256_blendv_epi8(_mm256_set1_epi16(INT16_MIN), key, valid);
    }
    if (lean) {
        p->least = _mm256_min_epi16(p->least, magnitude);
    } else {
        p->zeros = _mm256_sub_epi16(p->zeros, zeros);
        /* Elements that are not there are 0 and thereby not subnormal. */
        const __m256i subnormal =
            _mm256_and_si256(_mm256_cmpgt_epi16(magnitude, _mm256_setzero_si256()),
                             _mm256_cmpgt_epi16(p->normal, magnitude));
        p->subnormal = _mm256_sub_epi16(p->subnormal, subnormal);
    }
    p->min = _mm256_min_epi16(p->min, low);
    p->max = _mm256_max_epi16(p->max, high);
}

INLINE __m256 tree(const __m256 x[8])
{
    const __m256 low = _mm256_add_ps(_mm256_add_ps(x[0], x[1]), _mm256_add_ps(x[2], x[3]));
    const __m256 high = _mm256_add_ps(_mm256_add_ps(x[4], x[5]), _mm256_add_ps(x[6], x[7]));
    return _mm256_add_ps(low, high);
}

/* To lanes 8h to 8h + 7. */
INLINE void add_partial(lanes *sum, int h, __m256 partial)
{
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(partial));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(partial, 1));
    sum->v[2 * h] = _mm256_add_pd(sum->v[2 * h], low);
    sum->v[2 * h + 1] = _mm256_add_pd(sum->v[2 * h + 1], high);
}

/* TP_HALVES elements, of which `left` are there and the others are 0. */
INLINE void step16(pass16 *p, uint32_t dtype, const uint8_t *at, size_t left, bool full, bool lean)
{
    UNROLL
    for (int h = 0; h < 2; h++) {
        __m256 x[8];
        __m256 y[8];
        UNROLL
        for (int k = 0; k < 4; k++) {
            const uint8_t *from = at + 64 * k + 32 * h;
            const __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)from);
            const size_t start = (size_t)(32 * k + 16 * h);
            look16(p, bits, left > start ? left - start : 0, full, lean);
            if (dtype == TP_F16) {
                const uint8_t *low = at + 64 * k + 16 * h;
                x[2 * k] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)low));
                x[2 * k + 1] =
                    _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(low + 32)));
            } else {
                const __m256i odd = _mm256_and_si256(bits, _mm256_set1_epi32((int)0xffff0000));
                x[2 * k] = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
                x[2 * k + 1] = _mm256_castsi256_ps(odd);
            }
        }
        add_partial(&p->s.sum, h, tree(x));
        UNROLL
        for (int v = 0; v < 8; v++) {
            y[v] = abs_ps(x[v]);
        }
        add_partial(&p->s.sum_abs, h, tree(y));
        UNROLL
        for (int v = 0; v < 8; v++) {
            y[v] = _mm256_mul_ps(x[v], x[v]);
        }
        add_partial(&p->s.sum_sq, h, tree(y));
    }
}

INLINE uint64_t total16(__m256i counter)
{
    return total32(_mm256_madd_epi16(counter, _mm256_set1_epi16(1)));
}

INLINE short least16(__m256i x)
{
    short part[16];
    _mm256_storeu_si256((__m256i *)(void *)part, x);
    for (int l = 1; l < 16; l++) {
        part[0] = part[l] < part[0] ? part[l] : part[0];
    }
    return part[0];
}

INLINE short most16(__m256i x)
{
    short part[16];
    _mm256_storeu_si256((__m256i *)(void *)part, x);
    for (int l = 1; l < 16; l++) {
        part[0] = part[l] > part[0] ? part[l] : part[0];
    }
    return part[0];
}

/* lean: whether no magnitude is less than the bounds; else true. */
INLINE bool block16(uint32_t dtype, const uint8_t *data, size_t n, const tp_bounds *bounds,
                    bool lean, tp_block *out)
{
    const short eps = pattern_up(dtype, (float)bounds->eps);
    const short normal = pattern_up(dtype, (float)bounds->normal);
    pass16 p = {
        .s = {lanes_all(0.0), lanes_all(0.0), lanes_all(0.0)},
        .min = _mm256_set1_epi16(INT16_MAX),
        .max = _mm256_set1_epi16(INT16_MIN),
        .least = _mm256_set1_epi16(INT16_MAX),
        .eps = _mm256_set1_epi16(eps),
        .normal = _mm256_set1_epi16(normal),
    };
    const size_t ahead = bounds->ahead;
    size_t i = 0;
    for (; i + TP_HALVES <= n; i += TP_HALVES) {
        prefetch(data + 2 * i, 2 * TP_HALVES, ahead);
        step16(&p, dtype, data + 2 * i, TP_HALVES, true, lean);
    }
    if (i < n) {
        uint8_t group[2 * TP_HALVES];
        step16(&p, dtype, pad(group, sizeof(group), data + 2 * i, 2 * (n - i)), n - i, false, lean);
    }
    *out = (tp_block){
        .zeros = total16(p.zeros),
        .subnormal = total16(p.subnormal),
        .min = value16(dtype, least16(p.min)) + 0.0, /* -0 becomes +0 */
        .max = value16(dtype, most16(p.max)) + 0.0,
        .sum = lanes_sum(&p.s.sum),
        .sum_abs = lanes_sum(&p.s.sum_abs),
        .sum_sq = lanes_sum(&p.s.sum_sq),
    };
    return !lean || least16(p.least) >= (eps > normal ? eps : normal);
}

void tp_avx2_f16(const void *data, size_t n, const tp_bounds *bounds, tp_block *out)
{
    (void)block16(TP_F16, data, n, bounds, false, out);
}

bool tp_avx2_f16_lean(const void *data, const tp_bounds *bounds, tp_block *out)
{
    return block16(TP_F16, data, TP_BLOCK, bounds, true, out);
}

void tp_avx2_bf16(const void *data, size_t n, const tp_bounds *bounds, tp_block *out)
{
    (void)block16(TP_BF16, data, n, bounds, false, out);
}

bool tp_avx2_bf16_lean(const void *data, const tp_bounds *bounds, tp_block *out)
{
    return block16(TP_BF16, data, TP_BLOCK, bounds, true, out);
}

#endif
