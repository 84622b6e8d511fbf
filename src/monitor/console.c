#include "monitor/console.h"

#include <stdbool.h>
#include <stdio.h>

#include "base/log.h"

static void print_alert(uint64_t step, const tp_record *record, uint64_t times,
                        const tp_registry *registry)
{
    const tp_alert *alert = &record->u.alert;
    const tp_key *key = tp_registry_key(registry, record->key);
    char name[512];
    char what[TP_ALERT_TEXT];
    char more[64] = "";
    char again[64] = "";
    tp_row_name(key, record->call, name, sizeof name);
    tp_alert_describe(alert, what, sizeof what);
    if (alert->more > 0) {
        snprintf(more, sizeof more, "; %llu more after it", (unsigned long long)alert->more);
    }
    if (times > 1) {
        snprintf(again, sizeof again, "; the %lluth step in a row", (unsigned long long)times);
    }
    tp_log(TP_LOG_WARNING, "step %llu: %s: first in %s (%s): %s%s%s", (unsigned long long)step,
           tp_rule_name(alert->rule), name[0] != '\0' ? name : "the root module",
           tp_quantity_name(key->quantity), what, more, again);
}

static bool is_power_of_ten(uint64_t number)
{
    while (number % 10 == 0) {
        number /= 10;
    }
    return number == 1;
}

void tp_console_alerts(tp_console *console, uint64_t step, const tp_record *alerts, uint64_t count,
                       const tp_registry *registry)
{
    bool seen[TP_CONSOLE_RULES] = {false};
    for (uint64_t i = 0; i < count; i++) {
        uint32_t rule = alerts[i].u.alert.rule;
        if (rule >= TP_CONSOLE_RULES || seen[rule]) {
            continue;
        }
        seen[rule] = true;
        bool again = console->rules[rule].times > 0 && console->rules[rule].step + 1 == step &&
                     console->rules[rule].key == alerts[i].key;
        console->rules[rule].times = again ? console->rules[rule].times + 1 : 1;
        console->rules[rule].step = step;
        console->rules[rule].key = alerts[i].key;
        if (is_power_of_ten(console->rules[rule].times)) {
            print_alert(step, &alerts[i], console->rules[rule].times, registry);
        }
    }
}
