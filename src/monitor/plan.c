#include "monitor/plan.h"

#include <inttypes.h>
#include <string.h>

static const tp_sink *const sinks[TP_PLAN_SINKS] = {
    [TP_PLAN_CSV] = &tp_sink_csv,
    [TP_PLAN_TENSORBOARD] = &tp_sink_tensorboard,
    [TP_PLAN_SQLITE] = &tp_sink_sqlite,
    [TP_PLAN_ANOMALY] = &tp_sink_anomaly,
};

static bool is_wanted(const tp_config *config, uint32_t sink)
{
    switch (sink) {
    case TP_PLAN_CSV:
        return (config->formats & TP_FORMAT_CSV) != 0;
    case TP_PLAN_TENSORBOARD:
        return (config->formats & TP_FORMAT_TENSORBOARD) != 0;
    case TP_PLAN_SQLITE:
        return (config->formats & TP_FORMAT_SQLITE) != 0;
    default:
        return config->alert_dump && config->rule_count > 0;
    }
}

tp_plan tp_plan_of(const tp_config *config, uint32_t rank)
{
    tp_plan plan = {
        .rank = rank,
        .op_count = config->op_count,
        .ndigits = config->ndigits,
        .micro_gradients = config->monitor_mbs_grad,
        .steps_per_file = config->step_count_per_record,
        .max_tags = config->tensorboard_tags,
    };
    for (uint32_t i = 0; i < TP_PLAN_SINKS; i++) {
        plan.wanted |= is_wanted(config, i) ? 1u << i : 0;
    }
    memcpy(plan.ops, config->ops, config->op_count * sizeof plan.ops[0]);
    return plan;
}

void tp_plan_tell(const tp_plan *plan, tp_buf *out)
{
    tp_buf_printf(out, "{\"ops\": [");
    for (uint32_t i = 0; i < plan->op_count; i++) {
        tp_buf_printf(out, "%s\"%s\"", i > 0 ? ", " : "", tp_op_name(plan->ops[i]));
    }
    tp_buf_printf(out,
                  "], \"ndigits\": %" PRIu32 ", \"step_count_per_record\": %" PRIu64
                  ", \"tensorboard_tags\": %" PRIu64 "}",
                  plan->ndigits, plan->steps_per_file, plan->max_tags);
}

bool tp_plan_wants(const tp_plan *plan, uint32_t sink)
{
    return (plan->wanted >> sink & 1) != 0;
}

tp_sink_options tp_plan_options(const tp_plan *plan, const char *directory)
{
    return (tp_sink_options){
        .directory = directory,
        .rank = plan->rank,
        .op_count = plan->op_count,
        .ops = plan->ops,
        .ndigits = plan->ndigits,
        .micro_gradients = plan->micro_gradients,
        .steps_per_file = plan->steps_per_file,
        .max_tags = plan->max_tags,
    };
}

tp_status tp_plan_open(const tp_plan *plan, uint32_t sink, const char *directory, tp_follower **out,
                       tp_error *error)
{
    const tp_sink_options options = tp_plan_options(plan, directory);
    return tp_follower_open(out, sinks[sink], &options, error);
}
