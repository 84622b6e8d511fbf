/* Alerts as lines for a person. */
#ifndef TP_MONITOR_CONSOLE_H
#define TP_MONITOR_CONSOLE_H

#include "record/registry.h"

/* One line for the first alert of each rule in alerts, naming its tensor and how many more. */
void tp_console_alerts(uint64_t step, const tp_record *alerts, uint64_t count,
                       const tp_registry *registry);

#endif
