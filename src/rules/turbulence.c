/* AnomalyTurbulence: a statistic leaves the range that the mean of its earlier values suggests. */
#include <math.h>

#include "rules/rule.h"

static bool leaves_range(const tp_judgement *judgement, uint32_t op, double value, double mean)
{
    double t = judgement->options->threshold;
    if (judgement->options->mode == TP_TURBULENCE_FACTOR) {
        const bool too_small = value < mean / t && !judgement->scalar;
        return op == TP_OP_NORM && mean > 0 && (value > t * mean || too_small);
    }
    return fabs(value - mean) > t * fabs(mean);
}

bool tp_rule_judge_turbulence(const tp_judgement *judgement, tp_alert *alert)
{
    const tp_rule_options *options = judgement->options;
    for (uint32_t i = 0; i < judgement->op_count; i++) {
        const tp_baseline *baseline = &judgement->baselines[i];
        double value = judgement->values[i];
        if (!isfinite(value) || baseline->count == 0 || baseline->count < options->min_samples) {
            continue;
        }
        double mean = baseline->sum / (double)baseline->count;
        if (leaves_range(judgement, judgement->ops[i], value, mean)) {
            alert->op = judgement->ops[i];
            alert->value = value;
            alert->baseline = mean;
            alert->threshold = options->threshold;
            alert->samples = baseline->count;
            return true;
        }
    }
    return false;
}
