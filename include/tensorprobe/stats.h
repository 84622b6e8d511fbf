/* Statistics of one tensor from one read of its memory. */
#ifndef TENSORPROBE_STATS_H
#define TENSORPROBE_STATS_H

#include <stdint.h>

#include "tensorprobe/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* No element has this index: the tensor is empty or holds nothing but NaN. */
#define TP_NO_INDEX UINT64_MAX

/* Everything is exact except the four sums, whose error bound is that of blocked f64 summation
 * (docs/statistics.md). Integers above 2^53 are rounded to f64, a complex number counts as its
 * modulus. "Finite" leaves out NaN and ±Inf, which are counted beside.
 * The bits do not depend on the instruction set. NaN is always the quiet NaN 0x7ff8000000000000,
 * a zero is always +0. Size 136, stored in journals as is: fields are never moved. */
typedef struct tp_stats {
    uint64_t count;         /* elements, expanded dimensions included */
    uint64_t nan;           /* elements that are NaN */
    uint64_t pos_inf;       /* elements that are +Inf */
    uint64_t neg_inf;       /* elements that are -Inf */
    uint64_t zeros;         /* elements with |x| < eps, NaN not counted */
    uint64_t subnormal;     /* elements with 0 < |x| < smallest normal number of the dtype */
    double min;             /* NaN when any element is NaN, or when there is no element */
    double max;             /* likewise; either may be infinite */
    double finite_min;      /* NaN when no element is finite */
    double finite_max;      /* likewise */
    double abs_max;         /* largest |x|, infinities included, NaN left out; NaN if none */
    uint64_t abs_max_index; /* row-major index of an element with |x| = abs_max: the first in
                               memory order; TP_NO_INDEX if none */
    double sum;             /* sum of the finite elements */
    double sum_abs;         /* sum of their |x| */
    double sum_sq;          /* sum of their squares, divided by 4^sq_exp */
    double m2;              /* sum of (x - mean)^2 over them, divided by 4^sq_exp */
    int64_t sq_exp;         /* 0 unless squares leave the range of f64 (only f64 tensors) */
} tp_stats;

/* Reads *tensor once and fills *out. eps >= 0 is the bound of `zeros`.
 * TP_ERR_ARGUMENT, TP_ERR_UNSUPPORTED (dtype, more than TP_MAX_DIMS dimensions); *out is not
 * touched then. Any thread, no allocation, no lock, no waiting for another caller. */
TP_API tp_status tp_stats_compute(const tp_tensor *tensor, double eps, tp_stats *out);

/* Bin k counts the elements with 2^(TP_EXPONENT_FIRST + k) <= |x| < twice that; the first and the
 * last one also count what is smaller and larger. Zeros, NaN and Inf are not counted. */
#define TP_EXPONENT_FIRST (-160)
#define TP_EXPONENT_BINS 320
typedef struct tp_exponents {
    uint64_t negative[TP_EXPONENT_BINS];
    uint64_t positive[TP_EXPONENT_BINS];
} tp_exponents;

#define TP_MAX_BINS (1U << 20)

/* What to compute from the same read beside tp_stats: each output that is not NULL. */
typedef struct tp_stats_options {
    double eps; /* as in tp_stats_compute */

    /* bin_count bins of equal width over [low, high], the upper end included: equal to torch.histc
     * of f64, f32, and smaller floats made f32. Other elements are left out. low < high, both
     * finite and so in f32; 1 to TP_MAX_BINS bins. */
    uint64_t *bins;
    uint32_t bin_count;
    double low;
    double high;

    tp_exponents *exponents;

    /* Of the elements' bits in row-major order, whatever the strides, and their number. */
    uint64_t *hash;

    uint32_t threads; /* for a large tensor; 0: as tp_stats_set_threads says */
} tp_stats_options;

/* eps 1e-8; no outputs, but 30 bins over [-1, 1] once bins is set. */
TP_API void tp_stats_options_defaults(tp_stats_options *options);

/* How many threads read a tensor of 1 MiB or more where the options don't say it; 1 (the default)
 * and 0: only the one that calls. The others are the library's own, made for the first such tensor,
 * 31 at most. They serve one call at a time: one that comes meanwhile is done by its own thread
 * alone. A process that is forked after they have been made has none. The bits of the result don't
 * depend on any of this. Any thread. */
TP_API void tp_stats_set_threads(uint32_t threads);

/* As tp_stats_compute, with the outputs that the options ask for. */
TP_API tp_status tp_stats_compute_with(const tp_tensor *tensor, const tp_stats_options *options,
                                       tp_stats *out);

/* The same for each of many tensors in one call, in which threads share them: out[i] has the bits
 * of a call for tensors[i] alone. The options name no outputs. The error is that of the first
 * tensor that has one; nothing in `out` holds then. */
TP_API tp_status tp_stats_compute_many(const tp_tensor *tensors, uint64_t count,
                                       const tp_stats_options *options, tp_stats *out);

/* Adds the statistics of another tensor, computed with the same eps, as if its elements followed.
 * Counts, extremes and the index are exact; to the errors of the parts' sums it adds one rounding
 * (docs/statistics.md). Start from the first part, or from one with count 0. */
TP_API void tp_stats_merge(tp_stats *into, const tp_stats *part);

/* Gives each element the weight 1 / copies: what a number of equal parts, or of replicas of one
 * part, have been merged to becomes what one of them is, and can be merged with other parts. The
 * counts other than `count` are rounded up, so that a NaN of a single replica still shows.
 * TP_ERR_ARGUMENT when `count` is no multiple of copies; nothing is changed then. */
TP_API tp_status tp_stats_weigh(tp_stats *stats, uint64_t copies);

/* The statistics of a tensor that comes in pieces. The result has the same bits as one call for the
 * contiguous tensor that holds the elements of all pieces, one after the other, each in the order
 * of its traversal, and those of an expanded piece as often as they repeat. A stream belongs to one
 * thread at a time. */
typedef struct tp_stats_stream tp_stats_stream;

/* TP_ERR_ARGUMENT, TP_ERR_UNSUPPORTED, TP_ERR_NOMEM; *stream is NULL then. */
TP_API tp_status tp_stats_stream_open(tp_stats_stream **stream, uint32_t dtype, double eps);

/* With the outputs that the options ask for. They are written by tp_stats_stream_result and have to
 * stay until then. */
TP_API tp_status tp_stats_stream_open_with(tp_stats_stream **stream, uint32_t dtype,
                                           const tp_stats_options *options);

/* Reads a piece of the stream's dtype; nothing of it is kept. Doesn't allocate. Errors as those of
 * tp_stats_compute; the stream is as it was then. */
TP_API tp_status tp_stats_stream_add(tp_stats_stream *stream, const tp_tensor *piece);

/* The statistics of all pieces so far; more may follow. */
TP_API void tp_stats_stream_result(const tp_stats_stream *stream, tp_stats *out);

/* NULL is fine. */
TP_API void tp_stats_stream_close(tp_stats_stream *stream);

/* sqrt of the sum of squares; NaN if any element is NaN, else +Inf if any is infinite; 0 if empty.
 */
TP_API double tp_stats_norm(const tp_stats *stats);

/* Arithmetic mean: NaN if any element is NaN, if both infinities occur, or if empty; else the
 * infinity that occurs; else sum / count. */
TP_API double tp_stats_mean(const tp_stats *stats);

/* Population standard deviation sqrt(m2 / n) of the finite elements; NaN if there is none. */
TP_API double tp_stats_std(const tp_stats *stats);

/* Name of the kernels in use: "scalar", "avx2", "avx512" or "neon". The best that the CPU and the
 * operating system allow, lowered by the environment variable TENSORPROBE_ISA (read once). */
TP_API const char *tp_stats_isa(void);

#ifdef __cplusplus
}
#endif

#endif
