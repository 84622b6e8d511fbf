/* AnomalyNan: a NaN or an infinity in the tensor, or a statistic beyond a bound. */
#include <math.h>

#include "rules/rule.h"

static bool judge(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    const tp_stats *stats = judgement->stats;
    double bound = judgement->options->threshold;
    (void)memory;
    alert->baseline = (double)NAN;
    alert->threshold = bound;
    if (stats->nan > 0) {
        alert->op = TP_OP_NANS;
        alert->value = (double)stats->nan;
        return true;
    }
    if (stats->pos_inf > 0 || stats->neg_inf > 0) {
        alert->op = stats->pos_inf > 0 ? TP_OP_MAX : TP_OP_MIN;
        alert->value = stats->pos_inf > 0 ? stats->max : stats->min;
        return true;
    }
    if (isnan(bound)) {
        return false;
    }
    for (uint32_t i = 0; i < judgement->op_count; i++) {
        const bool looks = (judgement->options->ops & (1u << judgement->ops[i])) != 0;
        if (looks && fabs(judgement->values[i]) > bound) {
            alert->op = judgement->ops[i];
            alert->value = judgement->values[i];
            return true;
        }
    }
    return false;
}

const tp_rule tp_rule_nan = {.rule = TP_RULE_ANOMALY_NAN, .judge = judge};
