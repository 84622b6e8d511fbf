/* values.sqlite: every statistic of every record in a database of its own for each rank. One
 * transaction a step, with the number of the step in it, so that a reader never sees half a step
 * and what the cursor doesn't speak of can be taken out again. NaN is NULL; the counts stand
 * beside. docs/sqlite.md shows the schema. */
#include <inttypes.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "sinks/series.h"

#define FILE_NAME "values.sqlite"
#define CURSOR_SIZE 16
#define BUSY_MS 1000 /* how long somebody who reads may hold up a step; then it is tried again */

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS series ("
    "  id INTEGER PRIMARY KEY, name TEXT NOT NULL, row TEXT NOT NULL, quantity TEXT NOT NULL,"
    "  role TEXT NOT NULL, vpp_stage INTEGER NOT NULL, slot INTEGER, call INTEGER NOT NULL,"
    "  micro_step INTEGER,"
    "  UNIQUE (name, quantity, role, vpp_stage, slot, call, micro_step));"
    "CREATE TABLE IF NOT EXISTS step ("
    "  id INTEGER PRIMARY KEY, step INTEGER NOT NULL, attempt INTEGER NOT NULL,"
    "  rank INTEGER NOT NULL, pp_stage INTEGER, micro_steps INTEGER NOT NULL,"
    "  skipped INTEGER NOT NULL, wall_ns INTEGER NOT NULL, duration_ns INTEGER NOT NULL,"
    "  hook_ns INTEGER NOT NULL, errors INTEGER NOT NULL, records INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS cost ("
    "  step_id INTEGER PRIMARY KEY, wait_ns INTEGER NOT NULL, writer_ns INTEGER NOT NULL,"
    "  bytes INTEGER NOT NULL, left_out TEXT NOT NULL, zoom INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS value ("
    "  step_id INTEGER NOT NULL, series_id INTEGER NOT NULL, position INTEGER NOT NULL,"
    "  dtype TEXT NOT NULL, shape TEXT NOT NULL, count INTEGER NOT NULL, nan INTEGER NOT NULL,"
    "  pos_inf INTEGER NOT NULL, neg_inf INTEGER NOT NULL, zeros INTEGER NOT NULL,"
    "  subnormal INTEGER NOT NULL, norm REAL, min REAL, max REAL, mean REAL, std REAL,"
    "  finite_min REAL, finite_max REAL, abs_max REAL, abs_max_index INTEGER, sum_abs REAL);"
    "CREATE TABLE IF NOT EXISTS alert ("
    "  step_id INTEGER NOT NULL, series_id INTEGER NOT NULL, position INTEGER NOT NULL,"
    "  rule TEXT NOT NULL, op TEXT, value REAL, baseline REAL, threshold REAL,"
    "  samples INTEGER NOT NULL, message TEXT NOT NULL);";

enum { ADD_SERIES, FIND_SERIES, ADD_STEP, ADD_COST, ADD_VALUE, ADD_ALERT, STATEMENTS };

static const char *const statements[STATEMENTS] = {
    [ADD_SERIES] = "INSERT OR IGNORE INTO series (name, row, quantity, role, vpp_stage, slot, call,"
                   " micro_step) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    [FIND_SERIES] = "SELECT id FROM series WHERE name IS ?1 AND quantity IS ?3 AND role IS ?4 AND"
                    " vpp_stage IS ?5 AND slot IS ?6 AND call IS ?7 AND micro_step IS ?8",
    [ADD_STEP] = "INSERT INTO step VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    [ADD_COST] = "INSERT INTO cost VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    [ADD_VALUE] = "INSERT INTO value VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, "
                  "?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)",
    [ADD_ALERT] = "INSERT INTO alert VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
};

typedef struct database {
    tp_sink_options options;
    char path[TP_PATH_MAX];
    sqlite3 *db;
    sqlite3_stmt *made[STATEMENTS];
    tp_map series;     /* tp_series → id */
    uint64_t step_id;  /* of the step that was written last; counts from 1 */
    uint64_t alert_id; /* likewise */
} database;

/* What can pass (somebody reads, the disk is full) may be tried again. */
static tp_status fail(const database *sink, const char *verb, tp_error *error)
{
    int code = sink->db != NULL ? sqlite3_errcode(sink->db) : SQLITE_NOMEM;
    tp_status status = code == SQLITE_FULL    ? TP_ERR_NOSPACE
                       : code == SQLITE_NOMEM ? TP_ERR_NOMEM
                       : code == SQLITE_CORRUPT || code == SQLITE_NOTADB || code == SQLITE_ERROR
                           ? TP_ERR_CORRUPT
                           : TP_ERR_IO;
    if (code == SQLITE_IOERR && sqlite3_system_errno(sink->db) != 0) {
        status = tp_status_from_errno(sqlite3_system_errno(sink->db));
    }
    return tp_fail(error, status, "can't %s %s: %s", verb, sink->path,
                   sink->db != NULL ? sqlite3_errmsg(sink->db) : "no memory");
}

static tp_status run(const database *sink, const char *sql, const char *verb, tp_error *error)
{
    return sqlite3_exec(sink->db, sql, NULL, NULL, NULL) == SQLITE_OK ? TP_OK
                                                                      : fail(sink, verb, error);
}

/* Runs a statement that gives no rows. */
static tp_status step_statement(database *sink, int which, tp_error *error)
{
    int code = sqlite3_step(sink->made[which]);
    sqlite3_reset(sink->made[which]);
    return code == SQLITE_DONE ? TP_OK : fail(sink, "write to", error);
}

static void bind_number(sqlite3_stmt *statement, int place, uint64_t number)
{
    sqlite3_bind_int64(statement, place, (sqlite3_int64)number);
}

static void bind_text(sqlite3_stmt *statement, int place, const char *text)
{
    sqlite3_bind_text(statement, place, text, -1, SQLITE_STATIC);
}

static void bind_series(const database *sink, sqlite3_stmt *statement, const tp_key *key,
                        const tp_series *series, const char *row)
{
    const char *role = tp_role_name(key->role);
    const char *quantity = tp_quantity_name(key->quantity);
    bind_text(statement, 1, key->name);
    if (row != NULL) {
        bind_text(statement, 2, row);
    }
    bind_text(statement, 3, quantity != NULL ? quantity : "?");
    bind_text(statement, 4, role != NULL ? role : "?");
    sqlite3_bind_int64(statement, 5, key->vpp_stage);
    if (key->argument != NULL) {
        char slot[TP_ROW_NAME_MAX];
        if (key->slot >= 0) {
            snprintf(slot, sizeof slot, "%s.%d", key->argument, key->slot);
        } else {
            snprintf(slot, sizeof slot, "%s", key->argument);
        }
        sqlite3_bind_text(statement, 6, slot, -1, SQLITE_TRANSIENT);
    } else if (key->slot >= 0) {
        sqlite3_bind_int64(statement, 6, key->slot);
    } else {
        sqlite3_bind_null(statement, 6);
    }
    bind_number(statement, 7, series->call);
    if (tp_has_micro_step(&sink->options, key->quantity)) {
        bind_number(statement, 8, series->micro_step);
    } else {
        sqlite3_bind_null(statement, 8);
    }
}

/* A unique constraint takes each NULL for another value, so what is there is looked for first. */
static tp_status find_series(database *sink, const tp_record *record, const tp_key *key,
                             uint32_t *id, tp_error *error)
{
    const tp_series series = {record->key, record->call,
                              tp_has_micro_step(&sink->options, key->quantity) ? record->micro_step
                                                                               : 0};
    if (tp_map_get(&sink->series, &series, sizeof series, id) == TP_OK) {
        return TP_OK;
    }
    sqlite3_stmt *find = sink->made[FIND_SERIES];
    bind_series(sink, find, key, &series, NULL);
    int code = sqlite3_step(find);
    bool found = code == SQLITE_ROW;
    *id = found ? (uint32_t)sqlite3_column_int64(find, 0) : 0;
    sqlite3_reset(find);
    if (!found && code != SQLITE_DONE) {
        return fail(sink, "read", error);
    }
    if (!found) {
        char row[TP_ROW_NAME_MAX];
        tp_row_name(key, record->call, row, sizeof row);
        bind_series(sink, sink->made[ADD_SERIES], key, &series, row);
        tp_status status = step_statement(sink, ADD_SERIES, error);
        if (status != TP_OK) {
            return status;
        }
        *id = (uint32_t)sqlite3_last_insert_rowid(sink->db);
    }
    return tp_map_set(&sink->series, &series, sizeof series, *id) == TP_OK
               ? TP_OK
               : tp_fail(error, TP_ERR_NOMEM, "no memory for series");
}

static void write_shape(const int64_t *dims, uint32_t ndim, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (uint32_t i = 0; i < ndim && used < size; i++) {
        used +=
            (size_t)snprintf(text + used, size - used, "%s%" PRId64, i > 0 ? ", " : "", dims[i]);
    }
    if (used < size) {
        snprintf(text + used, size - used, "]");
    }
}

static tp_status add_value(database *sink, const tp_record *record, const tp_names *names,
                           tp_error *error)
{
    uint32_t ndim = 0;
    uint32_t id = 0;
    char shape[24 * TP_MAX_DIMS + 4];
    const tp_key *key = names->key(names->source, record->key);
    const int64_t *dims = names->shape(names->source, record->shape, &ndim);
    if (key == NULL || dims == NULL) {
        return TP_OK; /* its definition was damaged: there is no name for it */
    }
    tp_status status = find_series(sink, record, key, &id, error);
    if (status != TP_OK) {
        return status;
    }
    sqlite3_stmt *add = sink->made[ADD_VALUE];
    const tp_stats *stats = &record->u.stats;
    write_shape(dims, ndim, shape, sizeof shape);
    bind_number(add, 1, sink->step_id);
    bind_number(add, 2, id);
    bind_number(add, 3, record->order);
    bind_text(add, 4, tp_dtype_name(record->dtype));
    bind_text(add, 5, shape);
    bind_number(add, 6, stats->count);
    bind_number(add, 7, stats->nan);
    bind_number(add, 8, stats->pos_inf);
    bind_number(add, 9, stats->neg_inf);
    bind_number(add, 10, stats->zeros);
    bind_number(add, 11, stats->subnormal);
    sqlite3_bind_double(add, 12, tp_stats_norm(stats)); /* NaN becomes NULL */
    sqlite3_bind_double(add, 13, stats->min);
    sqlite3_bind_double(add, 14, stats->max);
    sqlite3_bind_double(add, 15, tp_stats_mean(stats));
    sqlite3_bind_double(add, 16, tp_stats_std(stats));
    sqlite3_bind_double(add, 17, stats->finite_min);
    sqlite3_bind_double(add, 18, stats->finite_max);
    sqlite3_bind_double(add, 19, stats->abs_max);
    if (stats->abs_max_index != TP_NO_INDEX) {
        bind_number(add, 20, stats->abs_max_index);
    } else {
        sqlite3_bind_null(add, 20);
    }
    sqlite3_bind_double(add, 21, stats->sum_abs);
    return step_statement(sink, ADD_VALUE, error);
}

static tp_status add_cost(database *sink, const tp_batch *batch, tp_error *error)
{
    char left_out[TP_QUANTITIES_TEXT];
    sqlite3_stmt *add = sink->made[ADD_COST];
    tp_quantities_describe(batch->left_out, left_out, sizeof left_out);
    bind_number(add, 1, sink->step_id);
    bind_number(add, 2, batch->wait_ns);
    bind_number(add, 3, batch->writer_ns);
    bind_number(add, 4, batch->bytes);
    bind_text(add, 5, left_out);
    bind_number(add, 6, batch->zoom);
    return step_statement(sink, ADD_COST, error);
}

static tp_status add_step(database *sink, const tp_batch *batch, tp_error *error)
{
    sqlite3_stmt *add = sink->made[ADD_STEP];
    bind_number(add, 1, sink->step_id);
    bind_number(add, 2, batch->step);
    bind_number(add, 3, batch->attempt);
    bind_number(add, 4, batch->rank);
    if (batch->pp_stage >= 0) {
        sqlite3_bind_int64(add, 5, batch->pp_stage);
    } else {
        sqlite3_bind_null(add, 5);
    }
    bind_number(add, 6, batch->micro_steps);
    sqlite3_bind_int64(add, 7, (batch->flags & TP_BATCH_SKIPPED) != 0);
    sqlite3_bind_int64(add, 8, batch->wall_ns);
    bind_number(add, 9, batch->end_ns - batch->begin_ns);
    bind_number(add, 10, batch->hook_ns);
    bind_number(add, 11, batch->errors);
    bind_number(add, 12, batch->count);
    tp_status status = step_statement(sink, ADD_STEP, error);
    return status == TP_OK ? add_cost(sink, batch, error) : status;
}

/* Ends the transaction: what went wrong leaves nothing behind. */
static tp_status end_transaction(database *sink, tp_status status, tp_error *error)
{
    if (status == TP_OK) {
        status = run(sink, "COMMIT", "write to", error);
    }
    if (status != TP_OK) {
        sqlite3_exec(sink->db, "ROLLBACK", NULL, NULL, NULL);
    }
    return status;
}

static tp_status database_write(void *private, const tp_batch *batch, const tp_names *names,
                                tp_error *error)
{
    database *sink = private;
    tp_status status = run(sink, "BEGIN IMMEDIATE", "write to", error);
    if (status != TP_OK) {
        return status;
    }
    sink->step_id++;
    status = add_step(sink, batch, error);
    for (uint64_t i = 0; status == TP_OK && i < batch->count; i++) {
        if (batch->records[i].kind == TP_RECORD_STATS) {
            status = add_value(sink, &batch->records[i], names, error);
        }
    }
    return end_transaction(sink, status, error);
}

static tp_status add_alert(database *sink, const tp_record *record, const tp_names *names,
                           tp_error *error)
{
    const tp_alert *alert = &record->u.alert;
    const tp_key *key = names->key(names->source, record->key);
    const char *rule = tp_rule_name(alert->rule);
    char message[TP_ALERT_TEXT];
    uint32_t id = 0;
    if (key == NULL) {
        return TP_OK;
    }
    tp_status status = find_series(sink, record, key, &id, error);
    if (status != TP_OK) {
        return status;
    }
    sqlite3_stmt *add = sink->made[ADD_ALERT];
    tp_alert_describe(alert, message, sizeof message);
    bind_number(add, 1, sink->step_id);
    bind_number(add, 2, id);
    bind_number(add, 3, record->order);
    bind_text(add, 4, rule != NULL ? rule : "?");
    bind_text(add, 5, tp_op_name(alert->op));
    sqlite3_bind_double(add, 6, alert->value);
    sqlite3_bind_double(add, 7, alert->baseline);
    sqlite3_bind_double(add, 8, alert->threshold);
    bind_number(add, 9, alert->samples);
    bind_text(add, 10, message);
    status = step_statement(sink, ADD_ALERT, error);
    sink->alert_id = (uint64_t)sqlite3_last_insert_rowid(sink->db);
    return status;
}

static tp_status database_write_alerts(void *private, uint64_t step, const tp_record *alerts,
                                       uint64_t count, const tp_names *names, tp_error *error)
{
    database *sink = private;
    (void)step;
    tp_status status = run(sink, "BEGIN IMMEDIATE", "write to", error);
    if (status != TP_OK) {
        return status;
    }
    for (uint64_t i = 0; status == TP_OK && i < count; i++) {
        if (alerts[i].kind == TP_RECORD_ALERT) {
            status = add_alert(sink, &alerts[i], names, error);
        }
    }
    return end_transaction(sink, status, error);
}

/* Takes out what the cursor doesn't speak of: it comes again. */
static tp_status cut_back(database *sink, const uint8_t *cursor, tp_error *error)
{
    char sql[320];
    sink->step_id = cursor != NULL ? tp_get_u64(cursor) : 0;
    sink->alert_id = cursor != NULL ? tp_get_u64(cursor + 8) : 0;
    snprintf(sql, sizeof sql,
             "BEGIN IMMEDIATE; DELETE FROM value WHERE step_id > %" PRIu64
             "; DELETE FROM alert WHERE rowid > %" PRIu64 "; DELETE FROM step WHERE id > %" PRIu64
             "; DELETE FROM cost WHERE step_id > %" PRIu64 "; COMMIT",
             sink->step_id, sink->alert_id, sink->step_id, sink->step_id);
    return run(sink, sql, "cut back", error);
}

/* The largest number in a column; *number stays where there is none. */
static tp_status find_last(const database *sink, const char *sql, uint64_t *number, tp_error *error)
{
    sqlite3_stmt *ask = NULL;
    if (sqlite3_prepare_v2(sink->db, sql, -1, &ask, NULL) != SQLITE_OK ||
        sqlite3_step(ask) != SQLITE_ROW) {
        sqlite3_finalize(ask);
        return fail(sink, "read", error);
    }
    *number = (uint64_t)sqlite3_column_int64(ask, 0);
    sqlite3_finalize(ask);
    return TP_OK;
}

static tp_status database_rewind(void *private, uint64_t step, tp_error *error)
{
    database *sink = private;
    char sql[512];
    snprintf(sql, sizeof sql,
             "BEGIN IMMEDIATE;"
             "DELETE FROM value WHERE step_id IN (SELECT id FROM step WHERE step >= %" PRIu64 ");"
             "DELETE FROM alert WHERE step_id IN (SELECT id FROM step WHERE step >= %" PRIu64 ");"
             "DELETE FROM cost WHERE step_id IN (SELECT id FROM step WHERE step >= %" PRIu64 ");"
             "DELETE FROM step WHERE step >= %" PRIu64 "; COMMIT",
             step, step, step, step);
    tp_status status = run(sink, sql, "cut back", error);
    if (status != TP_OK) {
        sqlite3_exec(sink->db, "ROLLBACK", NULL, NULL, NULL);
        return status;
    }
    status = find_last(sink, "SELECT ifnull(max(id), 0) FROM step", &sink->step_id, error);
    return status != TP_OK
               ? status
               : find_last(sink, "SELECT ifnull(max(rowid), 0) FROM alert", &sink->alert_id, error);
}

static tp_status open_database(database *sink, tp_error *error)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
    int fd = -1;
    uint64_t size;
    /* Made here: with the mode of the other files, and no link followed. */
    tp_status made = tp_file_append(sink->path, &fd, &size, error);
    if (made != TP_OK) {
        return made;
    }
    tp_file_close(fd);
    if (sqlite3_open_v2(sink->path, &sink->db, flags, NULL) != SQLITE_OK) {
        return fail(sink, "open", error);
    }
    sqlite3_busy_timeout(sink->db, BUSY_MS);
    /* The journal is what survives; a write-ahead log lets others read while a step is written.
     * Where there can't be one (a network file system) the usual way goes on. */
    sqlite3_exec(sink->db, "PRAGMA journal_mode = WAL", NULL, NULL, NULL);
    tp_status status = run(sink, "PRAGMA synchronous = OFF", "open", error);
    if (status == TP_OK) {
        status = run(sink, schema, "make tables in", error);
    }
    for (int i = 0; status == TP_OK && i < STATEMENTS; i++) {
        if (sqlite3_prepare_v3(sink->db, statements[i], -1, SQLITE_PREPARE_PERSISTENT,
                               &sink->made[i], NULL) != SQLITE_OK) {
            status = fail(sink, "use the tables of", error);
        }
    }
    return status;
}

static tp_status database_open(void *private, const tp_sink_options *options, const uint8_t *cursor,
                               size_t cursor_size, tp_error *error)
{
    database *sink = private;
    sink->options = *options;
    tp_status status = tp_path_join(sink->path, options->directory, FILE_NAME);
    if (status != TP_OK) {
        return tp_fail(error, status, "path is too long: %.100s", options->directory);
    }
    if (cursor_size != 0 && cursor_size != CURSOR_SIZE) {
        return tp_fail(error, TP_ERR_CORRUPT, "the cursor of %s has a wrong size", sink->path);
    }
    status = open_database(sink, error);
    return status == TP_OK ? cut_back(sink, cursor_size > 0 ? cursor : NULL, error) : status;
}

/* A database that can't be asked counts as whole: open says why. */
static bool database_is_whole(const tp_sink_options *options, const uint8_t *cursor,
                              size_t cursor_size)
{
    char path[TP_PATH_MAX];
    sqlite3 *db = NULL;
    sqlite3_stmt *last = NULL;
    bool whole = true;
    if (cursor_size != CURSOR_SIZE || tp_get_u64(cursor) == 0 ||
        tp_path_join(path, options->directory, FILE_NAME) != TP_OK) {
        return true;
    }
    if (!tp_file_has(path, 1)) {
        return false;
    }
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) ==
            SQLITE_OK &&
        sqlite3_prepare_v2(db, "SELECT max(id) FROM step", -1, &last, NULL) == SQLITE_OK &&
        sqlite3_step(last) == SQLITE_ROW) {
        whole = (uint64_t)sqlite3_column_int64(last, 0) >= tp_get_u64(cursor);
    }
    sqlite3_finalize(last);
    sqlite3_close(db);
    return whole;
}

static void database_cursor(const void *private, tp_buf *out)
{
    const database *sink = private;
    tp_buf_put_u64(out, sink->step_id);
    tp_buf_put_u64(out, sink->alert_id);
}

static uint64_t database_bytes(const void *private)
{
    const database *sink = private;
    struct stat info;
    return stat(sink->path, &info) == 0 ? (uint64_t)info.st_size : 0;
}

static void database_close(void *private)
{
    database *sink = private;
    for (int i = 0; i < STATEMENTS; i++) {
        sqlite3_finalize(sink->made[i]);
    }
    sqlite3_close(sink->db);
    tp_map_free(&sink->series);
}

const tp_sink tp_sink_sqlite = {
    .name = "sqlite",
    .private_size = sizeof(database),
    .open = database_open,
    .is_whole = database_is_whole,
    .write = database_write,
    .rewind = database_rewind,
    .write_alerts = database_write_alerts,
    .cursor = database_cursor,
    .bytes = database_bytes,
    .close = database_close,
};
