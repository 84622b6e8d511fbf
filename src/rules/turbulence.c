/* AnomalyTurbulence: a statistic leaves the range that the mean of its earlier values suggests. */
#include <math.h>

#include "rules/rule.h"

/* Of one op: its earlier finite values. */
typedef struct baseline {
    double sum;
    uint64_t count;
} baseline;

static size_t memory(const tp_rule_options *options, uint32_t op_count)
{
    (void)options;
    return op_count * sizeof(baseline);
}

static bool leaves_range(const tp_judgement *judgement, uint32_t op, double value, double mean)
{
    double t = judgement->options->threshold;
    if (judgement->options->mode == TP_TURBULENCE_FACTOR) {
        /* A loss is meant to fall, and the share of equal signs to wander between 0 and 1. */
        const bool too_small = value < mean / t && judgement->quantity != TP_SCALAR &&
                               judgement->quantity != TP_MG_DIRECTION;
        return op == TP_OP_NORM && mean > 0 && (value > t * mean || too_small);
    }
    return fabs(value - mean) > t * fabs(mean);
}

static bool judge(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    const tp_rule_options *options = judgement->options;
    baseline *baselines = memory;
    bool fires = false;
    for (uint32_t i = 0; i < judgement->op_count; i++) {
        baseline *base = &baselines[i];
        double value = judgement->values[i];
        if (!isfinite(value)) {
            continue;
        }
        double mean = base->sum / (double)base->count;
        if (!fires && base->count > 0 && base->count >= options->min_samples &&
            leaves_range(judgement, judgement->ops[i], value, mean)) {
            alert->op = judgement->ops[i];
            alert->value = value;
            alert->baseline = mean;
            alert->threshold = options->threshold;
            alert->samples = base->count;
            fires = true;
        }
        base->sum += value;
        base->count++;
    }
    return fires;
}

const tp_rule tp_rule_turbulence = {
    .rule = TP_RULE_ANOMALY_TURBULENCE, .memory = memory, .judge = judge};
