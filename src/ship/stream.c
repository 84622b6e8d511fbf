#include "ship/stream.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "journal/cursor.h"
#include "ship/series.h"

#define ROWS_AT_ONCE 4096 /* handed to the server, */
#define TEXTS_AT_ONCE ((size_t)1 << 20)
#define ROWS_PER_DELIVERY 65536 /* and in one transaction, or a whole step */

struct tp_stream {
    char *directory;
    const tp_database_config *config;
    tp_reader *reader; /* NULL: not open */
    bool is_known;     /* the server has told number and cursor */
    int64_t number;
    tp_ship_cursor cursor; /* at the server */
    tp_ship_cursor next;   /* where this delivery will end */
    bool has_begun;        /* a delivery */
    uint64_t new_steps;    /* in this delivery */
    tp_series_table series;
    uint32_t attempt; /* of the steps in the open span, and of the keys' ids */
    uint64_t span;    /* number of the open span of roll-ups */
    bool has_span;
    uint64_t steps;
    tp_position place; /* where the reader stands */
    bool has_told;     /* the journal's writer, that all before this segment is delivered */
    uint64_t told;
    uint64_t removed_from,
        removed_to; /* steps that have been removed, to be said; to is the next */
    uint64_t removed_said;
};

/* What the steps of a delivery need. */
typedef struct delivery {
    tp_stream *stream;
    tp_link *link;
    tp_error *error;
} delivery;

tp_status tp_stream_new(tp_stream **out, const char *directory, const tp_database_config *config,
                        tp_error *error)
{
    tp_stream *stream = tp_calloc(1, sizeof *stream);
    if (stream != NULL) {
        stream->directory = tp_strdup(directory);
    }
    if (stream == NULL || stream->directory == NULL) {
        tp_free(stream);
        return tp_fail(error, TP_ERR_NOMEM, "no memory to follow %s", directory);
    }
    stream->config = config;
    *out = stream;
    return TP_OK;
}

void tp_stream_free(tp_stream **stream)
{
    if (*stream != NULL) {
        tp_stream_forget(*stream);
        tp_free((*stream)->directory);
        tp_free(*stream);
        *stream = NULL;
    }
}

const char *tp_stream_directory(const tp_stream *stream)
{
    return stream->directory;
}

uint64_t tp_stream_steps(const tp_stream *stream)
{
    return stream->steps;
}

void tp_stream_forget(tp_stream *stream)
{
    tp_reader_close(&stream->reader);
    tp_series_clear(&stream->series);
    stream->is_known = false;
    stream->has_begun = false;
    stream->has_span = false;
    stream->new_steps = 0;
}

static tp_status no_memory(const delivery *d)
{
    return tp_fail(d->error, TP_ERR_NOMEM, "no memory to deliver %s", d->stream->directory);
}

static tp_status server(delivery *d, tp_status status)
{
    d->link->failed = status != TP_OK;
    return status;
}

static tp_status take_series(void *context, const tp_rows *row)
{
    tp_stream *stream = context;
    return tp_series_take(&stream->series, row, &stream->config->selection);
}

static tp_position begin_of(const tp_stream *stream)
{
    return stream->config->rollup_steps > 0 ? stream->cursor.span : stream->cursor.position;
}

/* Tells the journal's writer which segments still need their steps. Where that can't be written
 * rows are delivered all the same, and a journal that is kept small may be faster. */
static void tell(const delivery *d)
{
    tp_stream *stream = d->stream;
    const tp_position begin = begin_of(stream);
    const tp_cursor cursor = {.any = true, .position = begin};
    const tp_buf nothing = TP_BUF_INIT;
    char folder[TP_PATH_MAX];
    char path[TP_PATH_MAX];
    char name[40];
    if (stream->has_told && stream->told == begin.segment) {
        return;
    }
    snprintf(name, sizeof name, "passed-%08x.cursor", d->link->server_hash);
    if (tp_path_join(folder, stream->directory, "ship") == TP_OK &&
        tp_path_join(path, folder, name) == TP_OK && tp_dir_make(folder, NULL) == TP_OK) {
        (void)tp_cursor_store(path, &cursor, &nothing, NULL);
    }
    stream->has_told = true;
    stream->told = begin.segment;
}

/* Goes to where the open span of roll-ups began, or else to the end of what is there. Where that
 * place is gone (a segment was removed) all is read again; what is there is left out. */
static tp_status seek(delivery *d)
{
    tp_stream *stream = d->stream;
    const tp_position begin = begin_of(stream);
    stream->place = (tp_position){0, 0};
    if (begin.segment == 0 && begin.offset == 0) {
        return TP_OK;
    }
    tp_status status = tp_reader_seek(stream->reader, begin, d->error);
    if (status != TP_ERR_ARGUMENT) {
        stream->place = begin;
        return status;
    }
    tp_reader_close(&stream->reader);
    return tp_reader_open(&stream->reader, stream->directory, d->error);
}

static tp_status open_journal(delivery *d)
{
    tp_stream *stream = d->stream;
    tp_status status = tp_reader_open(&stream->reader, stream->directory, d->error);
    if (status != TP_OK) {
        return status;
    }
    const char *slash = strrchr(stream->directory, '/');
    const tp_shipped_run run = {stream->directory, slash != NULL ? slash + 1 : stream->directory,
                                tp_reader_run(stream->reader)};
    const tp_series_sink known = {stream, take_series};
    status = server(d, d->link->backend->find_run(d->link->private, &run, &stream->number,
                                                  &stream->cursor, &known, d->error));
    if (status == TP_OK) {
        stream->is_known = true;
        stream->next = stream->cursor;
        tell(d);
        status = seek(d);
    }
    return status;
}

/* Hands over the rows of a table, and those before it, which they speak of. */
static tp_status flush(delivery *d, tp_table_id last)
{
    tp_stream *stream = d->stream;
    for (int i = 0; i <= (int)last; i++) {
        tp_rows *rows = &d->link->rows[i];
        if (rows->cells.failed || rows->texts.failed) {
            return no_memory(d);
        }
        if (rows->count > 0) {
            tp_status status = server(
                d, d->link->backend->insert(d->link->private, stream->number, rows, d->error));
            if (status != TP_OK) {
                return status;
            }
            tp_rows_clear(rows);
        }
    }
    return TP_OK;
}

static tp_status flush_if_full(delivery *d, tp_table_id table)
{
    const tp_rows *rows = &d->link->rows[table];
    const tp_rows *series = &d->link->rows[TP_TABLE_SERIES];
    return rows->count >= ROWS_AT_ONCE || rows->texts.size >= TEXTS_AT_ONCE ||
                   series->texts.size >= TEXTS_AT_ONCE
               ? flush(d, table)
               : TP_OK;
}

static tp_status begin(delivery *d)
{
    tp_stream *stream = d->stream;
    if (stream->has_begun) {
        return TP_OK;
    }
    stream->has_begun = true;
    return server(
        d, d->link->backend->begin(d->link->private, stream->number, &stream->cursor, d->error));
}

static void put_step(tp_rows *rows, const tp_batch *batch)
{
    tp_rows_add_integer(rows, batch->attempt);
    tp_rows_add_integer(rows, batch->step);
    tp_rows_add_optional(rows, batch->pp_stage, batch->pp_stage >= 0);
    tp_rows_add_integer(rows, batch->micro_steps);
    tp_rows_add_integer(rows, (batch->flags & TP_BATCH_SKIPPED) != 0);
    tp_rows_add_integer(rows, (uint64_t)batch->wall_ns);
    tp_rows_add_integer(rows, batch->end_ns - batch->begin_ns);
    tp_rows_add_integer(rows, batch->hook_ns);
    tp_rows_add_integer(rows, batch->errors);
    tp_rows_add_integer(rows, batch->count);
    tp_rows_end(rows);
}

static void put_shape(tp_rows *rows, const int64_t *dims, uint32_t ndim)
{
    char text[24 * TP_MAX_DIMS + 4] = "[";
    size_t used = 1;
    for (uint32_t i = 0; i < ndim; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%" PRId64, i > 0 ? ", " : "",
                                 dims[i]);
    }
    snprintf(text + used, sizeof text - used, "]");
    tp_rows_add_text(rows, text);
}

static void put_value(tp_rows *rows, const tp_batch *batch, const tp_record *record,
                      uint32_t series, const int64_t *dims, uint32_t ndim)
{
    const tp_stats *stats = &record->u.stats;
    const char *dtype = tp_dtype_name(record->dtype);
    tp_rows_add_integer(rows, batch->attempt);
    tp_rows_add_integer(rows, batch->step);
    tp_rows_add_integer(rows, series);
    tp_rows_add_integer(rows, record->order);
    tp_rows_add_text(rows, dtype != NULL ? dtype : "?");
    put_shape(rows, dims, ndim);
    tp_rows_add_integer(rows, stats->count);
    tp_rows_add_integer(rows, stats->nan);
    tp_rows_add_integer(rows, stats->pos_inf);
    tp_rows_add_integer(rows, stats->neg_inf);
    tp_rows_add_integer(rows, stats->zeros);
    tp_rows_add_integer(rows, stats->subnormal);
    tp_rows_add_real(rows, tp_stats_norm(stats));
    tp_rows_add_real(rows, stats->min);
    tp_rows_add_real(rows, stats->max);
    tp_rows_add_real(rows, tp_stats_mean(stats));
    tp_rows_add_real(rows, tp_stats_std(stats));
    tp_rows_add_real(rows, stats->finite_min);
    tp_rows_add_real(rows, stats->finite_max);
    tp_rows_add_real(rows, stats->abs_max);
    tp_rows_add_optional(rows, (int64_t)stats->abs_max_index, stats->abs_max_index != TP_NO_INDEX);
    tp_rows_add_real(rows, stats->sum_abs);
    tp_rows_end(rows);
}

/* One value, unless it is there already (is_old: read again for its roll-up). */
static tp_status add_record(delivery *d, const tp_batch *batch, const tp_record *record, bool sends,
                            bool is_old)
{
    tp_stream *stream = d->stream;
    const tp_database_config *config = stream->config;
    uint32_t ndim = 0;
    uint32_t number = 0;
    const tp_key *key = tp_reader_key(stream->reader, record->key);
    const int64_t *dims = tp_reader_shape(stream->reader, record->shape, &ndim);
    if (record->kind != TP_RECORD_STATS || key == NULL || dims == NULL) {
        return TP_OK; /* its definition was damaged: there is no name for it */
    }
    if (tp_series_find(&stream->series, key, record, &config->selection, config->rollup_steps > 0,
                       &d->link->rows[TP_TABLE_SERIES], &number) != TP_OK) {
        return no_memory(d);
    }
    if (number == TP_NOT_SENT) {
        return TP_OK;
    }
    if (config->rollup_steps > 0) {
        tp_series_add_record(&stream->series, number, batch->step, &record->u.stats);
    }
    if (is_old || !sends || !tp_series_is_sent(&stream->series, number)) {
        return TP_OK;
    }
    put_value(&d->link->rows[TP_TABLE_VALUE], batch, record, number, dims, ndim);
    return flush_if_full(d, TP_TABLE_VALUE);
}

/* Ends the open span of roll-ups; the next begins at this place. */
static tp_status end_span(delivery *d, tp_position begin_of_next)
{
    tp_stream *stream = d->stream;
    if (stream->has_span) {
        tp_status status = begin(d);
        if (status != TP_OK) {
            return status;
        }
        tp_series_put_rollups(&stream->series, stream->attempt, &d->link->rows[TP_TABLE_ROLLUP]);
    }
    stream->has_span = false;
    stream->next.span = begin_of_next;
    return TP_OK;
}

static tp_status begin_span(delivery *d, const tp_batch *batch)
{
    tp_stream *stream = d->stream;
    const uint64_t span =
        stream->config->rollup_steps > 0 ? batch->step / stream->config->rollup_steps : 0;
    const bool other_attempt = stream->attempt != batch->attempt;
    tp_status status = TP_OK;
    if (stream->config->rollup_steps > 0 &&
        (!stream->has_span || stream->span != span || other_attempt)) {
        status = end_span(d, stream->place);
        stream->has_span = true;
        stream->span = span;
    }
    if (other_attempt) {
        tp_series_forget_ids(&stream->series);
        stream->attempt = batch->attempt;
    }
    return status;
}

static tp_status add_batch(delivery *d, const tp_item *item)
{
    tp_stream *stream = d->stream;
    const tp_batch *batch = &item->batch;
    const uint64_t interval = stream->config->step_interval;
    const bool is_old = !tp_position_is_before(stream->cursor.position, item->position);
    if ((batch->flags & (TP_BATCH_PARTIAL | TP_BATCH_GAP)) != 0) {
        return TP_OK;
    }
    tp_status status = is_old ? TP_OK : begin(d);
    if (status == TP_OK) {
        status = begin_span(d, batch);
    }
    if (status == TP_OK && !is_old) {
        put_step(&d->link->rows[TP_TABLE_STEP], batch);
        stream->new_steps++;
    }
    const bool sends = interval > 0 && batch->step % interval == 0;
    for (uint64_t i = 0; status == TP_OK && i < batch->count; i++) {
        status = add_record(d, batch, &batch->records[i], sends, is_old);
    }
    return status;
}

static void put_alert(tp_rows *rows, const tp_batch *batch, const tp_record *record,
                      uint32_t series)
{
    const tp_alert *alert = &record->u.alert;
    const char *rule = tp_rule_name(alert->rule);
    char message[TP_ALERT_TEXT];
    tp_alert_describe(alert, message, sizeof message);
    tp_rows_add_integer(rows, batch->attempt);
    tp_rows_add_integer(rows, batch->step);
    tp_rows_add_integer(rows, series);
    tp_rows_add_integer(rows, record->order);
    tp_rows_add_text(rows, rule != NULL ? rule : "?");
    tp_rows_add_text(rows, tp_op_name(alert->op));
    tp_rows_add_real(rows, alert->value);
    tp_rows_add_real(rows, alert->baseline);
    tp_rows_add_real(rows, alert->threshold);
    tp_rows_add_integer(rows, alert->samples);
    tp_rows_add_text(rows, message);
    tp_rows_end(rows);
}

static void put_incident(tp_rows *rows, const tp_batch *batch, const tp_record *record,
                         uint32_t series, const char *message)
{
    static const char *const states[] = {[TP_INCIDENT_BEGINS] = "begins",
                                         [TP_INCIDENT_GROWS] = "grows",
                                         [TP_INCIDENT_ENDS] = "ends"};
    const tp_incident *incident = &record->u.incident;
    const char *severity = tp_severity_name(incident->severity);
    const char *cause = tp_cause_name(incident->cause);
    const char *rule = tp_rule_name(incident->rule);
    const bool known = incident->state >= TP_INCIDENT_BEGINS && incident->state <= TP_INCIDENT_ENDS;
    tp_rows_add_integer(rows, batch->attempt);
    tp_rows_add_integer(rows, batch->step);
    tp_rows_add_integer(rows, series);
    tp_rows_add_integer(rows, incident->number);
    tp_rows_add_text(rows, known ? states[incident->state] : "?");
    tp_rows_add_text(rows, severity != NULL ? severity : "?");
    tp_rows_add_text(rows, cause != NULL ? cause : "?");
    tp_rows_add_text(rows, rule != NULL ? rule : "?");
    tp_rows_add_integer(rows, incident->first_step);
    tp_rows_add_integer(rows, incident->last_step);
    tp_rows_add_integer(rows, incident->steps);
    tp_rows_add_integer(rows, incident->alerts);
    tp_rows_add_text(rows, message);
    tp_rows_end(rows);
}

/* An alert or an incident. */
static tp_status add_alert(delivery *d, const tp_batch *batch, const tp_record *record)
{
    tp_stream *stream = d->stream;
    const tp_key *key = tp_reader_key(stream->reader, record->key);
    const bool is_alert = record->kind == TP_RECORD_ALERT;
    char message[TP_INCIDENT_TEXT];
    uint32_t number = 0;
    if (key == NULL || (!is_alert && record->kind != TP_RECORD_INCIDENT)) {
        return TP_OK;
    }
    if (tp_series_find(&stream->series, key, record, &stream->config->selection, true,
                       &d->link->rows[TP_TABLE_SERIES], &number) != TP_OK) {
        return no_memory(d);
    }
    if (is_alert) {
        put_alert(&d->link->rows[TP_TABLE_ALERT], batch, record, number);
        return flush_if_full(d, TP_TABLE_ALERT);
    }
    const tp_key *witness = tp_reader_key(stream->reader, record->u.incident.witness);
    tp_incident_describe(record, key, witness, message, sizeof message);
    put_incident(&d->link->rows[TP_TABLE_INCIDENT], batch, record, number, message);
    return flush_if_full(d, TP_TABLE_INCIDENT);
}

static tp_status add_alerts(delivery *d, const tp_item *item)
{
    if (!tp_position_is_before(d->stream->cursor.position, item->position)) {
        return TP_OK;
    }
    tp_status status = begin(d);
    for (uint64_t i = 0; status == TP_OK && i < item->batch.count; i++) {
        status = add_alert(d, &item->batch, &item->batch.records[i]);
    }
    return status;
}

static tp_status commit(delivery *d)
{
    tp_stream *stream = d->stream;
    if (!stream->has_begun) {
        return TP_OK;
    }
    tp_status status = flush(d, TP_TABLE_COUNT - 1);
    if (status == TP_OK) {
        status = server(
            d, d->link->backend->commit(d->link->private, stream->number, &stream->next, d->error));
    }
    if (status == TP_OK) {
        stream->cursor = stream->next;
        stream->has_begun = false;
        stream->steps += stream->new_steps;
        stream->new_steps = 0;
        tell(d);
    }
    return status;
}

/* Steps that are not there any more, where this delivery would have come to them. */
static void note_removed(tp_stream *stream, const tp_item *item)
{
    if (item->position.segment < stream->cursor.position.segment) {
        return;
    }
    if (stream->removed_to == 0) {
        stream->removed_from = item->batch.step;
    }
    stream->removed_to = item->removed_last + 1;
}

static void say_removed(tp_stream *stream)
{
    if (stream->removed_to > stream->removed_said) {
        tp_log(TP_LOG_WARNING,
               "%s: steps %" PRIu64 " to %" PRIu64 " have been removed to keep the journal small: "
               "what of them had not been delivered never will be",
               stream->directory, stream->removed_from, stream->removed_to - 1);
        stream->removed_said = stream->removed_to;
    }
    stream->removed_to = 0;
}

/* Reads until enough rows are there. TP_END: the journal has no more. */
static tp_status read_items(delivery *d)
{
    tp_stream *stream = d->stream;
    for (uint64_t n = 0; n < ROWS_PER_DELIVERY;) {
        tp_item item;
        tp_status status = tp_reader_next(stream->reader, &item, d->error);
        if (status == TP_ERR_CORRUPT) {
            char text[1024];
            tp_log(TP_LOG_WARNING, "%s", tp_error_format(d->error, text, sizeof text));
            continue;
        }
        if (status != TP_OK || item.type == TP_ITEM_BATCH) {
            say_removed(stream);
        }
        if (status != TP_OK) {
            return status;
        }
        if (item.type == TP_ITEM_REMOVED) {
            note_removed(stream, &item);
        } else if (item.type == TP_ITEM_BATCH) {
            status = add_batch(d, &item);
            n += item.batch.count + 1;
        } else if (item.type == TP_ITEM_ALERTS) {
            status = add_alerts(d, &item);
            n += item.batch.count;
        }
        if (status != TP_OK) {
            return status;
        }
        stream->place = item.position;
        if (tp_position_is_before(stream->next.position, item.position)) {
            stream->next.position = item.position;
        }
    }
    return TP_OK;
}

tp_status tp_stream_deliver(tp_stream *stream, tp_link *link, bool last, tp_error *error)
{
    delivery d = {stream, link, error};
    link->failed = false;
    tp_status status = stream->is_known ? TP_OK : open_journal(&d);
    if (status == TP_OK) {
        status = read_items(&d);
    }
    const bool at_end = status == TP_END;
    if (at_end) {
        status = last ? end_span(&d, stream->next.position) : TP_OK;
    }
    if (status == TP_OK) {
        status = commit(&d);
    }
    if (status != TP_OK) {
        tp_stream_forget(stream);
        for (int i = 0; i < TP_TABLE_COUNT; i++) {
            tp_rows_clear(&link->rows[i]);
        }
        return status;
    }
    return at_end ? TP_END : TP_OK;
}
