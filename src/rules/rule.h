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
    uint32_t role;
    uint32_t dtype;
    uint32_t ndim; /* of the tensor */
    const tp_stats *stats;
    const tp_histogram *exponents; /* of its elements; NULL: they weren't counted */
    double norm;                   /* of the statistics */
    const uint32_t *ops;
    const double *values; /* of the ops; the rule looks at those in options->ops */
    uint32_t op_count;
    bool is_after_gap; /* the step before this one wasn't recorded */
    uint64_t number;   /* of the record in the step */
    void *shared;      /* what the rule keeps of all places together */
} tp_judgement;

#define TP_QUANTITY(quantity) (UINT32_C(1) << (quantity))

typedef struct tp_rule {
    uint32_t rule;       /* TP_RULE_… */
    uint32_t quantities; /* bits TP_QUANTITY of those that it looks at; 0: all */
    bool checks; /* of the numbers that checks over ranks log, it looks at those of parameters that
                    differ, and at no others; else at none of them */

    /* Steps that a series has to have had before the rule can fire on it: as many as min_samples
     * says, or these. */
    bool needs_samples;
    uint32_t needs_steps;

    /* Bytes that the rule keeps for each place that returns every step, and for all of them
     * together, multiples of 8; zeroed at first. NULL: none. */
    size_t (*memory)(const tp_rule_options *options, uint32_t op_count);
    size_t (*shared)(const tp_rule_options *options);

    /* True when the rule fires; alert then has op, value, baseline, threshold and samples set.
     * Takes the record into the place's memory. */
    bool (*judge)(const tp_judgement *judgement, void *memory, tp_alert *alert);

    /* The same behind the last record of a step, of all of it; *number: of the record that is to
     * blame. NULL: the rule looks at no step as a whole. */
    bool (*finish)(const tp_rule_options *options, void *shared, tp_alert *alert, uint64_t *number);
} tp_rule;

/* For rules that speak once, when something has lasted for min_samples steps: counts them, and is
 * true in that step; sets threshold and samples of the alert. */
bool tp_rule_lasts(const tp_rule_options *options, bool still, uint64_t *steps, tp_alert *alert);

extern const tp_rule tp_rule_nan;
extern const tp_rule tp_rule_turbulence;
extern const tp_rule tp_rule_exploding;
extern const tp_rule tp_rule_vanishing;
extern const tp_rule tp_rule_loss_spike;
extern const tp_rule tp_rule_all_zero;
extern const tp_rule tp_rule_unchanged;
extern const tp_rule tp_rule_dead_units;
extern const tp_rule tp_rule_saturated;
extern const tp_rule tp_rule_update_ratio;
extern const tp_rule tp_rule_variance;
extern const tp_rule tp_rule_gradient_norm;
extern const tp_rule tp_rule_underflow;
extern const tp_rule tp_rule_overflow;
extern const tp_rule tp_rule_momentum;
extern const tp_rule tp_rule_replicas;

#endif
