/* Any dtype, shape, strides and bytes as a tensor: the kernels in use give the bytes of the scalar
 * ones, the counts fit together, the hash is that of a contiguous copy, and nothing but the tensor is
 * read. Shapes that no tensor has are refused.
 *
 * Input: dtype, ndim, outputs asked for, choice of eps; for each dimension shape and stride (16 bits
 * each) and how far the shape is shifted; the rest is the tensor's memory. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "driver.h"
#include "stats/kernels.h"
#include "tensor/walk.h"

#define DIMS 5
#define HEAD 4
#define DIM_BYTES 5
#define BINS 30
#define MOST_READ (1 << 16) /* elements, without the expanded ones */

typedef struct outputs {
    tp_stats stats;
    uint64_t bins[BINS];
    tp_exponents exponents;
    uint64_t hash;
} outputs;

/* A bf16 of 3 x 4 x 5, transposed and sliced. */
size_t tp_fuzz_seed(uint8_t *data, size_t capacity)
{
    static const uint8_t head[] = {TP_BF16, 3, 7, 1, 3, 0, 1, 0, 0, 4, 0, 15, 0, 0, 5, 0, 3, 0, 0};
    const size_t size = sizeof(head) + (size_t)2 * 130;
    if (size > capacity) {
        return 0;
    }
    memcpy(data, head, sizeof(head));
    for (size_t i = sizeof(head); i < size; i++) {
        data[i] = (uint8_t)(i % 2 == 0 ? 0x3f + i / 64 : i * 37);
    }
    return size;
}

static int64_t number(const uint8_t *at)
{
    return (int16_t)(uint16_t)(at[0] | at[1] << 8);
}

/* False when the shape is none, or so large that its size has no 63 bits. */
static bool is_shape(const int64_t *shape, uint32_t ndim)
{
    int64_t product = 1;
    for (uint32_t d = 0; d < ndim; d++) {
        if (shape[d] < 0) {
            return false;
        }
    }
    for (uint32_t d = 0; d < ndim; d++) {
        if (shape[d] == 0) {
            return true;
        }
    }
    for (uint32_t d = 0; d < ndim; d++) {
        if (__builtin_mul_overflow(product, shape[d], &product)) {
            return false;
        }
    }
    return true;
}

/* Makes the tensor small enough for its memory. Returns the first element's place, or -1. */
static int64_t fit(int64_t *shape, const int64_t *strides, uint32_t ndim, int64_t elements)
{
    for (;;) {
        int64_t low = 0;
        int64_t high = 0;
        int64_t read = 1;
        uint32_t longest = ndim;
        for (uint32_t d = 0; d < ndim; d++) {
            if (strides[d] == 0) {
                continue;
            }
            if (shape[d] > 1 && (longest == ndim || shape[d] > shape[longest])) {
                longest = d;
            }
            const int64_t size = shape[d] < MOST_READ ? shape[d] : MOST_READ;
            low += strides[d] < 0 ? (size - 1) * strides[d] : 0;
            high += strides[d] > 0 ? (size - 1) * strides[d] : 0;
            read = read * size < MOST_READ ? read * size : MOST_READ;
        }
        if (high - low < elements && read < MOST_READ) {
            return -low;
        }
        if (longest == ndim) {
            return -1;
        }
        shape[longest] /= 2;
    }
}

static void compute(const tp_tensor *tensor, uint8_t with, double eps, int isa, outputs *out)
{
    const tp_stats_options options = {
        .eps = eps,
        .bins = (with & 1) != 0 ? out->bins : NULL,
        .bin_count = BINS,
        .low = -1.0,
        .high = 1.0,
        .exponents = (with & 2) != 0 ? &out->exponents : NULL,
        .hash = (with & 4) != 0 ? &out->hash : NULL,
    };
    memset(out, 0, sizeof(*out));
    if (tp_stats_compute_isa(tensor, &options, isa, &out->stats, NULL) != TP_OK) {
        abort();
    }
}

static void counts_fit(const tp_stats *stats, const outputs *out)
{
    const uint64_t odd = stats->nan + stats->pos_inf + stats->neg_inf;
    uint64_t binned = 0;
    uint64_t numbers = 0;
    for (size_t i = 0; i < BINS; i++) {
        binned += out->bins[i];
    }
    for (size_t i = 0; i < TP_EXPONENT_BINS; i++) {
        numbers += out->exponents.negative[i] + out->exponents.positive[i];
    }
    const bool some = odd < stats->count;
    if (odd > stats->count || stats->zeros > stats->count - stats->nan ||
        binned > stats->count - odd || numbers > stats->count - odd ||
        some != (stats->finite_min <= stats->finite_max) ||
        (stats->nan == stats->count) != (stats->abs_max_index == TP_NO_INDEX) ||
        !(stats->m2 >= 0.0) || !(stats->sum_sq >= 0.0) || !(stats->sum_abs >= fabs(stats->sum))) {
        abort();
    }
}

/* The hash and the exact values of the same elements side by side in row-major order. */
static void copy_agrees(const tp_tensor *tensor, uint64_t total, double eps, const outputs *right)
{
    const size_t size = tp_dtype_size(tensor->dtype);
    uint8_t *copy = tp_calloc(total, size);
    int64_t at[DIMS] = {0};
    for (uint64_t i = 0; i < total; i++) {
        int64_t offset = 0;
        for (uint32_t d = 0; d < tensor->ndim; d++) {
            offset += at[d] * tensor->strides[d];
        }
        memcpy(copy + i * size, (const uint8_t *)tensor->data + offset * (int64_t)size, size);
        for (uint32_t d = tensor->ndim; d-- > 0 && ++at[d] == tensor->shape[d];) {
            at[d] = 0;
        }
    }
    tp_tensor dense = *tensor;
    dense.data = copy;
    dense.strides = NULL;
    outputs found;
    compute(&dense, 7, eps, tp_cpu_isa_supported(), &found);
    if (found.hash != right->hash || found.stats.nan != right->stats.nan ||
        found.stats.zeros != right->stats.zeros ||
        memcmp(&found.stats.min, &right->stats.min, 5 * sizeof(double)) != 0 ||
        memcmp(found.bins, right->bins, sizeof(found.bins)) != 0 ||
        memcmp(&found.exponents, &right->exponents, sizeof(found.exponents)) != 0) {
        abort();
    }
    tp_free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const double bounds[] = {0.0, 1e-8, 0.5, 1e-310, INFINITY};
    static outputs right;
    static outputs found;
    const uint32_t ndim = size > 1 ? data[1] % (DIMS + 1) : 0;
    const size_t head = HEAD + (size_t)ndim * DIM_BYTES;
    if (size < head) {
        return 0;
    }
    int64_t shape[DIMS];
    int64_t strides[DIMS];
    tp_tensor tensor = {data + head, shape, strides, 1 + data[0] % TP_C128, ndim};
    const double eps = bounds[data[3] % (sizeof(bounds) / sizeof(bounds[0]))];
    for (uint32_t d = 0; d < ndim; d++) {
        const uint8_t *dim = data + HEAD + (size_t)d * DIM_BYTES;
        shape[d] = number(dim) * (INT64_C(1) << dim[4] % 49);
        strides[d] = number(dim + 2);
    }
    if (!is_shape(shape, ndim)) {
        if (tp_stats_compute(&tensor, eps, &right.stats) != TP_ERR_ARGUMENT) {
            abort();
        }
        return 0;
    }
    const size_t element = tp_dtype_size(tensor.dtype);
    const int64_t first = fit(shape, strides, ndim, (int64_t)((size - head) / element));
    if (first < 0) {
        return 0;
    }
    tensor.data = data + head + (size_t)first * element;
    compute(&tensor, data[2], eps, TP_ISA_SCALAR, &right);
    counts_fit(&right.stats, &right);
    for (int isa = TP_ISA_AVX2; isa <= tp_cpu_isa_supported(); isa++) {
        tp_stats stats;
        const tp_stats_options plain = {.eps = eps};
        if (tp_stats_compute_isa(&tensor, &plain, isa, &stats, NULL) != TP_OK) {
            continue; /* of another kind of processor */
        }
        compute(&tensor, data[2], eps, isa, &found);
        if (memcmp(&found, &right, sizeof(found)) != 0 ||
            memcmp(&stats, &right.stats, sizeof(stats)) != 0) {
            abort();
        }
    }
    const uint64_t total = right.stats.count / (tensor.dtype == TP_F4_E2M1FN_X2 ? 2 : 1);
    if (total <= MOST_READ) {
        compute(&tensor, 7, eps, TP_ISA_SCALAR, &right);
        copy_agrees(&tensor, total, eps, &right);
    }
    return 0;
}
