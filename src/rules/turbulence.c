/* AnomalyTurbulence: a statistic leaves the range that the mean of its earlier values suggests. */
#include <math.h>

#include "rules/rule.h"

#define COMPAT_DECAY 0.99

/* Of one op: its earlier finite values. */
typedef struct baseline {
    double sum;
    uint32_t count;
    uint32_t refused; /* by factor: how many alarmed in a row */
} baseline;

static size_t memory(const tp_rule_options *options, uint32_t op_count)
{
    (void)options;
    return op_count * sizeof(baseline);
}

/* By factor. A loss is meant to fall, and the share of equal signs to wander between 0 and 1; a
 * second moment is a square, of which ten times as much is a hundred times. */
static bool leaves_factor(const tp_judgement *judgement, uint32_t op, double value, double mean)
{
    double t = judgement->options->threshold;
    t = judgement->quantity == TP_EXP_AVG_SQ ? t * t : t;
    const bool too_small = value < mean / t && judgement->quantity != TP_SCALAR &&
                           judgement->quantity != TP_MG_DIRECTION;
    return op == TP_OP_NORM && mean > 0 && (value > t * mean || too_small);
}

static bool leaves_range(const tp_judgement *judgement, uint32_t op, double value, double mean)
{
    if (judgement->options->mode == TP_TURBULENCE_FACTOR) {
        return leaves_factor(judgement, op, value, mean);
    }
    return fabs(value - mean) > judgement->options->threshold * fabs(mean);
}

/* By factor a value that alarms stays out, so that a burst doesn't raise the mean for all that
 * follows; when as many came in a row as the rule needs to speak, they are the new normal. */
static void take(const tp_rule_options *options, baseline *base, double value, bool alarms)
{
    if (alarms && options->mode == TP_TURBULENCE_FACTOR) {
        base->refused++;
        if (base->refused < options->min_samples) {
            return;
        }
        *base = (baseline){0};
    }
    base->refused = 0;
    base->sum += value;
    base->count++;
}

/* As msprobe does it: the mean is a moving one of magnitudes, beginning with the first of them; it
 * takes in everything, NaN included, after which it never speaks again; deviations downwards don't
 * count, and only those of norm and mean are told of. */
static bool judge_compat(const tp_judgement *judgement, baseline *baselines, tp_alert *alert)
{
    bool fires = false;
    for (uint32_t i = 0; i < judgement->op_count; i++) {
        const uint32_t op = judgement->ops[i];
        baseline *base = &baselines[i];
        const double size = fabs(judgement->values[i]);
        if ((judgement->options->ops & (1u << op)) == 0) {
            continue;
        }
        const double mean = base->count > 0 ? base->sum : size;
        if (!fires && (op == TP_OP_NORM || op == TP_OP_MEAN) &&
            size > mean * (1 + judgement->options->threshold)) {
            alert->op = op;
            alert->value = judgement->values[i];
            alert->baseline = mean;
            alert->threshold = judgement->options->threshold;
            alert->samples = base->count;
            fires = true;
        }
        base->sum = COMPAT_DECAY * mean + (1 - COMPAT_DECAY) * size;
        base->count++;
    }
    return fires;
}

static bool judge(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    const tp_rule_options *options = judgement->options;
    baseline *baselines = memory;
    bool fires = false;
    if (options->mode == TP_TURBULENCE_COMPAT) {
        return judge_compat(judgement, baselines, alert);
    }
    for (uint32_t i = 0; i < judgement->op_count; i++) {
        baseline *base = &baselines[i];
        double value = judgement->values[i];
        if (!isfinite(value) || (options->ops & (1u << judgement->ops[i])) == 0) {
            continue;
        }
        double mean = base->sum / (double)base->count;
        const bool alarms = base->count > 0 && base->count >= options->min_samples &&
                            leaves_range(judgement, judgement->ops[i], value, mean);
        if (alarms && !fires) {
            alert->op = judgement->ops[i];
            alert->value = value;
            alert->baseline = mean;
            alert->threshold = options->threshold;
            alert->samples = base->count;
            fires = true;
        }
        take(options, base, value, alarms);
    }
    return fires;
}

const tp_rule tp_rule_turbulence = {
    .rule = TP_RULE_ANOMALY_TURBULENCE, .needs_samples = true, .memory = memory, .judge = judge};
