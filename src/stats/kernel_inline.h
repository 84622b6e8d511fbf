/* What the kernel files share, whatever their instruction set. */
#ifndef TP_STATS_KERNEL_INLINE_H
#define TP_STATS_KERNEL_INLINE_H

#include <string.h>

#include "stats/kernels.h"

/* dtype, clean and full are constants in every caller, so that the branches on them disappear. */
#define INLINE static inline __attribute__((always_inline))

/* Loops over the vectors of a group must vanish, for their arrays to live in registers. */
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* Bytes of an element of a dtype that has kernels. */
INLINE size_t size_of(uint32_t dtype)
{
    return dtype == TP_F64 ? 8 : dtype == TP_F32 ? 4 : 2;
}

/* The last group of a block: its bytes, then zeros up to `room`. */
INLINE const uint8_t *pad(uint8_t *group, size_t room, const uint8_t *data, size_t bytes)
{
    memset(group, 0, room);
    memcpy(group, data, bytes);
    return group;
}

#if defined(__F16C__)

#include <immintrin.h>

/* With the load of the `bytes` at this place. */
INLINE void prefetch(const uint8_t *at, size_t bytes, size_t ahead)
{
    for (size_t line = 0; line < bytes; line += 64) {
        _mm_prefetch((const char *)at + ahead + line, _MM_HINT_T0);
    }
}

/* The value of a f16 or bf16 whose pattern was made comparable: negative numbers have their
 * magnitude flipped. */
INLINE double value16(uint32_t dtype, int key)
{
    const uint16_t bits = (uint16_t)(key < 0 ? key ^ 0x7fff : key);
    if (dtype == TP_F16) {
        return (double)_cvtsh_ss(bits);
    }
    return (double)_mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)((uint32_t)bits << 16))));
}

/* The smallest pattern of a f16 or bf16 whose value is not less than x, a float. */
INLINE short pattern_up(uint32_t dtype, float x)
{
    if (dtype == TP_F16) {
        return (short)_cvtss_sh(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    }
    const uint32_t bits = (uint32_t)_mm_cvtsi128_si32(_mm_castps_si128(_mm_set_ss(x)));
    return (short)((bits + 0xffff) >> 16);
}

#endif

#endif
