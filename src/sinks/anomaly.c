/* anomaly.json: the alerts of a rank in the schema of the msprobe Monitor, for what reads it there
 * and for `python -m tensorprobe.anomaly_analyse`. The file is one JSON object, so it is replaced
 * as a whole and never torn; it lies in the rank's directory, and where the ancestors have it,
 * <base>/anomaly_detected/rank<R>/anomaly.json, is a link to that of the latest run. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "sinks/series.h"

#define FILE_NAME "anomaly.json"
/* Of each rule: what one rule says in every step leaves room for what another says once. */
#define MAX_ANOMALIES 10000u
#define RULES (TP_RULE_COUNT + 1)
#define CURSOR_SIZE (12 + 4 * (size_t)RULES) /* of earlier versions less: they had fewer rules */

typedef struct anomaly {
    tp_sink_options options;
    char path[TP_PATH_MAX];
    tp_buf text;            /* the file without its closing brace; empty: no anomaly yet */
    uint32_t counts[RULES]; /* by rule */
    int32_t pp_stage;
    bool is_written; /* the file holds the text */
    uint64_t bytes;
} anomaly;

/* The ancestor's key is tag, step and call: rule and statistic are added, so that two findings in
 * one tensor don't hide each other. */
static void put_anomaly(anomaly *sink, uint64_t step, const tp_record *record, const tp_key *key)
{
    const tp_alert *alert = &record->u.alert;
    const char *op = tp_op_name(alert->op);
    const char *rule = tp_rule_name(alert->rule);
    char tag[TP_TAG_MAX];
    char what[TP_ALERT_TEXT];
    char text[TP_TAG_MAX + 256];
    tp_buf *out = &sink->text;
    op = op != NULL ? op : "?";
    rule = rule != NULL ? rule : "?";
    tp_series_tag(&sink->options, key, record, tag);
    tp_alert_describe(alert, what, sizeof what);
    tp_buf_put(out, out->size > 0 ? ",\n " : "{\n ", 3);
    snprintf(text, sizeof text, "%s_step_%" PRIu64 "_call_%" PRIu64 "_%s_%s", tag, step,
             record->order, rule, op);
    tp_text_put_json(out, text);
    tp_buf_printf(out,
                  ": {\n  \"rank\": %" PRIu32 ",\n  \"step\": %" PRIu64
                  ",\n  \"micro_step\": %" PRIu32 ",\n  \"pp_stage\": %" PRId32
                  ",\n  \"vpp_stage\": %" PRId32 ",\n  \"call_id\": %" PRIu64 ",\n  \"tag_name\": ",
                  sink->options.rank, step, record->micro_step,
                  sink->pp_stage > 0 ? sink->pp_stage : 0, key->vpp_stage, record->order);
    tp_text_put_json(out, tag);
    tp_buf_printf(out, ",\n  \"message\": ");
    snprintf(text, sizeof text, "%s in ('%s', '%s') at step %" PRIu64 ": %s", rule, tag, op, step,
             what);
    tp_text_put_json(out, text);
    tp_buf_printf(out, ",\n  \"group_mates\": null\n }");
}

static tp_status anomaly_write(void *private, const tp_batch *batch, const tp_names *names,
                               tp_error *error)
{
    anomaly *sink = private;
    (void)names;
    (void)error;
    sink->pp_stage = batch->pp_stage;
    return TP_OK;
}

static tp_status anomaly_write_alerts(void *private, uint64_t step, const tp_record *alerts,
                                      uint64_t count, const tp_names *names, tp_error *error)
{
    anomaly *sink = private;
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t rule = alerts[i].u.alert.rule;
        const tp_key *key = names->key(names->source, alerts[i].key);
        if (alerts[i].kind != TP_RECORD_ALERT || key == NULL || rule >= RULES ||
            sink->counts[rule] == MAX_ANOMALIES) {
            continue;
        }
        put_anomaly(sink, step, &alerts[i], key);
        sink->is_written = false;
        if (++sink->counts[rule] == MAX_ANOMALIES) {
            tp_log(TP_LOG_WARNING,
                   "step %" PRIu64 ": %s has %u anomalies of %s and takes no more: the journal has "
                   "all",
                   step, sink->path, MAX_ANOMALIES, tp_rule_name(rule));
        }
    }
    return sink->text.failed ? tp_fail(error, TP_ERR_NOMEM, "no memory for anomalies") : TP_OK;
}

/* The text is of our own making: in front of each anomaly is a line end and one space, in front of
 * its fields there are two. */
static tp_status anomaly_rewind(void *private, uint64_t step, tp_error *error)
{
    static const char step_line[] = "\n  \"step\": ";
    static const char rule_line[] = "\n  \"message\": \"";
    anomaly *sink = private;
    tp_buf_put(&sink->text, "", 1);
    if (sink->text.failed) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for anomalies");
    }
    sink->text.size--;
    char *text = (char *)sink->text.data;
    char *begin = text; /* of the anomaly, with what stands between it and the one before */
    size_t kept = 0;
    for (char *at = strstr(text, step_line); at != NULL; at = strstr(at + 1, step_line)) {
        uint64_t number = 0;
        char name[32] = "";
        if (sscanf(at + sizeof step_line - 1, "%" SCNu64, &number) != 1) {
            break;
        }
        char *rule = strstr(at, rule_line);
        char *end = strstr(at, "\n }");
        if (rule == NULL || end == NULL || rule > end) {
            break;
        }
        end += 3;
        if (number < step) {
            memmove(text + kept, begin, (size_t)(end - begin));
            kept += (size_t)(end - begin);
        } else if (sscanf(rule + sizeof rule_line - 1, "%31[A-Za-z]", name) == 1) {
            for (uint32_t i = 1; i < RULES; i++) {
                sink->counts[i] -= strcmp(tp_rule_name(i), name) == 0 && sink->counts[i] > 0;
            }
        }
        begin = end;
        at = end - 1;
    }
    sink->text.size = kept;
    sink->is_written = false;
    return TP_OK;
}

static tp_status anomaly_flush(void *private, tp_error *error)
{
    anomaly *sink = private;
    if (sink->is_written) {
        return TP_OK;
    }
    const size_t size = sink->text.size;
    tp_buf_printf(&sink->text, "%s", size > 0 ? "\n}\n" : "{}\n");
    if (sink->text.failed) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for anomalies");
    }
    tp_status status = tp_file_replace(sink->path, sink->text.data, sink->text.size, error);
    if (status == TP_OK) {
        sink->bytes += sink->text.size;
        sink->is_written = true;
    }
    sink->text.size = size;
    return status;
}

/* Where the ancestors have the file; without the link it is still in the rank's directory. */
static void make_link(const anomaly *sink)
{
    const char *directory = sink->options.directory;
    const char *slash = strrchr(directory, '/');
    const char *name = slash != NULL ? slash + 1 : directory;
    char folder[TP_PATH_MAX];
    char path[TP_PATH_MAX];
    char target[TP_PATH_MAX];
    tp_error error;
    int base = slash != NULL ? (int)(slash - directory) : 1;
    int length = snprintf(folder, sizeof folder, "%.*s/anomaly_detected/rank%" PRIu32, base,
                          slash != NULL ? directory : ".", sink->options.rank);
    snprintf(target, sizeof target, "../../%s/" FILE_NAME, name);
    tp_status status =
        length < TP_PATH_MAX && tp_path_join(path, folder, FILE_NAME) == TP_OK
            ? tp_dir_make(folder, &error)
            : tp_fail(&error, TP_ERR_ARGUMENT, "path is too long: %.100s", directory);
    if (status == TP_OK) {
        status = tp_file_link(path, target, &error);
    }
    if (status != TP_OK) {
        tp_log(TP_LOG_WARNING, "anomalies are in %s alone: %s", sink->path, error.message);
    }
}

static bool is_cursor(size_t size)
{
    return size > 12 && size <= CURSOR_SIZE && size % 4 == 0;
}

/* Takes up what the file held when the cursor was written. */
static tp_status resume(anomaly *sink, const uint8_t *cursor, size_t cursor_size, tp_error *error)
{
    const uint64_t size = tp_get_u64(cursor);
    tp_status status = tp_file_read_at_most(sink->path, size, &sink->text, error);
    if (status != TP_OK && status != TP_ERR_NOTFOUND) {
        return status;
    }
    sink->pp_stage = (int32_t)tp_get_u32(cursor + 8);
    if (status == TP_OK && sink->text.size == size) {
        for (uint32_t i = 0; 12 + 4 * ((size_t)i + 1) <= cursor_size; i++) {
            sink->counts[i] = tp_get_u32(cursor + 12 + 4 * (size_t)i);
        }
        return TP_OK;
    }
    tp_log(TP_LOG_WARNING, "%s is shorter than it was left: it begins anew", sink->path);
    tp_buf_clear(&sink->text);
    return TP_OK;
}

static tp_status anomaly_open(void *private, const tp_sink_options *options, const uint8_t *cursor,
                              size_t cursor_size, tp_error *error)
{
    anomaly *sink = private;
    sink->options = *options;
    tp_status status = tp_path_join(sink->path, options->directory, FILE_NAME);
    if (status != TP_OK) {
        return tp_fail(error, status, "path is too long: %.100s", options->directory);
    }
    if (cursor_size == 0) {
        make_link(sink);
        return TP_OK;
    }
    if (!is_cursor(cursor_size)) {
        return tp_fail(error, TP_ERR_CORRUPT, "the cursor of %s has a wrong size", sink->path);
    }
    return resume(sink, cursor, cursor_size, error);
}

static bool anomaly_is_whole(const tp_sink_options *options, const uint8_t *cursor,
                             size_t cursor_size)
{
    char path[TP_PATH_MAX];
    return !is_cursor(cursor_size) || tp_get_u64(cursor) == 0 ||
           tp_path_join(path, options->directory, FILE_NAME) != TP_OK ||
           tp_file_has(path, tp_get_u64(cursor));
}

static void anomaly_cursor(const void *private, tp_buf *out)
{
    const anomaly *sink = private;
    tp_buf_put_u64(out, sink->text.size);
    tp_buf_put_u32(out, (uint32_t)sink->pp_stage);
    for (uint32_t i = 0; i < RULES; i++) {
        tp_buf_put_u32(out, sink->counts[i]);
    }
}

static uint64_t anomaly_bytes(const void *private)
{
    const anomaly *sink = private;
    return sink->bytes;
}

static void anomaly_close(void *private)
{
    anomaly *sink = private;
    tp_buf_free(&sink->text);
}

const tp_sink tp_sink_anomaly = {
    .name = "anomaly",
    .private_size = sizeof(anomaly),
    .open = anomaly_open,
    .is_whole = anomaly_is_whole,
    .write = anomaly_write,
    .rewind = anomaly_rewind,
    .write_alerts = anomaly_write_alerts,
    .flush = anomaly_flush,
    .cursor = anomaly_cursor,
    .bytes = anomaly_bytes,
    .close = anomaly_close,
};
