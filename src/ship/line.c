/* Line protocol over HTTP, for VictoriaMetrics and InfluxDB: one line a value, with the run, the
 * series and the attempt as tags. A point can't be replaced and comes again after a failure, so its
 * time is made of what the journal has: the wall clock at the step's end in milliseconds, at least
 * one later than the step before. The cursor is a file in the run's directory. What is not finite
 * is left out: the counts say so. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "journal/cursor.h"
#include "ship/backend.h"
#include "ship/web.h"

typedef struct step_time {
    int64_t attempt;
    int64_t step;
    int64_t ms;
} step_time;

/* A run, by its number: its place in the list. */
typedef struct line_run {
    char *tags; /* "run=…,rank=…" */
    char *cursor_path;
    int64_t last_ms;  /* of the last step */
    int64_t first_ms; /* of the last one before this delivery */
    tp_buf series;    /* offsets in names of each number, u64 */
    tp_buf names;     /* tags of series, each with a zero byte behind it */
} line_run;

typedef struct line_server {
    const tp_url *url;
    tp_web *web;
    tp_buf runs; /* line_run */
    tp_buf body;
    tp_buf times;       /* step_time of this delivery's steps, in their order */
    size_t hint;        /* the one that was asked for last */
    uint32_t cursor_id; /* tells servers apart in the cursors' names */
} line_server;

static line_run *run_of(const line_server *server, int64_t number)
{
    return (line_run *)(void *)server->runs.data + number;
}

static tp_status line_open(void *private, const tp_url *url, tp_error *error)
{
    line_server *server = private;
    server->url = url;
    server->cursor_id = tp_backend_hash(url);
    return tp_web_open(&server->web, error);
}

/* A tag's value: comma, equals sign and space get a backslash. A line break ends a point wherever
 * it stands, and a backslash at the end would take the comma with it: they become others. */
static void put_tag(tp_buf *out, const char *name, const char *value)
{
    if (value[0] == '\0') {
        return; /* an empty value is no tag */
    }
    tp_buf_printf(out, ",%s=", name);
    for (const char *c = value; *c != '\0'; c++) {
        const char shown = *c == '\n' || *c == '\r' ? ' ' : *c == '\\' ? '/' : *c;
        if (shown == ',' || shown == '=' || shown == ' ') {
            tp_buf_put(out, "\\", 1);
        }
        tp_buf_put(out, &shown, 1);
    }
}

static tp_status load_cursor(const line_run *run, tp_ship_cursor *cursor, tp_error *error)
{
    tp_cursor stored;
    tp_buf blob = TP_BUF_INIT;
    tp_status status = tp_cursor_load(run->cursor_path, &stored, &blob, error);
    *cursor = (tp_ship_cursor){0};
    if (status == TP_OK && stored.any && blob.size == 24) {
        cursor->position = stored.position;
        cursor->span.segment = tp_get_u64(blob.data);
        cursor->span.offset = tp_get_u64(blob.data + 8);
        cursor->last_ms = (int64_t)tp_get_u64(blob.data + 16);
    }
    tp_buf_free(&blob);
    return status;
}

static tp_status add_run(line_server *server, const tp_shipped_run *wanted, int64_t *number,
                         tp_error *error)
{
    char folder[TP_PATH_MAX];
    char path[TP_PATH_MAX];
    char name[40];
    tp_buf tags = TP_BUF_INIT;
    line_run run = {0};
    snprintf(name, sizeof name, "line-%08x.cursor", server->cursor_id);
    if (tp_path_join(folder, wanted->directory, "ship") != TP_OK ||
        tp_path_join(path, folder, name) != TP_OK) {
        return tp_fail(error, TP_ERR_ARGUMENT, "path is too long: %.100s", wanted->directory);
    }
    tp_status status = tp_dir_make(folder, error);
    if (status != TP_OK) {
        return status;
    }
    put_tag(&tags, "run", wanted->info->run_id);
    put_tag(&tags, "directory", wanted->name);
    tp_buf_printf(&tags, ",rank=%" PRIu32, wanted->info->rank);
    tp_buf_put(&tags, "", 1);
    run.tags = tags.failed ? NULL : tp_strdup((const char *)tags.data);
    run.cursor_path = tp_strdup(path);
    tp_buf_free(&tags);
    if (run.tags != NULL && run.cursor_path != NULL) {
        tp_buf_put(&server->runs, &run, sizeof run);
    }
    if (run.tags == NULL || run.cursor_path == NULL || server->runs.failed) {
        tp_free(run.tags);
        tp_free(run.cursor_path);
        return tp_fail(error, TP_ERR_NOMEM, "no memory for a run");
    }
    *number = (int64_t)(server->runs.size / sizeof run) - 1;
    return TP_OK;
}

static tp_status line_find_run(void *private, const tp_shipped_run *wanted, int64_t *number,
                               tp_ship_cursor *cursor, const tp_series_sink *known, tp_error *error)
{
    line_server *server = private;
    (void)known; /* the server knows none: each start names them anew */
    tp_status status = add_run(server, wanted, number, error);
    if (status == TP_OK) {
        status = load_cursor(run_of(server, *number), cursor, error);
    }
    return status;
}

static tp_status line_begin(void *private, int64_t number, const tp_ship_cursor *cursor,
                            tp_error *error)
{
    line_server *server = private;
    line_run *run = run_of(server, number);
    (void)error;
    run->last_ms = cursor->last_ms;
    run->first_ms = cursor->last_ms;
    tp_buf_clear(&server->times);
    server->hint = 0;
    return TP_OK;
}

static tp_status insert_series(line_run *run, const tp_rows *rows, tp_error *error)
{
    const tp_table *table = &tp_tables[TP_TABLE_SERIES];
    for (uint64_t i = 0; i < rows->count; i++) {
        const tp_cell *cells = tp_rows_get(rows, i);
        const size_t begin = run->names.size;
        tp_buf_put_u64(&run->series, begin);
        for (uint32_t c = 1; c < table->column_count; c++) {
            char number[24];
            if (cells[c].kind == TP_CELL_TEXT) {
                put_tag(&run->names, table->columns[c].name, tp_rows_text(rows, &cells[c]));
            } else if (cells[c].kind == TP_CELL_INTEGER) {
                snprintf(number, sizeof number, "%" PRId64, cells[c].u.integer);
                put_tag(&run->names, table->columns[c].name, number);
            }
        }
        tp_buf_put(&run->names, "", 1);
    }
    return run->series.failed || run->names.failed
               ? tp_fail(error, TP_ERR_NOMEM, "no memory for names of series")
               : TP_OK;
}

/* Columns that are tags of each line, or say whose values they are. */
static bool is_field(const char *name)
{
    return strcmp(name, "attempt") != 0 && strcmp(name, "series") != 0 &&
           strcmp(name, "position") != 0 && strcmp(name, "abs_max_index") != 0;
}

static void put_field(tp_buf *out, const char *name, const tp_cell *cell, bool *first)
{
    if (!is_field(name) || (cell->kind != TP_CELL_INTEGER && cell->kind != TP_CELL_REAL) ||
        (cell->kind == TP_CELL_REAL && !isfinite(cell->u.real))) {
        return;
    }
    tp_buf_printf(out, "%c%s=", *first ? ' ' : ',', name);
    *first = false;
    if (cell->kind == TP_CELL_REAL) {
        tp_buf_printf(out, "%.17g", cell->u.real);
    } else {
        tp_buf_printf(out, "%" PRId64 "i", cell->u.integer);
    }
}

/* Where the columns are that every kind of row has. */
static uint32_t column_of(const tp_table *table, const char *name)
{
    uint32_t i = 0;
    while (i < table->column_count && strcmp(table->columns[i].name, name) != 0) {
        i++;
    }
    return i;
}

/* Takes down when the steps ended. */
static tp_status insert_times(line_server *server, line_run *run, const tp_rows *rows,
                              tp_error *error)
{
    const uint32_t wall = column_of(&tp_tables[TP_TABLE_STEP], "wall_ns");
    for (uint64_t i = 0; i < rows->count; i++) {
        const tp_cell *cells = tp_rows_get(rows, i);
        const int64_t ms = cells[wall].u.integer / 1000000;
        run->last_ms = ms > run->last_ms ? ms : run->last_ms + 1;
        const step_time time = {cells[0].u.integer, cells[1].u.integer, run->last_ms};
        tp_buf_put(&server->times, &time, sizeof time);
    }
    return server->times.failed ? tp_fail(error, TP_ERR_NOMEM, "no memory for points") : TP_OK;
}

/* When the step ended that the row is of: in this delivery, or else it was the last one before. */
static int64_t time_of(line_server *server, const line_run *run, const tp_rows *rows,
                       const tp_cell *cells)
{
    const tp_table *table = &tp_tables[rows->table];
    const char *name = rows->table == TP_TABLE_ROLLUP ? "last_step" : "step";
    const int64_t step = cells[column_of(table, name)].u.integer;
    const step_time *times = (const void *)server->times.data;
    const size_t count = server->times.size / sizeof *times;
    for (size_t i = 0; i < count; i++) {
        const size_t at = (server->hint + i) % count;
        if (times[at].step == step && times[at].attempt == cells[0].u.integer) {
            server->hint = at;
            return times[at].ms;
        }
    }
    return run->first_ms;
}

static void put_line(line_server *server, const line_run *run, const char *measurement,
                     const tp_rows *rows, uint64_t row)
{
    tp_buf *out = &server->body;
    const tp_table *table = &tp_tables[rows->table];
    const tp_cell *cells = tp_rows_get(rows, row);
    const uint32_t series = column_of(table, "series");
    bool first = true;
    tp_buf_printf(out, "%s%s", measurement, run->tags);
    if (series < table->column_count) {
        const uint64_t begin = tp_get_u64(run->series.data + 8 * cells[series].u.integer);
        tp_buf_printf(out, "%s", (const char *)run->names.data + begin);
    }
    tp_buf_printf(out, ",attempt=%" PRId64, cells[0].u.integer);
    const uint32_t rule = column_of(table, "rule");
    if (rule < table->column_count) {
        put_tag(out, "rule", tp_rows_text(rows, &cells[rule]));
    }
    for (uint32_t c = 1; c < table->column_count; c++) {
        put_field(out, table->columns[c].name, &cells[c], &first);
    }
    tp_buf_printf(out, " %" PRId64 "000000\n", time_of(server, run, rows, cells));
}

static tp_status line_insert(void *private, int64_t number, const tp_rows *rows, tp_error *error)
{
    static const char *const measurements[TP_TABLE_COUNT] = {
        [TP_TABLE_STEP] = "tensorprobe_step",         [TP_TABLE_VALUE] = "tensorprobe",
        [TP_TABLE_ROLLUP] = "tensorprobe_rollup",     [TP_TABLE_ALERT] = "tensorprobe_alert",
        [TP_TABLE_INCIDENT] = "tensorprobe_incident",
    };
    line_server *server = private;
    line_run *run = run_of(server, number);
    if (rows->table == TP_TABLE_SERIES) {
        return insert_series(run, rows, error);
    }
    if (rows->table == TP_TABLE_STEP) {
        tp_status status = insert_times(server, run, rows, error);
        if (status != TP_OK) {
            return status;
        }
    }
    tp_buf_clear(&server->body);
    for (uint64_t i = 0; i < rows->count; i++) {
        put_line(server, run, measurements[rows->table], rows, i);
    }
    return server->body.failed ? tp_fail(error, TP_ERR_NOMEM, "no memory for points")
                               : tp_web_post(server->web, server->url, "/write",
                                             "text/plain; charset=utf-8", &server->body, error);
}

static tp_status line_commit(void *private, int64_t number, const tp_ship_cursor *cursor,
                             tp_error *error)
{
    const line_run *run = run_of(private, number);
    const tp_cursor stored = {.any = true, .position = cursor->position};
    tp_buf blob = TP_BUF_INIT;
    tp_buf_put_u64(&blob, cursor->span.segment);
    tp_buf_put_u64(&blob, cursor->span.offset);
    tp_buf_put_u64(&blob, (uint64_t)run->last_ms);
    tp_status status = tp_cursor_store(run->cursor_path, &stored, &blob, error);
    tp_buf_free(&blob);
    return status;
}

static void line_close(void *private)
{
    line_server *server = private;
    for (size_t i = 0; i < server->runs.size / sizeof(line_run); i++) {
        line_run *run = run_of(server, (int64_t)i);
        tp_free(run->tags);
        tp_free(run->cursor_path);
        tp_buf_free(&run->series);
        tp_buf_free(&run->names);
    }
    tp_buf_free(&server->runs);
    tp_buf_free(&server->body);
    tp_buf_free(&server->times);
    tp_web_close(&server->web);
}

const tp_backend tp_backend_line = {
    .kind = TP_URL_HTTP,
    .private_size = sizeof(line_server),
    .open = line_open,
    .find_run = line_find_run,
    .begin = line_begin,
    .insert = line_insert,
    .commit = line_commit,
    .close = line_close,
};
