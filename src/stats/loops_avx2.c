#include "stats/loops.h"

#if defined(__AVX2__) && defined(__F16C__)

#include <immintrin.h>

#include "stats/kernel_inline.h"
#include "stats/loops_body.h"

#define VECTOR 32
#define TOGETHER 8 /* bins whose counters are in registers */

_Static_assert(TP_BLOCK / VECTOR <= UINT8_MAX, "a counter of a byte lane is a byte");

static void count(const uint8_t bin[TP_BLOCK], uint32_t bins, uint64_t *counts)
{
    for (uint32_t first = 0; first < bins; first += TOGETHER) {
        __m256i found[TOGETHER];
        UNROLL
        for (uint32_t k = 0; k < TOGETHER; k++) {
            found[k] = _mm256_setzero_si256();
        }
        for (size_t i = 0; i < TP_BLOCK; i += VECTOR) {
            const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(bin + i));
            UNROLL
            for (uint32_t k = 0; k < TOGETHER; k++) {
                const __m256i equal = _mm256_cmpeq_epi8(x, _mm256_set1_epi8((char)(first + k)));
                found[k] = _mm256_sub_epi8(found[k], equal);
            }
        }
        for (uint32_t k = 0; k < TOGETHER && first + k < bins; k++) {
            uint64_t part[4];
            _mm256_storeu_si256((__m256i *)(void *)part,
                                _mm256_sad_epu8(found[k], _mm256_setzero_si256()));
            counts[first + k] += part[0] + part[1] + part[2] + part[3];
        }
    }
}

TP_LOOPS_TABLE(avx2)

#else

const tp_loops *tp_loops_avx2(void)
{
    return NULL;
}

#endif
