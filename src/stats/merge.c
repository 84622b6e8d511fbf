#include "stats/merge.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#include "tensorprobe/stats.h"

/* Nothing but zeros, or nothing at all: fits any exponent. */
static bool is_zero(const tp_part *part)
{
    return part->sum_sq == 0.0;
}

static void rescale(tp_part *part, int64_t exp)
{
    const int shift = (int)(part->exp - exp);
    part->exp = exp;
    if (shift != 0 && !is_zero(part)) {
        part->sum = ldexp(part->sum, shift);
        part->sum_abs = ldexp(part->sum_abs, shift);
        part->sum_sq = ldexp(part->sum_sq, 2 * shift);
        part->m2 = ldexp(part->m2, 2 * shift);
    }
}

/* The squared deviations add up by the pairwise formula of Chan, Golub and LeVeque, "Updating
 * formulae and a pairwise algorithm for computing sample variances", 1979. */
tp_part tp_part_merge(tp_part a, tp_part b)
{
    if (b.n == 0) {
        return a;
    }
    if (a.n == 0) {
        return b;
    }
    if (a.exp != b.exp) {
        const int64_t larger = a.exp > b.exp ? a.exp : b.exp;
        const int64_t exp = is_zero(&a) ? b.exp : is_zero(&b) ? a.exp : larger;
        rescale(&a, exp);
        rescale(&b, exp);
    }
    const double na = (double)a.n;
    const double nb = (double)b.n;
    const double delta = b.sum / nb - a.sum / na;
    return (tp_part){
        .n = a.n + b.n,
        .sum = a.sum + b.sum,
        .sum_abs = a.sum_abs + b.sum_abs,
        .sum_sq = a.sum_sq + b.sum_sq,
        .m2 = (a.m2 + b.m2) + (delta * delta) * (na * (nb / (na + nb))),
        .exp = a.exp,
    };
}

void tp_tree_add(tp_tree *tree, const tp_part *part, int of_level)
{
    tp_part carry = *part;
    int level = of_level;
    for (; (tree->blocks >> level & 1) != 0; level++) {
        carry = tp_part_merge(tree->level[level], carry);
    }
    tree->level[level] = carry;
    tree->blocks += UINT64_C(1) << of_level;
}

void tp_tree_append(tp_tree *tree, const tp_tree *last)
{
    for (int level = 0; last->blocks >> level != 0; level++) {
        if ((last->blocks >> level & 1) != 0) {
            tree->level[level] = last->level[level];
        }
    }
    tree->blocks += last->blocks;
}

tp_part tp_tree_total(const tp_tree *tree)
{
    tp_part total = {0};
    for (int level = 0; tree->blocks >> level != 0; level++) {
        if ((tree->blocks >> level & 1) != 0) {
            total = tp_part_merge(tree->level[level], total);
        }
    }
    return total;
}

static uint64_t finite_of(const tp_stats *stats)
{
    return stats->count - stats->nan - stats->pos_inf - stats->neg_inf;
}

static tp_part part_of(const tp_stats *stats)
{
    const int down = (int)-stats->sq_exp;
    return (tp_part){
        .n = finite_of(stats),
        .sum = ldexp(stats->sum, down),
        .sum_abs = ldexp(stats->sum_abs, down),
        .sum_sq = stats->sum_sq,
        .m2 = stats->m2,
        .exp = stats->sq_exp,
    };
}

/* NaN when either is; fmin would choose the number. */
static double smaller(double a, double b)
{
    return a < b || a != a ? a : b;
}

static double larger(double a, double b)
{
    return a > b || a != a ? a : b;
}

void tp_stats_merge(tp_stats *into, const tp_stats *part)
{
    if (part->count == 0) {
        return;
    }
    if (into->count == 0) {
        *into = *part;
        return;
    }
    const tp_part total = tp_part_merge(part_of(into), part_of(part));
    if (part->abs_max > into->abs_max || into->abs_max_index == TP_NO_INDEX) {
        into->abs_max = part->abs_max;
        into->abs_max_index =
            part->abs_max_index == TP_NO_INDEX ? TP_NO_INDEX : into->count + part->abs_max_index;
    }
    into->min = smaller(into->min, part->min);
    into->max = larger(into->max, part->max);
    into->finite_min = fmin(into->finite_min, part->finite_min);
    into->finite_max = fmax(into->finite_max, part->finite_max);
    into->count += part->count;
    into->nan += part->nan;
    into->pos_inf += part->pos_inf;
    into->neg_inf += part->neg_inf;
    into->zeros += part->zeros;
    into->subnormal += part->subnormal;
    into->sum = ldexp(total.sum, (int)total.exp);
    into->sum_abs = ldexp(total.sum_abs, (int)total.exp);
    into->sum_sq = total.sum_sq;
    into->m2 = into->finite_min == into->finite_max ? 0.0 : total.m2;
    into->sq_exp = total.exp;
}

static uint64_t quotient_up(uint64_t n, uint64_t copies)
{
    return n / copies + (n % copies != 0);
}

tp_status tp_stats_weigh(tp_stats *stats, uint64_t copies)
{
    if (stats == NULL || copies == 0 || stats->count % copies != 0) {
        return TP_ERR_ARGUMENT;
    }
    const double times = (double)copies;
    stats->count /= copies;
    stats->nan = quotient_up(stats->nan, copies);
    stats->pos_inf = quotient_up(stats->pos_inf, copies);
    stats->neg_inf = quotient_up(stats->neg_inf, copies);
    stats->zeros = quotient_up(stats->zeros, copies);
    stats->subnormal = quotient_up(stats->subnormal, copies);
    if (stats->abs_max_index != TP_NO_INDEX) {
        stats->abs_max_index %= stats->count;
    }
    stats->sum /= times;
    stats->sum_abs /= times;
    stats->sum_sq /= times;
    stats->m2 /= times;
    return TP_OK;
}
