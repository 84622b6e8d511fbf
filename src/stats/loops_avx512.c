#include "stats/loops.h"

#if defined(__AVX512F__) && defined(__AVX512BW__)

#include <immintrin.h>

#include "stats/kernel_inline.h"
#include "stats/loops_body.h"

#define VECTOR 64
#define TOGETHER 8 /* bins whose counters are in registers */

_Static_assert(TP_BLOCK / VECTOR <= UINT8_MAX, "a counter of a byte lane is a byte");

static void count(const uint8_t bin[TP_BLOCK], uint32_t bins, uint64_t *counts)
{
    const __m512i less_1 = _mm512_set1_epi8(-1);
    for (uint32_t first = 0; first < bins; first += TOGETHER) {
        __m512i found[TOGETHER];
        UNROLL
        for (uint32_t k = 0; k < TOGETHER; k++) {
            found[k] = _mm512_setzero_si512();
        }
        for (size_t i = 0; i < TP_BLOCK; i += VECTOR) {
            const __m512i x = _mm512_loadu_si512(bin + i);
            UNROLL
            for (uint32_t k = 0; k < TOGETHER; k++) {
                const __mmask64 equal =
                    _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8((char)(first + k)));
                found[k] = _mm512_mask_sub_epi8(found[k], equal, found[k], less_1);
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
