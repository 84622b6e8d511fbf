#include "stats/merge.h"

#include <math.h>
#include <stdbool.h>

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
static tp_part merge(tp_part a, tp_part b)
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

void tp_tree_add(tp_tree *tree, const tp_part *block)
{
    tp_part carry = *block;
    int level = 0;
    for (; (tree->blocks >> level & 1) != 0; level++) {
        carry = merge(tree->level[level], carry);
    }
    tree->level[level] = carry;
    tree->blocks++;
}

tp_part tp_tree_total(const tp_tree *tree)
{
    tp_part total = {0};
    for (int level = 0; tree->blocks >> level != 0; level++) {
        if ((tree->blocks >> level & 1) != 0) {
            total = merge(tree->level[level], total);
        }
    }
    return total;
}
