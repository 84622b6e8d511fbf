/* The summary of one journal: run, steps, series, cost, alerts. */
#include "tools/tool.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/map.h"
#include "base/text.h"
#include "cause/order.h"
#include "monitor/run.h"
#include "tensorprobe/reader.h"

#define ALERTS_SHOWN 10
#define QUANTITIES 16 /* more than there are */

/* What is kept of one key. */
struct series {
    uint32_t key;
    uint64_t records;
    uint64_t first_step;
    uint64_t last_step;
    double last_norm;
};

/* What is kept of the whole journal. */
struct summary {
    uint64_t steps, partial, skipped, gaps, records, errors;
    uint64_t removed, removed_first, removed_last; /* steps that have only overviews left */
    uint64_t first_step, last_step;
    uint64_t step_ns, hook_ns, writer_ns, wait_ns, bytes;
    uint64_t left_out_steps, zoom_steps;
    uint32_t left_out; /* bits 1 << TP_ACTIVATION … */
    uint32_t zooms, last_zoom;
    tp_buf zoom_text;
    uint64_t alert_steps, alerts, incidents;
    uint32_t attempts;
    uint32_t micro_steps; /* of the last step */
    bool closed;          /* the last frame is the mark of a clean end */
    tp_buf reached;       /* of the last batch, if it is partial: how far it came */
    tp_buf alert_text, incident_text;
    tp_buf series; /* struct series, in the order in which they were met */
    tp_map places; /* of keys among them: damage can leave any id */
};

static struct series *series_at(const struct summary *summary, uint64_t place)
{
    return (struct series *)(void *)summary->series.data + place;
}

/* NULL: no memory. */
static struct series *find_series(struct summary *summary, uint32_t key)
{
    const uint64_t count = summary->series.size / sizeof(struct series);
    const struct series series = {.key = key};
    uint32_t place;
    if (tp_map_get(&summary->places, &key, sizeof key, &place) == TP_OK) {
        return series_at(summary, place);
    }
    tp_buf_put(&summary->series, &series, sizeof series);
    if (summary->series.failed ||
        tp_map_set(&summary->places, &key, sizeof key, (uint32_t)count) != TP_OK) {
        return NULL;
    }
    return series_at(summary, count);
}

static tp_status take_records(struct summary *summary, const tp_reader *reader,
                              const tp_batch *batch)
{
    for (uint64_t i = 0; i < batch->count; i++) {
        const tp_record *record = &batch->records[i];
        if (record->state != TP_SLOT_DONE || record->kind != TP_RECORD_STATS) {
            continue;
        }
        if (tp_reader_key(reader, record->key) == NULL) {
            continue; /* it has no name: its definition is damaged */
        }
        struct series *series = find_series(summary, record->key);
        if (series == NULL) {
            return TP_ERR_NOMEM;
        }
        if (series->records == 0) {
            series->first_step = batch->step;
        }
        series->records++;
        series->last_step = batch->step;
        series->last_norm = tp_stats_norm(&record->u.stats);
    }
    return TP_OK;
}

/* Where a step that did not reach its end was: at its last record, by the order of execution. */
static void describe_end(tp_buf *text, const tp_reader *reader, const tp_batch *batch)
{
    const tp_record *last = NULL;
    char name[512] = "?";
    tp_buf_clear(text);
    if ((batch->flags & TP_BATCH_PARTIAL) == 0 || batch->records == NULL) {
        return;
    }
    for (uint64_t i = 0; i < batch->count; i++) {
        const tp_record *record = &batch->records[i];
        if (record->state == TP_SLOT_DONE && (last == NULL || record->order > last->order)) {
            last = record;
        }
    }
    const tp_key *key = last != NULL ? tp_reader_key(reader, last->key) : NULL;
    if (key == NULL) {
        return;
    }
    const char *quantity = tp_quantity_name(key->quantity);
    tp_row_name(key, 0, name, sizeof name);
    tp_buf_printf(text,
                  "reached  %s %s, micro step %" PRIu32 ", call %" PRIu32 ", of step %" PRIu64
                  " (%" PRIu64 " record%s, %" PRIu32 " of them unfinished)\n",
                  quantity != NULL ? quantity : "?", name, last->micro_step, last->call,
                  batch->step, batch->count, tp_plural(batch->count), batch->unfilled);
}

static void take_zoom(struct summary *summary, const tp_batch *batch)
{
    if (batch->zoom != 0 && batch->zoom != summary->last_zoom) {
        if (summary->zooms++ < ALERTS_SHOWN) {
            tp_buf_printf(&summary->zoom_text, "%sfrom step %" PRIu64 " for incident %" PRIu32,
                          summary->zooms > 1 ? "; " : "", batch->step, batch->zoom);
        }
    }
    summary->last_zoom = batch->zoom;
    summary->zoom_steps += batch->zoom != 0;
}

static tp_status take_batch(struct summary *summary, const tp_reader *reader, const tp_batch *batch)
{
    describe_end(&summary->reached, reader, batch);
    if (summary->steps == 0) {
        summary->first_step = batch->step;
    }
    summary->last_step = batch->step;
    summary->micro_steps = batch->micro_steps;
    summary->steps++;
    summary->partial += (batch->flags & TP_BATCH_PARTIAL) != 0;
    summary->skipped += (batch->flags & TP_BATCH_SKIPPED) != 0;
    summary->gaps += (batch->flags & TP_BATCH_GAP) != 0;
    summary->errors += batch->errors;
    summary->step_ns += batch->end_ns - batch->begin_ns;
    summary->hook_ns += batch->hook_ns;
    summary->writer_ns += batch->writer_ns;
    summary->wait_ns += batch->wait_ns;
    summary->bytes += batch->bytes;
    summary->left_out_steps += batch->left_out != 0;
    summary->left_out |= batch->left_out;
    take_zoom(summary, batch);
    if (batch->attempt >= summary->attempts) {
        summary->attempts = batch->attempt + 1;
    }
    if (batch->records == NULL) {
        return TP_OK;
    }
    summary->records += batch->count;
    return take_records(summary, reader, batch);
}

/* more: other series of the step that fired the same rule. */
static void describe_alert(tp_buf *text, const tp_reader *reader, uint64_t step,
                           const tp_record *record, uint64_t more)
{
    const tp_alert *alert = &record->u.alert;
    const tp_key *key = tp_reader_key(reader, record->key);
    const char *rule = tp_rule_name(alert->rule);
    const char *op = tp_op_name(alert->op);
    const char *quantity = key != NULL ? tp_quantity_name(key->quantity) : NULL;
    char name[512] = "?";
    if (key != NULL) {
        tp_row_name(key, record->call, name, sizeof name);
    }
    tp_buf_printf(text, "  step %-6" PRIu64 " %-18s %s %s: %s %g", step, rule != NULL ? rule : "?",
                  quantity != NULL ? quantity : "?", name, op != NULL ? op : "?", alert->value);
    if (!isnan(alert->baseline)) {
        tp_buf_printf(text, ", before %g", alert->baseline);
    }
    if (more > 0) {
        tp_buf_printf(text, " (first; %" PRIu64 " more series)", more);
    }
    tp_buf_put(text, "\n", 1);
}

/* As it was when it began, as on the console of the run. */
static void take_incident(struct summary *summary, const tp_reader *reader, uint64_t step,
                          const tp_record *record)
{
    const tp_incident *incident = &record->u.incident;
    const tp_key *key = tp_reader_key(reader, record->key);
    const tp_key *witness = tp_reader_key(reader, incident->witness);
    char text[TP_INCIDENT_TEXT];
    if (incident->state != TP_INCIDENT_BEGINS) {
        return;
    }
    if (++summary->incidents <= ALERTS_SHOWN && key != NULL) {
        const char *severity = tp_severity_name(incident->severity);
        tp_incident_describe(record, key, witness, text, sizeof text);
        tp_buf_printf(&summary->incident_text, "  step %-6" PRIu64 " %s: %s\n", step,
                      severity != NULL ? severity : "?", text);
    }
}

/* The alert of the same rule that comes first in the order of the step. */
static const tp_record *first_of_rule(const struct summary *summary, const tp_reader *reader,
                                      const tp_batch *batch, uint32_t rule)
{
    const tp_batch of = {.step = batch->step, .micro_steps = summary->micro_steps};
    const tp_record *first = NULL;
    tp_moment earliest;
    for (uint64_t i = 0; i < batch->count; i++) {
        const tp_record *record = &batch->records[i];
        const tp_key *key = tp_reader_key(reader, record->key);
        if (record->kind != TP_RECORD_ALERT || record->u.alert.rule != rule || key == NULL) {
            continue;
        }
        const tp_moment moment = tp_moment_of(&of, record, key);
        if (first == NULL || tp_moment_compare(&moment, &earliest) < 0) {
            first = record;
            earliest = moment;
        }
    }
    return first;
}

/* One line a step and rule; with all: one line an alert. */
static void take_alerts(struct summary *summary, const tp_reader *reader, const tp_batch *batch,
                        bool all)
{
    uint64_t shown = 0; /* bit of each rule that had its line */
    bool has_alert = false;
    for (uint64_t i = 0; i < batch->count; i++) {
        const tp_record *record = &batch->records[i];
        if (record->kind == TP_RECORD_INCIDENT) {
            take_incident(summary, reader, batch->step, record);
        }
        if (record->kind != TP_RECORD_ALERT) {
            continue;
        }
        summary->alert_steps += !has_alert;
        summary->alerts++;
        has_alert = true;
        uint64_t bit = UINT64_C(1) << (record->u.alert.rule % 64);
        if (all) {
            describe_alert(&summary->alert_text, reader, batch->step, record, record->u.alert.more);
        } else if (summary->alert_steps <= ALERTS_SHOWN && (shown & bit) == 0) {
            const tp_record *first = first_of_rule(summary, reader, batch, record->u.alert.rule);
            describe_alert(&summary->alert_text, reader, batch->step,
                           first != NULL ? first : record, record->u.alert.more);
        }
        shown |= bit;
    }
}

static void print_run(const tp_run_info *run, const struct summary *summary)
{
    time_t seconds = (time_t)(run->start_wall_ns / 1000000000);
    struct tm local;
    char start[64] = "?";
    if (localtime_r(&seconds, &local) != NULL) {
        strftime(start, sizeof start, "%Y-%m-%d %H:%M:%S %z", &local);
    }
    printf("run      %s, rank %" PRIu32 ", opened %s", run->run_id, run->rank, start);
    if (summary->attempts > 1) {
        printf(", attempt %" PRIu32, summary->attempts - 1);
    }
    putchar('\n');
}

/* How the run stands that has not been closed. */
static const char *end_of(const char *directory)
{
    const uint32_t state = tp_run_state(directory);
    return state == TP_RUN_OPEN   ? ", still running"
           : state == TP_RUN_LEFT ? ", not closed: its process is gone"
                                  : ", not closed";
}

static void print_steps(const struct summary *summary, const char *directory)
{
    if (summary->steps == 0) {
        puts("steps    none");
        return;
    }
    printf("steps    %" PRIu64 " (%" PRIu64 " to %" PRIu64 ")", summary->steps, summary->first_step,
           summary->last_step);
    if (summary->skipped > 0) {
        printf(", %" PRIu64 " skipped", summary->skipped);
    }
    if (summary->partial > 0) {
        printf(", %" PRIu64 " partial", summary->partial);
    }
    if (summary->gaps > 0) {
        printf(", %" PRIu64 " given up", summary->gaps);
    }
    puts(summary->closed ? ", closed" : end_of(directory));
    if (summary->removed > 0) {
        printf("removed  %" PRIu64 " step%s (%" PRIu64 " to %" PRIu64
               ") to keep the journal small: alerts and overviews are left (--table overview)\n",
               summary->removed, tp_plural(summary->removed), summary->removed_first,
               summary->removed_last);
    }
    fwrite(summary->reached.data, 1, summary->reached.size, stdout);
}

static void print_quantities(const struct summary *summary, const tp_reader *reader)
{
    uint64_t counts[QUANTITIES] = {0};
    uint64_t total = 0;
    uint64_t place = 0;
    uint32_t id;
    for (const tp_key *key; (key = tp_reader_next_key(reader, &place, &id)) != NULL; total++) {
        if (key->quantity < QUANTITIES) {
            counts[key->quantity]++;
        }
    }
    printf("series   %" PRIu64, total);
    const char *separator = ": ";
    for (uint32_t quantity = 0; quantity < QUANTITIES; quantity++) {
        const char *name = tp_quantity_name(quantity);
        if (counts[quantity] > 0 && name != NULL) {
            printf("%s%s %" PRIu64, separator, name, counts[quantity]);
            separator = ", ";
        }
    }
    printf("\nrecords  %" PRIu64 "\n", summary->records);
}

/* In per cent of the steps, which begin with the waiting. */
static void print_cost(const struct summary *summary)
{
    if (summary->step_ns == 0) {
        return;
    }
    double total = (double)summary->step_ns;
    printf("cost     hooks %.2f %%, writer thread %.2f %%, waiting %.2f %% of %.1f s",
           100.0 * (double)summary->hook_ns / total, 100.0 * (double)summary->writer_ns / total,
           100.0 * (double)summary->wait_ns / total, total / 1e9);
    if (summary->bytes > 0) {
        printf("; %.1f KB and %.0f records a step",
               (double)summary->bytes / 1e3 / (double)summary->steps,
               (double)summary->records / (double)summary->steps);
    }
    if (summary->errors > 0) {
        printf("; %" PRIu64 " observations failed", summary->errors);
    }
    putchar('\n');
    if (summary->left_out_steps > 0) {
        char left_out[TP_QUANTITIES_TEXT];
        tp_quantities_describe(summary->left_out, left_out, sizeof left_out);
        printf("budget   %" PRIu64 " steps without %s (--table steps says which)\n",
               summary->left_out_steps, left_out);
    }
    if (summary->zoom_steps > 0) {
        printf("zoom     %" PRIu64 " steps: %.*s\n", summary->zoom_steps,
               (int)summary->zoom_text.size, (const char *)summary->zoom_text.data);
    }
}

static void print_alerts(const struct summary *summary, bool all)
{
    if (summary->alerts == 0) {
        puts("alerts   none");
        return;
    }
    if (summary->incidents > 0) {
        printf("incidents %" PRIu64 "\n", summary->incidents);
        fwrite(summary->incident_text.data, 1, summary->incident_text.size, stdout);
        if (summary->incidents > ALERTS_SHOWN) {
            printf("  … and %" PRIu64 " more; tensorprobe analyse lists them\n",
                   summary->incidents - ALERTS_SHOWN);
        }
    }
    printf("alerts   %" PRIu64 " in %" PRIu64 " step%s\n", summary->alerts, summary->alert_steps,
           tp_plural(summary->alert_steps));
    fwrite(summary->alert_text.data, 1, summary->alert_text.size, stdout);
    if (!all && summary->alert_steps > ALERTS_SHOWN) {
        printf("  … and %" PRIu64 " more step%s; --alerts prints all of them\n",
               summary->alert_steps - ALERTS_SHOWN, tp_plural(summary->alert_steps - ALERTS_SHOWN));
    }
}

static void print_series(const struct summary *summary, const tp_reader *reader)
{
    puts("\nquantity         records  steps              last norm  name");
    for (uint64_t i = 0; i < summary->series.size / sizeof(struct series); i++) {
        const struct series *series = series_at(summary, i);
        const tp_key *key = tp_reader_key(reader, series->key);
        if (key == NULL) {
            continue;
        }
        const char *quantity = tp_quantity_name(key->quantity);
        char name[512];
        char steps[48];
        tp_row_name(key, 0, name, sizeof name);
        snprintf(steps, sizeof steps, "%" PRIu64 "-%" PRIu64, series->first_step,
                 series->last_step);
        printf("%-15s %8" PRIu64 "  %-15s %12.6g  %s\n", quantity != NULL ? quantity : "?",
               series->records, steps, series->last_norm, name);
    }
}

/* Reads to the end. */
static int read_all(tp_reader *reader, struct summary *summary, bool all_alerts, const char *name)
{
    int result = TP_EXIT_OK;
    for (;;) {
        tp_item item;
        tp_error error = {0};
        tp_status status = tp_reader_next(reader, &item, &error);
        if (status == TP_END) {
            return result;
        }
        if (status == TP_ERR_CORRUPT) { /* the next call goes on behind the damage */
            result = tp_tool_failed(name, &error);
            continue;
        }
        if (status != TP_OK) {
            return tp_tool_failed(name, &error);
        }
        summary->closed = item.type == TP_ITEM_CLOSE;
        if (item.type == TP_ITEM_REMOVED) {
            summary->removed_first =
                summary->removed == 0 ? item.batch.step : summary->removed_first;
            summary->removed_last = item.removed_last;
            summary->removed += item.batch.count;
        }
        if (item.type == TP_ITEM_BATCH) {
            if (take_batch(summary, reader, &item.batch) != TP_OK) {
                tp_error no_memory = {.code = TP_ERR_NOMEM, .message = "out of memory"};
                return tp_tool_failed(name, &no_memory);
            }
        } else if (item.type == TP_ITEM_ALERTS) {
            take_alerts(summary, reader, &item.batch, all_alerts);
        }
    }
}

int tp_tool_summary(const char *name, const char *directory, bool all_alerts, bool all_series)
{
    tp_reader *reader = NULL;
    tp_error error = {0};
    if (tp_reader_open(&reader, directory, &error) != TP_OK) {
        return tp_tool_failed(name, &error);
    }
    struct summary summary = {.reached = TP_BUF_INIT,
                              .alert_text = TP_BUF_INIT,
                              .zoom_text = TP_BUF_INIT,
                              .incident_text = TP_BUF_INIT,
                              .series = TP_BUF_INIT};
    int result = read_all(reader, &summary, all_alerts, name);
    print_run(tp_reader_run(reader), &summary);
    print_steps(&summary, directory);
    print_quantities(&summary, reader);
    print_cost(&summary);
    print_alerts(&summary, all_alerts);
    if (all_series) {
        print_series(&summary, reader);
    }
    tp_buf_free(&summary.reached);
    tp_buf_free(&summary.alert_text);
    tp_buf_free(&summary.zoom_text);
    tp_buf_free(&summary.incident_text);
    tp_buf_free(&summary.series);
    tp_map_free(&summary.places);
    tp_reader_close(&reader);
    return result;
}
