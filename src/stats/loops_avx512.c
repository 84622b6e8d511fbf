#include "stats/loops.h"

#if defined(__AVX512F__) && defined(__AVX512BW__)

#include <immintrin.h>

#include "stats/kernel_inline.h"
#include "stats/loops_body.h"

#define VECTOR 64
#define TOGETHER 8         /* bins that are counted in one pass over the bytes */
#define MOST (15 * VECTOR) /* bytes until half a byte may be full */

_Static_assert(TP_BLOCK / VECTOR <= UINT8_MAX, "a counter of a byte lane is a byte");

/* Two bins share the counters of a register, in the halves of each byte: a table tells what a
 * number adds to them. Numbers outside of the pass get bit 7, for which the look-up gives 0. */
static void count(const uint8_t bin[TP_BLOCK], uint32_t bins, uint64_t *counts)
{
    const __m512i low = _mm512_set1_epi8(0x0f);
    const __m512i beyond = _mm512_set1_epi8(0x70);
    __m512i table[TOGETHER / 2];
    UNROLL
    for (int k = 0; k < TOGETHER / 2; k++) {
        const uint64_t pair = UINT64_C(0x1001) << (16 * k);
        table[k] = _mm512_broadcast_i32x4(_mm_set_epi64x(0, (long long)pair));
    }
    for (uint32_t first = 0; first < bins; first += TOGETHER) {
        const __m512i from = _mm512_set1_epi8((char)first);
        __m512i found[TOGETHER];
        UNROLL
        for (int k = 0; k < TOGETHER; k++) {
            found[k] = _mm512_setzero_si512();
        }
        for (size_t start = 0; start < TP_BLOCK; start += MOST) {
            const size_t end = start + MOST < TP_BLOCK ? start + MOST : TP_BLOCK;
            __m512i both[TOGETHER / 2];
            UNROLL
            for (int k = 0; k < TOGETHER / 2; k++) {
                both[k] = _mm512_setzero_si512();
            }
            for (size_t i = start; i < end; i += VECTOR) {
                const __m512i x = _mm512_loadu_si512(bin + i);
                const __m512i number = _mm512_adds_epu8(_mm512_sub_epi8(x, from), beyond);
                UNROLL
                for (int k = 0; k < TOGETHER / 2; k++) {
                    both[k] = _mm512_add_epi8(both[k], _mm512_shuffle_epi8(table[k], number));
                }
            }
            UNROLL
            for (int k = 0; k < TOGETHER / 2; k++) {
                const __m512i high = _mm512_srli_epi16(both[k], 4);
                found[2 * k] = _mm512_add_epi8(found[2 * k], _mm512_and_si512(both[k], low));
                found[2 * k + 1] = _mm512_add_epi8(found[2 * k + 1], _mm512_and_si512(high, low));
            }
        }
        for (uint32_t k = 0; k < TOGETHER && first + k < bins; k++) {
            const __m512i sums = _mm512_sad_epu8(found[k], _mm512_setzero_si512());
            counts[first + k] += (uint64_t)_mm512_reduce_add_epi64(sums);
        }
    }
}

TP_LOOPS_TABLE(avx512)

#else

const tp_loops *tp_loops_avx512(void)
{
    return NULL;
}

#endif
