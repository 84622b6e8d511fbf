#include "stats/extras.h"

#include <math.h>
#include <string.h>

/* Elements that are looked at together. */
#define PIECE 512

bool tp_extras_are_valid(const tp_stats_options *options)
{
    const float low = (float)options->low;
    const float high = (float)options->high;
    return options->eps >= 0.0 && (options->bins == NULL ||
                                   (low < high && high - low < INFINITY &&
                                    options->bin_count >= 1 && options->bin_count <= TP_MAX_BINS));
}

void tp_extras_open(tp_extras *extras, const tp_stats_options *options, const tp_loops *loops,
                    const tp_tensor *tensor, const tp_walk *walk)
{
    extras->options = options;
    extras->loops = loops;
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

/* How often the upper nine bits of a float, its sign and exponent, are what. Two tables, as the
 * same number mostly comes several times in a row. */
#define FLOAT_TOPS 512
typedef struct float_tops {
    uint16_t seen[2][FLOAT_TOPS];
} float_tops;

_Static_assert(TP_BLOCK <= UINT16_MAX, "a block's counts fit");

static void count_tops(float_tops *tops, const float *x, size_t n)
{
    uint32_t bits[2];
    size_t i = 0;
    for (; i + 1 < n; i += 2) {
        memcpy(bits, x + i, sizeof(bits));
        tops->seen[0][bits[0] >> 23]++;
        tops->seen[1][bits[1] >> 23]++;
    }
    if (i < n) {
        memcpy(bits, x + i, sizeof(*bits));
        tops->seen[0][bits[0] >> 23]++;
    }
}

static unsigned zero_tops(const float_tops *tops)
{
    return (unsigned)tops->seen[0][0] + tops->seen[1][0] + tops->seen[0][256] + tops->seen[1][256];
}

/* Those of numbers that are neither zero nor subnormal, infinite or NaN. */
static void add_tops(tp_exponents *exponents, const float_tops *tops)
{
    uint64_t *const signs[] = {exponents->positive, exponents->negative};
    for (unsigned top = 0; top < FLOAT_TOPS; top++) {
        const unsigned field = top % 256;
        if (field != 0 && field != 255) {
            signs[top / 256][(int)field - 127 - TP_EXPONENT_FIRST] +=
                (uint64_t)tops->seen[0][top] + tops->seen[1][top];
        }
    }
}

/* The others that are no zeros, of which there are few. */
static void count_subnormal(tp_exponents *exponents, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof(bits));
        if ((bits & 0x7fffffff) - 1 < 0x7fffff) {
            count_exponent(exponents, (double)x[i], 1);
        }
    }
}

static const float *floats_of(const tp_loops *loops, uint32_t dtype, const void *x, size_t n,
                              float *room)
{
    if (dtype == TP_F16) {
        loops->widen_f16(x, n, room);
    } else if (dtype == TP_BF16) {
        loops->widen_bf16(x, n, room);
    } else if ((uintptr_t)x % sizeof(*room) == 0) {
        return x;
    } else {
        memcpy(room, x, n * sizeof(*room));
    }
    return room;
}

/* Few bins are counted when all elements of the block have theirs. */
void tp_extras_block(tp_extras *extras, const tp_pass *pass, const void *data, size_t n)
{
    const tp_stats_options *options = extras->options;
    if (options->bins == NULL && options->exponents == NULL) {
        return;
    }
    const uint32_t dtype = pass->dtype;
    const bool floats = dtype == TP_F32 || pass->halves;
    const bool few = options->bins != NULL && options->bin_count <= TP_LOOP_BINS;
    const size_t size = !floats ? 8 : dtype == TP_F32 ? 4 : 2;
    _Alignas(64) uint8_t bin[TP_BLOCK];
    const bool counts_tops = floats && options->exponents != NULL;
    float_tops tops;
    if (counts_tops) {
        memset(&tops, 0, sizeof(tops));
    }
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t part = n - i < PIECE ? n - i : PIECE;
        const uint8_t *at = (const uint8_t *)data + i * size;
        _Alignas(64) double room[PIECE];
        if (floats) {
            const float *x = floats_of(extras->loops, dtype, at, part, (float *)(void *)room);
            if (few) {
                extras->loops->bins_f32(x, part, options, bin + i);
            } else if (options->bins != NULL) {
                histogram_f32(options, x, part, 1);
            }
            if (counts_tops) {
                const unsigned before = zero_tops(&tops);
                count_tops(&tops, x, part);
                if (zero_tops(&tops) != before) {
                    count_subnormal(options->exponents, x, part);
                }
            }
        } else {
            memcpy(room, at, part * sizeof(*room));
            if (few) {
                extras->loops->bins_f64(room, part, options, bin + i);
            } else if (options->bins != NULL) {
                histogram_f64(options, room, part, 1);
            }
            for (size_t k = 0; options->exponents != NULL && k < part; k++) {
                count_exponent(options->exponents, room[k], 1);
            }
        }
    }
    if (counts_tops) {
        add_tops(options->exponents, &tops);
    }
    if (few) {
        memset(bin + n, TP_NO_BIN, TP_BLOCK - n);
        extras->loops->count(bin, options->bin_count, options->bins);
    }
}

uint64_t tp_extras_read(tp_extras *extras, tp_pass *pass, tp_walk *walk, uint64_t n,
                        tp_pass_space *space, uint64_t before)
{
    tp_hash *hash = extras->hashes ? &extras->hash : NULL;
    for (uint64_t left = n; left > 0;) {
        const uint64_t position = walk->count - walk->left;
        const size_t part = tp_pass_piece(pass, walk, left);
        const void *data = tp_pass_next(pass, walk, part, space, hash);
        before = tp_pass_add(pass, data, part) ? position : before;
        if (pass->bytes == NULL) {
            tp_extras_block(extras, pass, data, part);
        }
        left -= part;
    }
    return before;
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
