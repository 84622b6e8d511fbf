/* Rules look at every value of a step and raise alerts. What they remember is kept per key, call
 * and micro step. One thread. */
#ifndef TP_RULES_RULES_H
#define TP_RULES_RULES_H

#include <stdbool.h>

#include "base/buf.h"
#include "record/registry.h"

/* How AnomalyTurbulence judges. RELATIVE: |x - mean| > threshold * |mean|, for every op that is a
 * value. FACTOR: norms only, x > threshold * mean or x < mean / threshold (this second one not for
 * scalars: a loss has to fall). mean: of earlier finite values. */
#define TP_TURBULENCE_RELATIVE 0
#define TP_TURBULENCE_FACTOR 1
#define TP_TURBULENCE_COMPAT 2 /* the exact formula of msprobe, with its weaknesses */

#define TP_WINDOW_MAX 256

typedef struct tp_rule_options {
    uint32_t rule;        /* TP_RULE_… */
    uint32_t mode;        /* TP_TURBULENCE_… */
    double threshold;     /* NaN: none (AnomalyNan without a bound) */
    uint64_t min_samples; /* earlier values, or steps, needed before the rule speaks */
    uint32_t window;      /* how many earlier values a median is taken of: 1 to TP_WINDOW_MAX */
    uint32_t dtype;       /* whose range counts, TP_F32 …; 0: the tensor's own */
    uint32_t ops;         /* bit 1 << TP_OP_… of each one it looks at; 0: the configured ones */

    /* Whether the rule looks at this series; NULL: at all. */
    bool (*applies)(const void *context, const tp_key *key);
    const void *context;
} tp_rule_options;

typedef struct tp_rules tp_rules;

/* rules and ops (TP_OP_…: the statistics that are looked at) are copied. registry has the keys of
 * the records, and outlives the rules, as do the contexts. */
tp_status tp_rules_new(tp_rules **out, const tp_rule_options *rules, uint32_t rule_count,
                       const uint32_t *ops, uint32_t op_count, const tp_registry *registry);
void tp_rules_free(tp_rules *rules); /* accepts NULL */

/* Appends which rules can't fire yet, as they know too few steps, and from which step on they can
 * when `step` is the next one and so many lie from one to the next: "LossSpike, DeadUnits before
 * step 16; Vanishing before step 32". Nothing: all can. */
void tp_rules_put_warming(const tp_rules *rules, uint64_t step, uint64_t interval, tp_buf *text);

/* Appends to alerts (an array of tp_record) what fires in this step, in execution order and for one
 * record in the order of the rules; then the step belongs to what they remember. TP_ERR_NOMEM. */
tp_status tp_rules_check(tp_rules *rules, const tp_batch *batch, tp_buf *alerts);

#endif
