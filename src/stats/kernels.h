/* The table of kernels that tp_stats_compute uses; tests run each instruction set through it.
 *
 * A kernel sees one block of at most TP_BLOCK contiguous elements of one dtype. Element i of a
 * block belongs to lane i mod TP_LANES; a sum adds the lane's elements in order in f64, then the
 * lanes pairwise (l and l + 8, l and l + 4, l and l + 2, l and l + 1). A square of an f64 is
 * rounded before it is added. `clean` of f16 and bf16 adds eight elements in f32 before they go to
 * their lane. Every instruction set yields the same bits; kernel_scalar.c is the
 * specification. */
#ifndef TP_STATS_KERNELS_H
#define TP_STATS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>

#include "tensorprobe/stats.h"

#define TP_BLOCK 4096
#define TP_LANES 16
#define TP_HALVES 128 /* elements of f16 and bf16 that are added in f32 first, 8 a lane */

/* The hardware's own prefetcher stops at the end of a 4 KiB page. How far ahead is best depends on
 * where the memory is, which nobody knows, and on how much there is: what is fetched behind the end
 * of a small tensor is in vain. */
#define TP_AHEAD_SMALL 4096
#define TP_AHEAD_LARGE 8192
#define TP_AHEAD_LARGE_FROM (UINT64_C(256) << 10) /* bytes of a tensor */

/* The first two are exactly representable in the type that the kernel compares in: f64 for f64,
 * else f32. */
typedef struct tp_bounds {
    double eps;    /* zeros: |x| < eps */
    double normal; /* subnormal: 0 < |x| < normal */
    size_t ahead;  /* bytes between a load and the prefetch made with it: TP_AHEAD_… */
} tp_bounds;

typedef struct tp_block {
    uint64_t nan;
    uint64_t pos_inf;
    uint64_t neg_inf;
    uint64_t zeros;
    uint64_t subnormal;
    double min; /* of the finite elements; +Inf if none */
    double max; /* likewise; -Inf if none */
    double sum; /* of the finite elements times scale, and so are the next two */
    double sum_abs;
    double sum_sq;
} tp_block;

typedef struct tp_kernel {
    const char *name; /* as in "f32_avx2" */

    /* For blocks without NaN and Inf: nan, pos_inf and neg_inf are set to 0, scale is 1. When
     * sum_sq comes out infinite or NaN, the rest of *out is worthless: use masked. So are the sums
     * of f16 and bf16 when squares leave the range of f32. */
    void (*clean)(const void *data, size_t n, const tp_bounds *bounds, tp_block *out);

    /* As clean, for TP_BLOCK elements, and faster, for it counts neither zeros nor subnormal
     * numbers. False: there are some, or eps is so large that there may be; use clean then, unless
     * sum_sq says masked. NULL: there is no such kernel. */
    bool (*lean)(const void *data, const tp_bounds *bounds, tp_block *out);

    /* For any block. Elements that are not finite add 0 to the sums. scale is a power of two, and
     * 1 unless the dtype is f64; it touches the sums only. */
    void (*masked)(const void *data, size_t n, const tp_bounds *bounds, double scale,
                   tp_block *out);

    /* moments[0] = sum of d, moments[1] = sum of d * d (rounded before it is added), where
     * d = x * scale - pivot for finite x, else 0. */
    void (*spread)(const void *data, size_t n, double scale, double pivot, double moments[2]);

    /* The statistics of a block that is a whole tensor. False: it isn't one of which clean tells
     * all, and *out is worthless. */
    bool (*whole)(const void *data, size_t n, const tp_bounds *bounds, tp_stats *out);

    /* The first i with |x| = magnitude, or n. */
    size_t (*find)(const void *data, size_t n, double magnitude);
} tp_kernel;

/* The kernel of a dtype; NULL for an unknown dtype, or when this build lacks the instruction set
 * (the caller asks base/cpu.h about this CPU). */
const tp_kernel *tp_kernel_scalar(uint32_t dtype);
const tp_kernel *tp_kernel_avx2(uint32_t dtype);
const tp_kernel *tp_kernel_avx512(uint32_t dtype);
const tp_kernel *tp_kernel_neon(uint32_t dtype);

/* The instruction set in use (TP_ISA_… of base/cpu.h): the best that this build and tp_cpu_isa
 * allow. */
int tp_stats_isa_in_use(void);

/* The one of an instruction set for this dtype: its own, or that of f64 where elements are
 * converted or counted; NULL for an unknown dtype, or when this build lacks the instruction set. */
const tp_kernel *tp_kernel_with(int isa, uint32_t dtype);

/* The best one for this dtype: its own, or that of f64 where elements are converted or counted;
 * NULL for an unknown dtype. */
const tp_kernel *tp_kernel_of(uint32_t dtype);

/* What tp_stats_compute gives for 1 to TP_BLOCK elements of TP_F64 … TP_BF16 that lie side by side,
 * for who knows that they do. */
void tp_stats_small(const void *data, uint32_t dtype, size_t count, double eps, tp_stats *out);

/* As tp_stats_compute_with, with the kernels of one instruction set (TP_ISA_… of base/cpu.h).
 * *kernel names the one that really ran, as in "f32_avx2". TP_ERR_UNSUPPORTED when this CPU or this
 * build lacks it. */
tp_status tp_stats_compute_isa(const tp_tensor *tensor, const tp_stats_options *options, int isa,
                               tp_stats *out, const char **kernel);

#endif
