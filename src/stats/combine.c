#include "stats/combine.h"

#include <math.h>

#include "stats/merge.h"

static uint64_t finite_count(const tp_stats *stats)
{
    return stats->count - stats->nan - stats->pos_inf - stats->neg_inf;
}

/* Of tp_stats the sums are whole, of tp_part all are divided. */
static tp_part part_of(const tp_stats *stats)
{
    const int shift = (int)-stats->sq_exp;
    return (tp_part){
        .n = finite_count(stats),
        .sum = ldexp(stats->sum, shift),
        .sum_abs = ldexp(stats->sum_abs, shift),
        .sum_sq = stats->sum_sq,
        .m2 = stats->m2,
        .exp = stats->sq_exp,
    };
}

/* NaN where either is, but for tensors without elements. */
static double outer(const tp_stats *a, double x, const tp_stats *b, double y, double sign)
{
    if (a->count == 0) {
        return y;
    }
    if (b->count == 0) {
        return x;
    }
    return isnan(x) || isnan(y) ? (double)NAN : sign * x > sign * y ? x : y;
}

void tp_stats_append(tp_stats *into, const tp_stats *next)
{
    const tp_part sum = tp_part_merge(part_of(into), part_of(next));
    into->min = outer(into, into->min, next, next->min, -1);
    into->max = outer(into, into->max, next, next->max, 1);
    into->finite_min = fmin(into->finite_min, next->finite_min); /* NaN: there is none */
    into->finite_max = fmax(into->finite_max, next->finite_max);
    if (isnan(into->abs_max) || next->abs_max > into->abs_max) {
        into->abs_max = next->abs_max;
        into->abs_max_index =
            next->abs_max_index == TP_NO_INDEX ? TP_NO_INDEX : into->count + next->abs_max_index;
    }
    into->count += next->count;
    into->nan += next->nan;
    into->pos_inf += next->pos_inf;
    into->neg_inf += next->neg_inf;
    into->zeros += next->zeros;
    into->subnormal += next->subnormal;
    into->sum = ldexp(sum.sum, (int)sum.exp);
    into->sum_abs = ldexp(sum.sum_abs, (int)sum.exp);
    into->sum_sq = sum.sum_sq;
    into->m2 = sum.m2;
    into->sq_exp = sum.exp;
}
