#include "stats/extras.h"

#include <math.h>
#include <string.h>

/* Elements that are looked at together. */
#define PIECE 512

void tp_extras_open(tp_extras *extras, const tp_stats_options *options, const tp_tensor *tensor,
                    const tp_walk *walk)
{
    extras->options = options;
    extras->hashes = options->hash != NULL;
    if (extras->hashes) {
        tp_hash_open(&extras->hash, tensor, walk);
    }
    if (options->bins != NULL) {
        memset(options->bins, 0, options->bin_count * sizeof(*options->bins));
    }
    if (options->exponents != NULL) {
        memset(options->exponents, 0, sizeof(*options->exponents));
    }
}

/* Bins as torch.histc: in the arithmetic of the type, the upper end included. Two loops, as the
 * first one becomes vectors. */
#define HISTOGRAM(name, type)                                                                      \
    static void name(const tp_stats_options *options, const type *x, size_t n, uint64_t times)     \
    {                                                                                              \
        const type low = (type)options->low;                                                       \
        const type high = (type)options->high;                                                     \
        const type width = high - low;                                                             \
        const type bins = (type)options->bin_count;                                                \
        const int last = (int)options->bin_count - 1;                                              \
        int bin[PIECE];                                                                            \
        for (size_t i = 0; i < n; i++) {                                                           \
            const type from_low = x[i] > low ? x[i] : low; /* NaN becomes low */                   \
            const type inside = from_low < high ? from_low : high;                                 \
            bin[i] = (int)((inside - low) * bins / width);                                         \
        }                                                                                          \
        for (size_t i = 0; i < n; i++) { /* without a branch that could be mispredicted */         \
            const uint64_t in_range = (uint64_t)(x[i] >= low) & (uint64_t)(x[i] <= high);          \
            options->bins[bin[i] < last ? bin[i] : last] += times * in_range;                      \
        }                                                                                          \
    }

HISTOGRAM(histogram_f32, float)
HISTOGRAM(histogram_f64, double)

static void count_exponent(tp_exponents *exponents, double x, uint64_t times)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    const int exponent = (int)(bits >> 52 & 0x7ff) - 1023; /* subnormal f64: far below the first */
    if (x == 0.0 || exponent == 1024) {
        return;
    }
    int bin = exponent - TP_EXPONENT_FIRST;
    bin = bin < 0 ? 0 : bin < TP_EXPONENT_BINS ? bin : TP_EXPONENT_BINS - 1;
    (bits >> 63 != 0 ? exponents->negative : exponents->positive)[bin] += times;
}

static float float_of(uint32_t dtype, const uint8_t *at)
{
    float x;
    uint32_t bits;
    uint16_t half;
    if (dtype == TP_F32) {
        memcpy(&x, at, sizeof(x));
        return x;
    }
    memcpy(&half, at, sizeof(half));
    if (dtype == TP_BF16) {
        bits = (uint32_t)half << 16;
        memcpy(&x, &bits, sizeof(x));
        return x;
    }
    /* As if the exponent were that of an f32, then put right by a multiplication, which is exact;
     * only Inf and NaN need another exponent. */
    bits = (uint32_t)(half & 0x7fff) << 13;
    memcpy(&x, &bits, sizeof(x));
    x *= 0x1p112F;
    memcpy(&bits, &x, sizeof(bits));
    bits |= x >= 0x1p16F ? 0x7f800000U : 0;
    bits |= (uint32_t)(half & 0x8000) << 16;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static void look_at_floats(const tp_stats_options *options, uint32_t dtype, const uint8_t *data,
                           size_t n)
{
    const size_t size = dtype == TP_F32 ? 4 : 2;
    float x[PIECE];
    for (size_t i = 0; i < n; i++) {
        x[i] = float_of(dtype, data + i * size);
    }
    if (options->bins != NULL) {
        histogram_f32(options, x, n, 1);
    }
    for (size_t i = 0; options->exponents != NULL && i < n; i++) {
        count_exponent(options->exponents, (double)x[i], 1);
    }
}

static void look_at_doubles(const tp_stats_options *options, const uint8_t *data, size_t n)
{
    double x[PIECE];
    memcpy(x, data, n * sizeof(*x));
    if (options->bins != NULL) {
        histogram_f64(options, x, n, 1);
    }
    for (size_t i = 0; options->exponents != NULL && i < n; i++) {
        count_exponent(options->exponents, x[i], 1);
    }
}

void tp_extras_block(tp_extras *extras, uint32_t dtype, const tp_pass *pass, const void *data,
                     size_t n)
{
    const tp_stats_options *options = extras->options;
    if (options->bins == NULL && options->exponents == NULL) {
        return;
    }
    const bool floats = dtype == TP_F32 || pass->halves;
    const size_t size = !floats ? 8 : dtype == TP_F32 ? 4 : 2;
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t part = n - i < PIECE ? n - i : PIECE;
        const uint8_t *at = (const uint8_t *)data + i * size;
        if (floats) {
            look_at_floats(options, dtype, at, part);
        } else {
            look_at_doubles(options, at, part);
        }
    }
}

static void look_at_codes(const tp_stats_options *options, const tp_pass *pass)
{
    uint64_t codes[256];
    const unsigned size = tp_bytes_codes(pass->bytes, &pass->counts, codes);
    for (unsigned code = 0; code < size; code++) {
        const float x = (float)pass->bytes->value[code];
        if (options->bins != NULL) {
            histogram_f32(options, &x, 1, codes[code]);
        }
        if (options->exponents != NULL) {
            count_exponent(options->exponents, (double)x, codes[code]);
        }
    }
}

void tp_extras_finish(tp_extras *extras, const tp_pass *pass, uint64_t weight)
{
    const tp_stats_options *options = extras->options;
    if (pass->bytes != NULL) {
        look_at_codes(options, pass);
    }
    for (uint32_t i = 0; options->bins != NULL && i < options->bin_count; i++) {
        options->bins[i] *= weight;
    }
    for (size_t i = 0; options->exponents != NULL && i < TP_EXPONENT_BINS; i++) {
        options->exponents->negative[i] *= weight;
        options->exponents->positive[i] *= weight;
    }
    if (extras->hashes) {
        *options->hash = tp_hash_value(&extras->hash);
    }
}
