/* Incidents as lines for a person. */
#ifndef TP_MONITOR_CONSOLE_H
#define TP_MONITOR_CONSOLE_H

#include "record/registry.h"
#include "tensorprobe/monitor.h"

/* A line for each record of kind TP_RECORD_INCIDENT among the alerts of a step: one that begins,
 * grows or ends. directory: where `tensorprobe analyse` finds more. */
void tp_console_incidents(uint64_t step, const tp_record *alerts, uint64_t count,
                          const tp_registry *registry, const char *directory);

/* What watching has cost a run of so many nanoseconds. */
void tp_console_cost(const tp_monitor_counters *counters, uint64_t run_ns);

#endif
