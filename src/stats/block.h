/* What the statistics of one block are made of, once a kernel has read it. */
#ifndef TP_STATS_BLOCK_H
#define TP_STATS_BLOCK_H

#include <math.h>
#include <stdbool.h>

#include "stats/kernels.h"

/* Squares of magnitudes between these add up in f64 without leaving its range, whatever their
 * number; an f64 block whose largest magnitude lies outside is scaled. */
#define TP_LARGEST_UNSCALED 0x1p450
#define TP_SMALLEST_UNSCALED 0x1p-450

/* A square of a bf16 may leave the range of f32. With a largest magnitude between these, none is
 * too large, and what is lost of the small ones is below 2^-38 of the sum. */
#define TP_LARGEST_HALF 0x1p50
#define TP_SMALLEST_HALF 0x1p-50

/* Below this share of Σx², Σx² - (Σx)²/n has lost too many digits to be M2. */
#define TP_WELL_CONDITIONED (1.0 / 1024.0)
#define TP_WELL_CONDITIONED_HALF 0.5 /* of f16 and bf16, which are added in f32 first */

static inline double tp_block_largest(const tp_block *block)
{
    return -block->min > block->max ? -block->min : block->max;
}

static inline bool tp_is_extreme(double half)
{
    return half > TP_LARGEST_HALF || (half < TP_SMALLEST_HALF && half > 0.0);
}

static inline bool tp_is_scaled(double wide)
{
    return wide > TP_LARGEST_UNSCALED || (wide < TP_SMALLEST_UNSCALED && wide > 0.0);
}

/* Σx² - (Σx)²/n; *is_right: it is M2. Else the elements' distances from the mean have to be
 * added. */
static inline double tp_block_m2(const tp_block *block, bool halves, double count, bool *is_right)
{
    const double m2 = block->sum_sq - block->sum * block->sum / count;
    *is_right = m2 >= block->sum_sq * (halves ? TP_WELL_CONDITIONED_HALF : TP_WELL_CONDITIONED);
    return m2;
}

/* M2 of these moments about a number near the mean (tp_kernel's spread). */
static inline double tp_moments_m2(const double moments[2], double count)
{
    const double corrected = moments[1] - moments[0] * moments[0] / count;
    return corrected > 0.0 ? corrected : 0.0;
}

#endif
