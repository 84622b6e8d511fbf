/* Rules look at every value of a step and raise alerts. Baselines are kept per key, call, micro
 * step and statistic, and are made of finite values only. One thread. */
#ifndef TP_RULES_RULES_H
#define TP_RULES_RULES_H

#include "base/buf.h"
#include "record/registry.h"
#include "tensorprobe/record.h"

/* How AnomalyTurbulence judges. RELATIVE: |x - mean| > threshold * |mean|, for every op that is a
 * value. FACTOR: norms only, x > threshold * mean or x < mean / threshold; of scalars the first
 * alone, since a loss is meant to fall. mean: of earlier finite values. */
#define TP_TURBULENCE_RELATIVE 0
#define TP_TURBULENCE_FACTOR 1

typedef struct tp_rule_options {
    uint32_t rule;        /* TP_RULE_… */
    uint32_t mode;        /* TP_TURBULENCE_… */
    double threshold;     /* NaN: none (AnomalyNan without a bound) */
    uint64_t min_samples; /* earlier finite values needed before the rule speaks */
} tp_rule_options;

typedef struct tp_rules tp_rules;

/* rules and ops (TP_OP_…: the statistics that are looked at) are copied. registry: has the keys of
 * the records, and is borrowed until free. */
tp_status tp_rules_new(tp_rules **out, const tp_rule_options *rules, uint32_t rule_count,
                       const uint32_t *ops, uint32_t op_count, const tp_registry *registry);
void tp_rules_free(tp_rules *rules); /* accepts NULL */

/* Appends to alerts (an array of tp_record) what fires in this step, in execution order for each
 * rule; then takes the step's values into the baselines. TP_ERR_NOMEM. */
tp_status tp_rules_check(tp_rules *rules, const tp_batch *batch, tp_buf *alerts);

#endif
