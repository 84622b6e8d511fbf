/* AnomalyNan: a NaN or an infinity in the tensor, or a statistic beyond a bound. */
#include <math.h>

#include "rules/rule.h"

bool tp_rule_judge_nan(const tp_judgement *judgement, tp_alert *alert)
{
    const tp_stats *stats = judgement->stats;
    double bound = judgement->options->threshold;
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
        if (fabs(judgement->values[i]) > bound) {
            alert->op = judgement->ops[i];
            alert->value = judgement->values[i];
            return true;
        }
    }
    return false;
}
