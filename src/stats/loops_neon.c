/* The loops with NEON, for AArch64. loops_body.h says what they compute, and does what is left over
 * at the end. */
#include "stats/loops.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#include "stats/kernel_inline.h"
#include "stats/loops_body.h"

/* Dividing by a correction of 1 changes nothing, but takes its time. */
static void adam_f32(const float *exp_avg, const float *exp_avg_sq, size_t n,
                     const tp_adam_terms *terms, float *update, float *ratio)
{
    const float32x4_t correction1 = vdupq_n_f32((float)terms->correction1);
    const float32x4_t correction2 = vdupq_n_f32((float)terms->correction2);
    const float32x4_t eps = vdupq_n_f32((float)terms->eps);
    const bool first = (float)terms->correction1 != 1;
    const bool second = first || (float)terms->correction2 != 1;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4_t m = vld1q_f32(exp_avg + i);
        float32x4_t v = vld1q_f32(exp_avg_sq + i);
        m = first ? vdivq_f32(m, correction1) : m;
        v = second ? vdivq_f32(v, correction2) : v;
        const float32x4_t deviation = vsqrtq_f32(v);
        vst1q_f32(update + i, vdivq_f32(m, vaddq_f32(deviation, eps)));
        vst1q_f32(ratio + i, vdivq_f32(m, deviation));
    }
    adam_float(exp_avg + i, exp_avg_sq + i, n - i, terms, update + i, ratio + i);
}

static void adam_f64(const double *exp_avg, const double *exp_avg_sq, size_t n,
                     const tp_adam_terms *terms, double *update, double *ratio)
{
    const float64x2_t correction1 = vdupq_n_f64(terms->correction1);
    const float64x2_t correction2 = vdupq_n_f64(terms->correction2);
    const float64x2_t eps = vdupq_n_f64(terms->eps);
    const bool first = terms->correction1 != 1;
    const bool second = first || terms->correction2 != 1;
    size_t i = 0;
    for (; i + 2 <= n; i += 2) {
        float64x2_t m = vld1q_f64(exp_avg + i);
        float64x2_t v = vld1q_f64(exp_avg_sq + i);
        m = first ? vdivq_f64(m, correction1) : m;
        v = second ? vdivq_f64(v, correction2) : v;
        const float64x2_t deviation = vsqrtq_f64(v);
        vst1q_f64(update + i, vdivq_f64(m, vaddq_f64(deviation, eps)));
        vst1q_f64(ratio + i, vdivq_f64(m, deviation));
    }
    adam_double(exp_avg + i, exp_avg_sq + i, n - i, terms, update + i, ratio + i);
}

/* A mask is -1 where it holds, so that subtracting it counts. */
static void agree_f32(const float *gradient, const float *momentum, size_t n, tp_agreement *out)
{
    uint32x4_t same = vdupq_n_u32(0);
    uint32x4_t opposite = vdupq_n_u32(0);
    uint32x4_t numbers = vdupq_n_u32(0);
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t g = vld1q_f32(gradient + i);
        const float32x4_t m = vld1q_f32(momentum + i);
        const uint32x4_t up = vcgtzq_f32(g);
        const uint32x4_t down = vcltzq_f32(g);
        const uint32x4_t up_too = vcgtzq_f32(m);
        const uint32x4_t down_too = vcltzq_f32(m);
        same = vsubq_u32(same, vorrq_u32(vandq_u32(up, up_too), vandq_u32(down, down_too)));
        opposite = vsubq_u32(opposite, vorrq_u32(vandq_u32(up, down_too), vandq_u32(down, up_too)));
        numbers = vsubq_u32(numbers, vandq_u32(vceqq_f32(g, g), vceqq_f32(m, m)));
    }
    out->same += vaddvq_u32(same);
    out->opposite += vaddvq_u32(opposite);
    out->nan += i - vaddvq_u32(numbers);
    agree_float(gradient + i, momentum + i, n - i, out);
}

static void agree_f64(const double *gradient, const double *momentum, size_t n, tp_agreement *out)
{
    uint64x2_t same = vdupq_n_u64(0);
    uint64x2_t opposite = vdupq_n_u64(0);
    uint64x2_t numbers = vdupq_n_u64(0);
    size_t i = 0;
    for (; i + 2 <= n; i += 2) {
        const float64x2_t g = vld1q_f64(gradient + i);
        const float64x2_t m = vld1q_f64(momentum + i);
        const uint64x2_t up = vcgtzq_f64(g);
        const uint64x2_t down = vcltzq_f64(g);
        const uint64x2_t up_too = vcgtzq_f64(m);
        const uint64x2_t down_too = vcltzq_f64(m);
        same = vsubq_u64(same, vorrq_u64(vandq_u64(up, up_too), vandq_u64(down, down_too)));
        opposite = vsubq_u64(opposite, vorrq_u64(vandq_u64(up, down_too), vandq_u64(down, up_too)));
        numbers = vsubq_u64(numbers, vandq_u64(vceqq_f64(g, g), vceqq_f64(m, m)));
    }
    out->same += vaddvq_u64(same);
    out->opposite += vaddvq_u64(opposite);
    out->nan += i - vaddvq_u64(numbers);
    agree_double(gradient + i, momentum + i, n - i, out);
}

static void widen_f16_neon(const void *from, size_t n, float *to)
{
    const uint8_t *bytes = from;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float16x4_t x = vreinterpret_f16_u8(vld1_u8(bytes + 2 * i));
        vst1q_f32(to + i, vcvt_f32_f16(x));
    }
    widen_f16(bytes + 2 * i, n - i, to + i);
}

static void widen_bf16_neon(const void *from, size_t n, float *to)
{
    const uint8_t *bytes = from;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const uint16x4_t x = vreinterpret_u16_u8(vld1_u8(bytes + 2 * i));
        vst1q_f32(to + i, vreinterpretq_f32_u32(vshll_n_u16(x, 16)));
    }
    widen_bf16(bytes + 2 * i, n - i, to + i);
}

static void widen_f32_neon(const float *from, size_t n, double *to)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t x = vld1q_f32(from + i);
        vst1q_f64(to + i, vcvt_f64_f32(vget_low_f32(x)));
        vst1q_f64(to + i + 2, vcvt_high_f64_f32(x));
    }
    widen_f32(from + i, n - i, to + i);
}

typedef struct bounds32 {
    float32x4_t low, high, bins, width;
    int32x4_t last;
    bool multiply; /* by width, which is then 1 / width */
} bounds32;

/* All bits are 1 outside: the lowest byte is TP_NO_BIN. */
INLINE int32x4_t bin32(float32x4_t x, const bounds32 *b)
{
    const float32x4_t from_low = vbslq_f32(vcgtq_f32(x, b->low), x, b->low); /* NaN becomes low */
    const float32x4_t inside = vbslq_f32(vcltq_f32(from_low, b->high), from_low, b->high);
    const float32x4_t times = vmulq_f32(vsubq_f32(inside, b->low), b->bins);
    const float32x4_t at = b->multiply ? vmulq_f32(times, b->width) : vdivq_f32(times, b->width);
    const int32x4_t number = vminq_s32(vcvtq_s32_f32(at), b->last);
    const uint32x4_t known = vandq_u32(vcgeq_f32(x, b->low), vcleq_f32(x, b->high));
    return vorrq_s32(number, vreinterpretq_s32_u32(vmvnq_u32(known)));
}

static void bins_f32(const float *x, size_t n, const tp_stats_options *options, uint8_t *bin)
{
    const float low = (float)options->low;
    const float width = (float)options->high - low;
    int exponent;
    const bool power = frexpf(width, &exponent) == 0.5F;
    const bool multiply = power && exponent > -100 && exponent < 100;
    const bounds32 b = {.low = vdupq_n_f32(low),
                        .high = vdupq_n_f32((float)options->high),
                        .bins = vdupq_n_f32((float)options->bin_count),
                        .width = vdupq_n_f32(multiply ? 1 / width : width),
                        .last = vdupq_n_s32((int32_t)options->bin_count - 1),
                        .multiply = multiply};
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const int16x4_t one = vmovn_s32(bin32(vld1q_f32(x + i), &b));
        const int16x4_t two = vmovn_s32(bin32(vld1q_f32(x + i + 4), &b));
        vst1_u8(bin + i, vreinterpret_u8_s8(vmovn_s16(vcombine_s16(one, two))));
    }
    bins_float(x + i, n - i, options, bin + i);
}

/* Two bins share the counters of a register, in the halves of each byte: a table tells what a
 * number adds to them. Numbers outside of the pass have no place in the table, which gives 0. */
#define TOGETHER 8
#define MOST (15 * 16) /* bytes until half a byte may be full */

static void count(const uint8_t bin[TP_BLOCK], uint32_t bins, uint64_t *counts)
{
    uint8x16_t table[TOGETHER / 2];
    const uint8x16_t low = vdupq_n_u8(0x0f);
    UNROLL
    for (int k = 0; k < TOGETHER / 2; k++) {
        const uint64_t pair = UINT64_C(0x1001) << (16 * k);
        table[k] = vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(pair), vcreate_u64(0)));
    }
    for (uint32_t first = 0; first < bins; first += TOGETHER) {
        const uint8x16_t from = vdupq_n_u8((uint8_t)first);
        for (size_t start = 0; start < TP_BLOCK; start += MOST) {
            const size_t end = start + MOST < TP_BLOCK ? start + MOST : TP_BLOCK;
            uint8x16_t both[TOGETHER / 2];
            UNROLL
            for (int k = 0; k < TOGETHER / 2; k++) {
                both[k] = vdupq_n_u8(0);
            }
            for (size_t i = start; i < end; i += 16) {
                const uint8x16_t number = vsubq_u8(vld1q_u8(bin + i), from);
                UNROLL
                for (int k = 0; k < TOGETHER / 2; k++) {
                    both[k] = vaddq_u8(both[k], vqtbl1q_u8(table[k], number));
                }
            }
            for (uint32_t k = 0; k < TOGETHER && first + k < bins; k++) {
                const uint8x16_t pair = both[k / 2];
                counts[first + k] +=
                    vaddlvq_u8(k % 2 == 0 ? vandq_u8(pair, low) : vshrq_n_u8(pair, 4));
            }
        }
    }
}

/* Bins of doubles are rare, and two at a time are not much more than one. */
const tp_loops *tp_loops_neon(void)
{
    static const tp_loops table = {
        .adam_f32 = adam_f32,
        .adam_f64 = adam_f64,
        .agree_f32 = agree_f32,
        .agree_f64 = agree_f64,
        .widen_f16 = widen_f16_neon,
        .widen_bf16 = widen_bf16_neon,
        .widen_f32 = widen_f32_neon,
        .bins_f32 = bins_f32,
        .bins_f64 = bins_double,
        .count = count,
    };
    return &table;
}

#else

const tp_loops *tp_loops_neon(void)
{
    return NULL;
}

#endif
