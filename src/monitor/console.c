#include "monitor/console.h"

#include <inttypes.h>
#include <stddef.h>

#include "base/log.h"
#include "base/text.h"

static void print_incident(uint64_t step, const tp_record *record, const tp_registry *registry,
                           const char *directory)
{
    const tp_incident *incident = &record->u.incident;
    const tp_key *key = tp_registry_key(registry, record->key);
    char text[TP_INCIDENT_TEXT];
    const char *severity = tp_severity_name(incident->severity);
    if (key == NULL) {
        return;
    }
    if (incident->state == TP_INCIDENT_ENDS) {
        tp_log(TP_LOG_INFO,
               "step %" PRIu64 ": incident %" PRIu32 " is over: %" PRIu64 " alert%s in %" PRIu64
               " step%s, the last in step %" PRIu64,
               step, incident->number, incident->alerts, tp_plural(incident->alerts),
               incident->steps, tp_plural(incident->steps), incident->last_step);
        return;
    }
    tp_incident_describe(record, key, tp_registry_key(registry, incident->witness), text,
                         sizeof text);
    if (incident->state == TP_INCIDENT_GROWS) {
        tp_log(TP_LOG_WARNING, "step %" PRIu64 ": incident %" PRIu32 " goes on (%s): %s", step,
               incident->number, severity, text);
        return;
    }
    tp_log(TP_LOG_WARNING, "step %" PRIu64 ": %s (incident %" PRIu32 ", %s; more: %s)", step, text,
           incident->number, severity, directory);
}

void tp_console_incidents(uint64_t step, const tp_record *alerts, uint64_t count,
                          const tp_registry *registry, const char *directory)
{
    for (uint64_t i = 0; i < count; i++) {
        if (alerts[i].kind == TP_RECORD_INCIDENT) {
            print_incident(step, &alerts[i], registry, directory);
        }
    }
}

void tp_console_cost(const tp_monitor_counters *counters, uint64_t run_ns)
{
    const double steps = (double)counters->steps;
    const double percent = 100.0 / (double)run_ns;
    const uint64_t bytes =
        counters->bytes_journal + counters->bytes_csv + counters->bytes_tensorboard;
    tp_log(TP_LOG_INFO,
           "%" PRIu64 " steps watched: hooks %.2f %%, waiting %.2f %%, writer thread %.2f %% of "
           "%.1f s; %.0f records and %.1f KB a step",
           counters->steps, percent * (double)counters->hook_ns,
           percent * (double)counters->wait_ns, percent * (double)counters->writer_cpu_ns,
           (double)run_ns / 1e9, (double)counters->records / steps, (double)bytes / 1e3 / steps);
}
