/* What a frontend (the Python extension) needs beyond the public calls: the open step's slots, the
 * registry and the configuration. tensorprobe/monitor.h is for everybody else. */
#ifndef TP_MONITOR_HOOKS_H
#define TP_MONITOR_HOOKS_H

#include <stdbool.h>

#include "config/config.h"
#include "record/registry.h"
#include "record/step.h"
#include "tensorprobe/monitor.h"

/* False after close has begun and in a forked child: hooks then return at once. One load. */
bool tp_monitor_is_active(const tp_monitor *monitor);

/* The step that is being filled. Reserving and filling: any thread (record/step.h). The pointer is
 * good until the next tp_monitor_step; a slot that is filled later keeps its own step alive. */
tp_step *tp_monitor_open_step(tp_monitor *monitor);

tp_registry *tp_monitor_registry(tp_monitor *monitor);

/* Valid until close. */
const tp_config *tp_monitor_config(const tp_monitor *monitor);

/* Adds own time and failures to the open step. Any thread. */
void tp_monitor_add_hook_time(tp_monitor *monitor, uint64_t ns);
void tp_monitor_count_error(tp_monitor *monitor);

/* How many training forwards the step that is about to end has seen. Before tp_monitor_step. */
void tp_monitor_set_micro_steps(tp_monitor *monitor, uint32_t micro_steps);

#endif
