#include "monitor/console.h"

#include <math.h>
#include <stdio.h>

#include "base/log.h"

/* "norm is 512.3, the mean of 31 earlier steps 4.1" */
static void describe(const tp_alert *alert, char *text, size_t size)
{
    const char *op = tp_op_name(alert->op);
    if (alert->op == TP_OP_NANS) {
        snprintf(text, size, "%.0f values are NaN", alert->value);
    } else if (!isnan(alert->baseline)) {
        snprintf(text, size, "%s is %.4g, the mean of %llu earlier step%s %.4g", op, alert->value,
                 (unsigned long long)alert->samples, alert->samples == 1 ? "" : "s",
                 alert->baseline);
    } else {
        snprintf(text, size, "%s is %.4g", op, alert->value);
    }
}

static void print_alert(uint64_t step, const tp_record *record, const tp_registry *registry)
{
    const tp_alert *alert = &record->u.alert;
    const tp_key *key = tp_registry_key(registry, record->key);
    char name[512];
    char what[160];
    char more[64] = "";
    tp_row_name(key, record->call, name, sizeof name);
    describe(alert, what, sizeof what);
    if (alert->more > 0) {
        snprintf(more, sizeof more, "; %llu more after it", (unsigned long long)alert->more);
    }
    tp_log(TP_LOG_WARNING, "step %llu: %s: first in %s (%s): %s%s", (unsigned long long)step,
           tp_rule_name(alert->rule), name[0] != '\0' ? name : "the root module",
           tp_quantity_name(key->quantity), what, more);
}

void tp_console_alerts(uint64_t step, const tp_record *alerts, uint64_t count,
                       const tp_registry *registry)
{
    uint64_t shown = 0; /* bit of each rule that had its line */
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bit = UINT64_C(1) << (alerts[i].u.alert.rule % 64);
        if ((shown & bit) == 0) {
            shown |= bit;
            print_alert(step, &alerts[i], registry);
        }
    }
}
