/* Random tensors for the tests of the statistics: every dtype, length, layout and kind of content,
 * in memory that ends at pages which can't be touched. */
#ifndef TP_TESTS_KERNELS_DRAW_H
#define TP_TESTS_KERNELS_DRAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensorprobe/stats.h"

#define DRAW_DIMS 4
#define DRAW_BYTES ((size_t)3 * 8194 * 16) /* of the largest tensor that is drawn */
#define DRAW_LARGE_BYTES ((size_t)5 << 19) /* of one that several threads read */

typedef struct draw_tensor {
    tp_tensor tensor;
    int64_t shape[DRAW_DIMS];
    int64_t strides[DRAW_DIMS];
    const uint8_t *memory; /* the bytes that the tensor may touch */
    size_t bytes;
    double eps;
    uint32_t bin_count; /* of a histogram over [low, high] */
    double low;
    double high;
    uint32_t threads; /* left alone by the draws */
} draw_tensor;

/* The next draws are those of this number. */
void draw_seed(uint64_t seed);
uint64_t draw_bits(void);
uint64_t draw_below(uint64_t n);

/* The environment variable as a number. */
uint64_t draw_setting(const char *name, uint64_t usual);

/* A tensor of this dtype in the guarded memory, over the one that was drawn before. */
void draw_next(draw_tensor *out, uint32_t dtype);

/* A contiguous one of more than 1 MiB, up to DRAW_LARGE_BYTES. */
void draw_large(draw_tensor *out, uint32_t dtype);

/* Guarded memory with nothing in it yet: at_end says whether the page behind it is the guard, or
 * the one before it. At most DRAW_LARGE_BYTES. */
uint8_t *draw_place(size_t bytes, bool at_end);

/* Elements that may be touched (the offset of the first one, *start, among them), or SIZE_MAX when
 * they are more than `most`. ndim up to DRAW_DIMS. */
size_t draw_reach(const int64_t *shape, const int64_t *strides, uint32_t ndim, size_t most,
                  int64_t *start);

#endif
