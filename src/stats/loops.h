/* Arithmetic on contiguous elements that needs no other element, for each instruction set. Every
 * operation is rounded as IEEE 754 says, so that the bits don't depend on how many elements are
 * done at a time. loops_body.h is the specification: plain C, which the compiler makes vectors of.
 */
#ifndef TP_STATS_LOOPS_H
#define TP_STATS_LOOPS_H

#include <stddef.h>

#include "stats/kernels.h"
#include "tensorprobe/optimizer.h"

/* Divisors and eps of Adam's update, rounded to the type in which it is calculated. */
typedef struct tp_adam_terms {
    double correction1;
    double correction2;
    double eps;
} tp_adam_terms;

/* More bins than these take another way. A number outside all bins has this one. */
#define TP_LOOP_BINS 64
#define TP_NO_BIN 255

typedef struct tp_loops {
    /* n <= TP_BLOCK, everywhere. update and ratio overlap neither each other nor the moments. */
    void (*adam_f32)(const float *exp_avg, const float *exp_avg_sq, size_t n,
                     const tp_adam_terms *terms, float *update, float *ratio);
    void (*adam_f64)(const double *exp_avg, const double *exp_avg_sq, size_t n,
                     const tp_adam_terms *terms, double *update, double *ratio);

    /* Adds to same, opposite and nan of *out, and to nothing else. */
    void (*agree_f32)(const float *gradient, const float *momentum, size_t n, tp_agreement *out);
    void (*agree_f64)(const double *gradient, const double *momentum, size_t n, tp_agreement *out);

    void (*widen_f16)(const void *from, size_t n, float *to);
    void (*widen_bf16)(const void *from, size_t n, float *to);
    void (*widen_f32)(const float *from, size_t n, double *to);

    /* The bin of each element as torch.histc finds it, or TP_NO_BIN. bins <= TP_LOOP_BINS. */
    void (*bins_f32)(const float *x, size_t n, const tp_stats_options *options, uint8_t *bin);
    void (*bins_f64)(const double *x, size_t n, const tp_stats_options *options, uint8_t *bin);

    /* How many of the TP_BLOCK bytes are 0, 1, … bins - 1: added to counts. bins <= TP_LOOP_BINS.
     */
    void (*count)(const uint8_t bin[TP_BLOCK], uint32_t bins, uint64_t *counts);
} tp_loops;

/* NULL when this build lacks the instruction set. */
const tp_loops *tp_loops_scalar(void);
const tp_loops *tp_loops_avx2(void);
const tp_loops *tp_loops_avx512(void);
const tp_loops *tp_loops_neon(void);

/* Those of an instruction set (TP_ISA_… of base/cpu.h); NULL when this build lacks it. */
const tp_loops *tp_loops_with(int isa);

/* The functions of tensorprobe/optimizer.h with the kernels of one instruction set.
 * TP_ERR_UNSUPPORTED when this CPU or this build lacks it. */
tp_status tp_adam_compute_isa(const tp_tensor *exp_avg, const tp_tensor *exp_avg_sq,
                              const tp_adam_options *options, int isa, tp_stats *update,
                              tp_stats *ratio);
tp_status tp_agreement_compute_isa(const tp_tensor *gradient, const tp_tensor *momentum, int isa,
                                   tp_agreement *out);

#endif
