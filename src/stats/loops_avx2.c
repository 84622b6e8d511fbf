#include "stats/loops.h"

#if defined(__AVX2__) && defined(__F16C__)

#include <immintrin.h>

#include "stats/kernel_inline.h"
#include "stats/loops_body.h"

#define VECTOR 32
#define TOGETHER 8         /* bins that are counted in one pass over the bytes */
#define MOST (15 * VECTOR) /* bytes until half a byte may be full */

_Static_assert(TP_BLOCK / VECTOR <= UINT8_MAX, "a counter of a byte lane is a byte");

/* Two bins share the counters of a register, in the halves of each byte: a table tells what a
 * number adds to them. Numbers outside of the pass get bit 7, for which the look-up gives 0. */
static void count(const uint8_t bin[TP_BLOCK], uint32_t bins, uint64_t *counts)
{
    const __m256i low = _mm256_set1_epi8(0x0f);
    const __m256i beyond = _mm256_set1_epi8(0x70);
    __m256i table[TOGETHER / 2];
    UNROLL
    for (int k = 0; k < TOGETHER / 2; k++) {
        const uint64_t pair = UINT64_C(0x1001) << (16 * k);
        table[k] = _mm256_broadcastsi128_si256(_mm_set_epi64x(0, (long long)pair));
    }
    for (uint32_t first = 0; first < bins; first += TOGETHER) {
        const __m256i from = _mm256_set1_epi8((char)first);
        __m256i found[TOGETHER];
        UNROLL
        for (int k = 0; k < TOGETHER; k++) {
            found[k] = _mm256_setzero_si256();
        }
        for (size_t start = 0; start < TP_BLOCK; start += MOST) {
            const size_t end = start + MOST < TP_BLOCK ? start + MOST : TP_BLOCK;
            __m256i both[TOGETHER / 2];
            UNROLL
            for (int k = 0; k < TOGETHER / 2; k++) {
                both[k] = _mm256_setzero_si256();
            }
            for (size_t i = start; i < end; i += VECTOR) {
                const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(bin + i));
                const __m256i number = _mm256_adds_epu8(_mm256_sub_epi8(x, from), beyond);
                UNROLL
                for (int k = 0; k < TOGETHER / 2; k++) {
                    both[k] = _mm256_add_epi8(both[k], _mm256_shuffle_epi8(table[k], number));
                }
            }
            UNROLL
            for (int k = 0; k < TOGETHER / 2; k++) {
                const __m256i high = _mm256_srli_epi16(both[k], 4);
                found[2 * k] = _mm256_add_epi8(found[2 * k], _mm256_and_si256(both[k], low));
                found[2 * k + 1] = _mm256_add_epi8(found[2 * k + 1], _mm256_and_si256(high, low));
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
