/* One rule behind the table of rules.c: it judges one record. A new rule is a file with one of
 * these, and a line in the table. */
#ifndef TP_RULES_RULE_H
#define TP_RULES_RULE_H

#include <stdbool.h>

#include "rules/rules.h"

/* What earlier steps had in the same place, per op, in the order of the ops. */
typedef struct tp_baseline {
    double sum;     /* of earlier finite values */
    uint64_t count; /* of them */
} tp_baseline;

typedef struct tp_judgement {
    const tp_rule_options *options;
    const tp_stats *stats;
    const uint32_t *ops;
    const double *values; /* of the ops */
    const tp_baseline *baselines;
    uint32_t op_count;
    bool scalar; /* a number that was logged, not a tensor */
} tp_judgement;

/* True when the rule fires; alert then has op, value, baseline, threshold and samples set. */
typedef bool (*tp_rule_judge)(const tp_judgement *judgement, tp_alert *alert);

bool tp_rule_judge_nan(const tp_judgement *judgement, tp_alert *alert);
bool tp_rule_judge_turbulence(const tp_judgement *judgement, tp_alert *alert);

#endif
