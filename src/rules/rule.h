/* One rule behind the table of rules.c: it judges one record, and keeps what it needs to know of
 * earlier steps. A new rule is a file with one of these, and a line in the table. */
#ifndef TP_RULES_RULE_H
#define TP_RULES_RULE_H

#include <stdbool.h>
#include <stddef.h>

#include "rules/rules.h"

typedef struct tp_judgement {
    const tp_rule_options *options;
    uint32_t quantity; /* TP_ACTIVATION … */
    const tp_stats *stats;
    const uint32_t *ops;
    const double *values; /* of the ops; NaN where the rule doesn't look at one */
    uint32_t op_count;
} tp_judgement;

typedef struct tp_rule {
    uint32_t rule; /* TP_RULE_… */

    /* Bytes that the rule keeps for each place that returns every step, a multiple of 8; zeroed at
     * first. NULL: none. */
    size_t (*memory)(const tp_rule_options *options, uint32_t op_count);

    /* True when the rule fires; alert then has op, value, baseline, threshold and samples set.
     * Takes the record into the place's memory. */
    bool (*judge)(const tp_judgement *judgement, void *memory, tp_alert *alert);
} tp_rule;

extern const tp_rule tp_rule_nan;
extern const tp_rule tp_rule_turbulence;
extern const tp_rule tp_rule_exploding;
extern const tp_rule tp_rule_vanishing;
extern const tp_rule tp_rule_loss_spike;
extern const tp_rule tp_rule_all_zero;
extern const tp_rule tp_rule_unchanged;

#endif
