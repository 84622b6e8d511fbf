/* Alerts as lines for a person. */
#ifndef TP_MONITOR_CONSOLE_H
#define TP_MONITOR_CONSOLE_H

#include "record/registry.h"

#define TP_CONSOLE_RULES (TP_RULE_COUNT + 1) /* by the number of the rule */

/* What each rule said in the step before: a fault that stays would say the same for ever. */
typedef struct tp_console {
    struct {
        uint64_t step;
        uint64_t times; /* in a row that this rule named this tensor; 0: never */
        uint32_t key;
    } rules[TP_CONSOLE_RULES];
} tp_console;

/* One line for the first alert of each rule in alerts, naming its tensor and how many more. Where a
 * rule names the same tensor step after step, the 1st, 10th, 100th … time. */
void tp_console_alerts(tp_console *console, uint64_t step, const tp_record *alerts, uint64_t count,
                       const tp_registry *registry);

#endif
