/* What a frontend (the Python extension) needs beyond the public calls: slots of the open step, the
 * registry and the configuration. tensorprobe/monitor.h is for everybody else. */
#ifndef TP_MONITOR_HOOKS_H
#define TP_MONITOR_HOOKS_H

#include <stdbool.h>

#include "config/config.h"
#include "record/registry.h"
#include "record/step.h"
#include "tensorprobe/monitor.h"
#include "tensorprobe/reader.h"

/* False after close has begun and in a forked child: hooks then return at once. One load. */
bool tp_monitor_is_active(const tp_monitor *monitor);

/* Does the configuration want the open step (start_step, step_interval, collect_times and
 * module_ranks)? Else a frontend records nothing, and the step's end makes no batch of it. */
bool tp_monitor_is_collecting(const tp_monitor *monitor);

/* No step from now on will be wanted: collect_times of them have been, it isn't this rank, or the
 * monitor pauses. */
bool tp_monitor_is_done(const tp_monitor *monitor);

/* A slot of the open step, as tp_step_reserve gives it, and that step, for tp_step_fill. Any
 * thread, also while another one ends the step: the slot then belongs to the step before or after.
 * NULL: no memory, or a forked child. */
tp_record *tp_monitor_reserve(tp_monitor *monitor, uint32_t key, uint64_t now_ns, tp_step **step);

/* The open step, for a frontend that reserves slots in it without the lock: while it does, nobody
 * may end a step. NULL: no memory. */
tp_step *tp_monitor_open_step(const tp_monitor *monitor);

tp_registry *tp_monitor_registry(tp_monitor *monitor);

/* The one in force. Valid until close, also when another one has come. */
const tp_config *tp_monitor_config(const tp_monitor *monitor);

/* Collects nothing from now on; a step that holds records already is completed. */
void tp_monitor_pause(tp_monitor *monitor);

/* Collects from now on, as a new monitor would whose start_step is the open step. */
void tp_monitor_resume(tp_monitor *monitor);

/* Reads another configuration, from path, or from text where path is NULL, for the open step and
 * those that follow. When it is wrong the one in force stays. What it says of files and journal
 * counts only while nothing has been written. Neither these four beside each other nor beside calls
 * that record or end a step. */
tp_status tp_monitor_configure(tp_monitor *monitor, const char *path, const char *text,
                               tp_error *error);

/* The configuration in force with other ops (TP_OP_…, at least one). TP_ERR_NOMEM. */
tp_status tp_monitor_set_ops(tp_monitor *monitor, const uint32_t *ops, uint32_t count);

/* Adds own time and failures to the open step. Any thread. */
void tp_monitor_add_hook_time(tp_monitor *monitor, uint64_t ns);
void tp_monitor_count_error(tp_monitor *monitor);

/* The number of the open step. */
uint64_t tp_monitor_step_number(const tp_monitor *monitor);

/* Numbers the open step and with it those that follow. TP_ERR_STATE when something has been
 * recorded in it already. Not beside calls that record. */
tp_status tp_monitor_renumber(tp_monitor *monitor, uint64_t step);

/* Goes on in the directory of an earlier start, which run names as in tp_monitor_options.resume: in
 * front of the first record. In the monitor's own directory the steps from the open one on are
 * another attempt. The number of the open step stays. TP_ERR_STATE: something has been recorded, or
 * another process is writing there. */
tp_status tp_monitor_go_on(tp_monitor *monitor, const char *run, tp_error *error);

const tp_run_info *tp_monitor_run(const tp_monitor *monitor);

/* What the open step has so far, as tp_step_view shows it; valid until the next view and the end of
 * the step. TP_ERR_STATE: there is no open step. TP_ERR_NOMEM. */
tp_status tp_monitor_view(tp_monitor *monitor, tp_batch *batch);

/* The optimizer makes no update in the open step. Before tp_monitor_step. */
void tp_monitor_mark_skipped(tp_monitor *monitor);

/* Quantities (bits 1 << TP_ACTIVATION …) that the open step and those that follow leave out. Not
 * beside calls that end a step. */
void tp_monitor_set_left_out(tp_monitor *monitor, uint32_t quantities);

/* More than is configured is recorded from the open step on because of the incident with this
 * number: in every step, whatever step_interval says. 0: no longer. Not beside calls that record or
 * end a step. */
void tp_monitor_set_zoom(tp_monitor *monitor, uint32_t incident);

/* The incident that has begun since the last call, a warning or worse, the worst of several. It is
 * found in a step that has been written. False: none has. */
bool tp_monitor_take_incident(tp_monitor *monitor, tp_record *incident);

/* How many training forwards the step that is about to end has seen. Before tp_monitor_step. */
void tp_monitor_set_micro_steps(tp_monitor *monitor, uint32_t micro_steps);

#endif
