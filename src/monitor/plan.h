/* Which files a run makes from its journal, and how. Plain data: black boxes hold it. */
#ifndef TP_MONITOR_PLAN_H
#define TP_MONITOR_PLAN_H

#include "config/config.h"
#include "monitor/follower.h"

enum { TP_PLAN_CSV, TP_PLAN_TENSORBOARD, TP_PLAN_SQLITE, TP_PLAN_ANOMALY, TP_PLAN_SINKS };

typedef struct tp_plan {
    uint32_t wanted; /* bits 1 << TP_PLAN_CSV … */
    uint32_t rank;
    uint32_t op_count;
    uint32_t ndigits;
    bool micro_gradients;
    uint64_t steps_per_file;
    uint64_t max_tags;
    uint32_t ops[TP_OP_COUNT];
} tp_plan;

tp_plan tp_plan_of(const tp_config *config, uint32_t rank);

bool tp_plan_wants(const tp_plan *plan, uint32_t sink);

/* The configuration as far as files are made by it, and nothing secret: as JSON. */
void tp_plan_tell(const tp_plan *plan, tp_buf *out);

/* The options point into the plan. */
tp_sink_options tp_plan_options(const tp_plan *plan, const char *directory);

/* Opens the follower of a sink (TP_PLAN_CSV …) as tp_follower_open does. */
tp_status tp_plan_open(const tp_plan *plan, uint32_t sink, const char *directory, tp_follower **out,
                       tp_error *error);

#endif
