/* A tensor that a C program hands over itself. */
#include "base/clock.h"
#include "monitor/hooks.h"

tp_status tp_monitor_observe(tp_monitor *monitor, uint32_t key, const tp_tensor *tensor,
                             uint32_t micro_step)
{
    tp_stats stats;
    tp_exponents exponents; /* 5 KiB, touched when they are asked for */
    uint32_t shape;
    const tp_key *known =
        monitor == NULL ? NULL : tp_registry_key(tp_monitor_registry(monitor), key);
    if (tensor == NULL || known == NULL) {
        return TP_ERR_ARGUMENT;
    }
    if (!tp_monitor_is_active(monitor)) {
        return TP_ERR_STATE;
    }
    if (!tp_monitor_is_collecting(monitor)) {
        return TP_OK;
    }
    const uint64_t start = tp_clock_monotonic();
    /* The key itself, which is seldom in the cache, is looked at only if need be. */
    const uint32_t counted = tp_monitor_config(monitor)->exponents;
    const bool has_exponents = counted != 0 && (counted >> known->quantity & 1) != 0;
    const tp_stats_options options = {.eps = tp_monitor_config(monitor)->eps,
                                      .exponents = has_exponents ? &exponents : NULL};
    tp_status status = tp_stats_compute_with(tensor, &options, &stats);
    if (status == TP_OK) {
        status = tp_registry_add_shape(tp_monitor_registry(monitor), tensor->ndim, tensor->shape,
                                       &shape);
    }
    if (status != TP_OK) {
        tp_monitor_count_error(monitor);
        return status;
    }
    tp_step *step;
    const uint64_t now = tp_clock_monotonic();
    tp_record *slot = tp_monitor_reserve(monitor, key, now, &step);
    if (slot == NULL) {
        return TP_ERR_NOMEM;
    }
    slot->micro_step = micro_step;
    slot->kind = TP_RECORD_STATS;
    slot->dtype = tensor->dtype;
    slot->shape = shape;
    slot->u.stats = stats;
    if (stats.nan + stats.pos_inf + stats.neg_inf > 0) {
        tp_step_add_element(step, slot, tensor);
    }
    if (has_exponents) {
        tp_step_add_exponents(step, slot, &exponents);
    }
    tp_monitor_add_hook_time(monitor, now - start);
    tp_step_fill(step, slot);
    return TP_OK;
}
