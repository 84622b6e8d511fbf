/* AllZero and UnchangedTensor: nothing happens any more. Both speak once, when it has lasted for
 * min_samples steps, and again after something has happened in between. */
#include <math.h>
#include <string.h>

#include "rules/rule.h"

static size_t count_memory(const tp_rule_options *options, uint32_t op_count)
{
    (void)options;
    (void)op_count;
    return sizeof(uint64_t);
}

bool tp_rule_lasts(const tp_rule_options *options, bool still, uint64_t *steps, tp_alert *alert)
{
    *steps = still ? *steps + 1 : 0;
    if (*steps != options->min_samples) {
        return false;
    }
    alert->baseline = (double)NAN;
    alert->threshold = options->threshold;
    alert->samples = *steps;
    return true;
}

/* Activations, their gradients and those of parameters: a parameter or a moment may begin at 0. */
static bool judge_zero(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    const tp_stats *stats = judgement->stats;
    if (stats->count == 0) {
        return false;
    }
    double share = (double)stats->zeros / (double)stats->count;
    alert->op = TP_OP_ZEROS;
    alert->value = share;
    return tp_rule_lasts(judgement->options, share >= judgement->options->threshold, memory, alert);
}

typedef struct unchanged {
    uint64_t steps;
    uint64_t changes;
    tp_stats stats; /* of the step before */
} unchanged;

static size_t unchanged_memory(const tp_rule_options *options, uint32_t op_count)
{
    (void)options;
    (void)op_count;
    return sizeof(unchanged);
}

/* A parameter whose statistics are the same to the bit has not been changed: a step that changed
 * some of its elements and none of these sums has yet to be seen. */
static bool judge_unchanged(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    unchanged *last = memory;
    const tp_stats *stats = judgement->stats;
    if (stats->count == 0) {
        return false;
    }
    /* What has become NaN is AnomalyNan's affair. */
    const bool differs = memcmp(&last->stats, stats, sizeof *stats) != 0;
    last->changes += differs;
    last->stats = *stats;
    alert->op = TP_OP_NORM;
    alert->value = judgement->norm;
    /* The first one differs from nothing; what has never changed since is frozen. */
    return tp_rule_lasts(judgement->options, !differs && stats->nan == 0 && last->changes > 1,
                         &last->steps, alert);
}

const tp_rule tp_rule_all_zero = {.rule = TP_RULE_ALL_ZERO,
                                  .quantities =
                                      TP_QUANTITY(TP_ACTIVATION) | TP_QUANTITY(TP_ACTIVATION_GRAD) |
                                      TP_QUANTITY(TP_GRAD_UNREDUCED) | TP_QUANTITY(TP_GRAD_REDUCED),
                                  .memory = count_memory,
                                  .judge = judge_zero};
const tp_rule tp_rule_unchanged = {.rule = TP_RULE_UNCHANGED_TENSOR,
                                   .quantities = TP_QUANTITY(TP_PARAM_UPDATED),
                                   .memory = unchanged_memory,
                                   .judge = judge_unchanged};
