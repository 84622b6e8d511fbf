/* What an optimizer of Adam's kind is about to do, from one read of its state. */
#ifndef TENSORPROBE_OPTIMIZER_H
#define TENSORPROBE_OPTIMIZER_H

#include "tensorprobe/stats.h"

#ifdef __cplusplus
extern "C" {
#endif

/* With c1 = 1 - beta1^step and c2 = 1 - beta2^step (the bias corrections of Kingma and Ba, "Adam: A
 * Method for Stochastic Optimization", 2015, algorithm 1),
 *
 *     m = exp_avg / c1,  v = exp_avg_sq / c2,  update = m / (sqrt(v) + eps),  ratio = m / sqrt(v)
 *
 * as msprobe computes them from version 1.1.1 to 26.2.0. step 0 means c1 = c2 = 1: KJ600 has no
 * bias correction. Learning rate and weight decay are not part of it. */
typedef struct tp_adam_options {
    double beta1; /* 0 <= beta < 1 */
    double beta2;
    double eps;  /* of the optimizer, >= 0; not the eps of `zeros` */
    double step; /* how many updates are in the moments, from 1; 0: no bias correction */

    /* Of the update and of the ratio: eps, bins and exponents as in tp_stats_compute_with. No hash;
     * the calling thread alone reads. */
    tp_stats_options update;
    tp_stats_options ratio;
} tp_adam_options;

/* 0.9, 0.999, 1e-8, no bias correction; the rest as tp_stats_options_defaults. */
TP_API void tp_adam_options_defaults(tp_adam_options *options);

/* The statistics of update and ratio from one read of both moments, which have the same shape and
 * any strides. Calculated in f64 when one of the moments is f64, else in f32, every operation
 * rounded to nearest: c1 and c2 are made f64, then the type. Bins equal torch.histc of the same
 * expression in that type. Where exp_avg and exp_avg_sq are 0 the ratio is NaN, as 0 / 0 is.
 * Elements are taken in the traversal of exp_avg (docs/statistics.md).
 * TP_ERR_ARGUMENT (shapes that differ, options out of range), TP_ERR_UNSUPPORTED (a dtype other
 * than f64, f32, f16 and bf16); nothing is touched then. Any thread, no allocation, no lock. */
TP_API tp_status tp_adam_compute(const tp_tensor *exp_avg, const tp_tensor *exp_avg_sq,
                                 const tp_adam_options *options, tp_stats *update, tp_stats *ratio);

/* How far a gradient and the momentum point the same way. same + opposite + zero + nan = count. */
typedef struct tp_agreement {
    uint64_t count;
    uint64_t same;     /* both are positive, or both are negative */
    uint64_t opposite; /* one is positive, the other negative */
    uint64_t zero;     /* one of them, or both, are 0; none is NaN */
    uint64_t nan;      /* one of them, or both, are NaN */
} tp_agreement;

/* One read of two tensors of the same shape. Errors and threads as tp_adam_compute. */
TP_API tp_status tp_agreement_compute(const tp_tensor *gradient, const tp_tensor *momentum,
                                      tp_agreement *out);

/* The ancestors' direction, ((sum of sign(g) * sign(m)) / count + 1) / 2: 1 when all signs are the
 * same, 0 when all are opposite, an element with a zero counts as half; 1 when there is no element.
 * Unlike theirs it is NaN when there is a NaN. */
TP_API double tp_agreement_direction(const tp_agreement *agreement);

#ifdef __cplusplus
}
#endif

#endif
