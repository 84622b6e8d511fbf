/* CSV files as msprobe 8.1.0 names and lays them out: <kind>_<first>-<last>.csv, one row a record.
 * A file never changes its columns: when others are asked for in the middle of a window, they go
 * into <kind>_<first>-<last>_part_<n>.csv. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "sinks/decimal.h"
#include "sinks/field.h"
#include "sinks/merged.h"
#include "sinks/rows.h"
#include "sinks/series.h"

#define KINDS (TP_COMM + 1) /* indexed by quantity; 0 is not used */
#define CURSOR_START                                                                               \
    (4 + 4 + 8 + 8 + 8 + 8 + 8) /* then the size of each kind's file: of those there were */
#define CURSOR_SIZE (CURSOR_START + 8 * (size_t)(KINDS - 1))
#define NO_WINDOW UINT64_MAX

typedef struct csv_file {
    int fd;        /* -1: not open in the current window */
    uint64_t size; /* bytes that count */
    tp_buf rows;   /* of the step being written */
} csv_file;

typedef struct csv {
    tp_sink_options options;
    uint64_t window;        /* its first step; NO_WINDOW: none yet */
    uint64_t frontier;      /* the latest window ever written */
    bool keep;              /* what lies in this window's files stays */
    uint32_t columns;       /* checksum of the columns, so that a file never changes them */
    uint64_t part;          /* how often they have changed */
    uint64_t last_in_parts; /* the latest window that had files with other columns by then */
    uint64_t bytes;
    csv_file files[KINDS];
    tp_blocks prefixes; /* "<vpp>,<name>," of (key, call) */
    tp_merged merged;   /* collectives: one row for all calls of a step */
    tp_buf scratch;
} csv;

static void put_text(tp_buf *buf, const char *text)
{
    tp_buf_put(buf, text, strlen(text));
}

static void put_u64(tp_buf *buf, uint64_t value)
{
    char text[TP_DECIMAL_MAX];
    tp_buf_put(buf, text, tp_decimal_write_integer(value, text));
}

static void put_header(const csv *sink, uint32_t quantity, tp_buf *out)
{
    put_text(out, quantity == TP_COMM                           ? "op,group,slot,step"
                  : tp_has_micro_step(&sink->options, quantity) ? "vpp_stage,name,step,micro_step"
                                                                : "vpp_stage,name,step");
    const tp_columns columns = tp_columns_of(quantity, &sink->options);
    for (uint32_t i = 0; i < columns.count; i++) {
        put_text(out, ",");
        put_text(out, quantity == TP_SCALAR ? "value" : tp_op_name(columns.ops[i]));
    }
    put_text(out, "\n");
}

static void put_shape(tp_buf *out, const int64_t *dims, uint32_t ndim)
{
    const char *quote = ndim > 1 ? "\"" : "";
    tp_buf_printf(out, "%s[", quote);
    for (uint32_t i = 0; i < ndim; i++) {
        tp_buf_printf(out, "%s%" PRId64, i > 0 ? ", " : "", dims[i]);
    }
    tp_buf_printf(out, "]%s", quote);
}

static void put_number(tp_buf *out, double value, uint32_t digits)
{
    char text[TP_DECIMAL_MAX];
    size_t length =
        digits > 0 ? tp_decimal_write_rounded(value, digits, text) : tp_decimal_write(value, text);
    tp_buf_put(out, text, length);
}

/* "<vpp>,<name>,", of collectives "<op>,<group>,<slot>," */
static const uint8_t *find_prefix(csv *sink, const tp_record *record, const tp_key *key,
                                  size_t *size)
{
    const tp_series series = {record->key, record->call, 0};
    const uint8_t *prefix = tp_blocks_find(&sink->prefixes, &series, size);
    if (prefix != NULL) {
        return prefix;
    }
    char name[TP_ROW_NAME_MAX];
    tp_row_name(key, record->call, name, sizeof name);
    tp_buf_clear(&sink->scratch);
    if (key->quantity == TP_COMM) {
        tp_field_put(&sink->scratch, key->name);
        put_text(&sink->scratch, ",");
        tp_field_put(&sink->scratch, key->global_name);
        tp_buf_printf(&sink->scratch, ",%s_%" PRId32 ",", tp_role_name(key->role), key->slot);
    } else {
        tp_buf_printf(&sink->scratch, "%" PRId32 ",", key->vpp_stage);
        tp_field_put(&sink->scratch, name);
        put_text(&sink->scratch, ",");
    }
    if (tp_blocks_add(&sink->prefixes, &series, &sink->scratch) != TP_OK) {
        return NULL;
    }
    return tp_blocks_find(&sink->prefixes, &series, size);
}

static tp_status put_row(csv *sink, const tp_record *record, uint64_t step, const tp_names *names,
                         tp_error *error)
{
    uint32_t ndim = 0;
    const tp_key *key = names->key(names->source, record->key);
    const int64_t *dims = names->shape(names->source, record->shape, &ndim);
    if (key == NULL || dims == NULL) {
        return TP_OK; /* its definition was damaged: there is no name for it */
    }
    if (tp_quantity_name(key->quantity) == NULL || tp_role_name(key->role) == NULL) {
        return TP_OK; /* of a newer version: there is no file for it */
    }
    size_t size = 0;
    const uint8_t *prefix = find_prefix(sink, record, key, &size);
    if (prefix == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for rows");
    }
    tp_buf *rows = &sink->files[key->quantity].rows;
    tp_buf_put(rows, prefix, size);
    put_u64(rows, step);
    if (tp_has_micro_step(&sink->options, key->quantity)) {
        put_text(rows, ",");
        put_u64(rows, record->micro_step);
    }
    const tp_columns columns = tp_columns_of(key->quantity, &sink->options);
    for (uint32_t i = 0; i < columns.count; i++) {
        uint32_t op = columns.ops[i];
        put_text(rows, ",");
        if (op == TP_OP_SHAPE) {
            put_shape(rows, dims, ndim);
        } else if (op == TP_OP_DTYPE) {
            put_text(rows, tp_dtype_name(record->dtype));
        } else {
            put_number(rows, tp_column_value(record, op, ndim), sink->options.ndigits);
        }
    }
    put_text(rows, "\n");
    return TP_OK;
}

static void close_files(csv *sink)
{
    for (uint32_t kind = 1; kind < KINDS; kind++) {
        tp_file_close(sink->files[kind].fd);
        sink->files[kind].fd = -1;
        sink->files[kind].size = 0;
    }
}

/* The ancestors put the direction into a file with what else is no tensor of the model. */
static const char *file_name(uint32_t quantity)
{
    return quantity == TP_MG_DIRECTION ? "other" : tp_quantity_name(quantity);
}

static tp_status file_path(const csv *sink, uint32_t kind, char path[TP_PATH_MAX], tp_error *error)
{
    uint64_t last = sink->window + (sink->options.steps_per_file - 1);
    char part[32] = "";
    if (sink->part > 0 && sink->window <= sink->last_in_parts) {
        snprintf(part, sizeof part, "_part_%" PRIu64, sink->part);
    }
    int length = snprintf(path, TP_PATH_MAX, "%s/%s_%" PRIu64 "-%" PRIu64 "%s.csv",
                          sink->options.directory, file_name(kind), sink->window, last, part);
    if (length < 0 || length >= TP_PATH_MAX) {
        return tp_fail(error, TP_ERR_ARGUMENT, "path is too long: %s", sink->options.directory);
    }
    return TP_OK;
}

/* Appends the step's rows; a file that is new in this window gets its header first. */
static tp_status write_file(csv *sink, uint32_t kind, tp_error *error)
{
    csv_file *file = &sink->files[kind];
    char path[TP_PATH_MAX];
    tp_status status = file_path(sink, kind, path, error);
    if (status == TP_OK && file->fd < 0) {
        status = tp_file_append(path, &file->fd, &file->size, error);
        if (status == TP_OK && !sink->keep && file->size > 0) {
            file->size = 0;
            status = tp_file_truncate(file->fd, path, 0, error);
        }
    }
    const tp_buf *bytes = &file->rows;
    if (status == TP_OK && file->size == 0) {
        tp_buf_clear(&sink->scratch);
        put_header(sink, kind, &sink->scratch);
        tp_buf_put_buf(&sink->scratch, &file->rows);
        bytes = &sink->scratch;
    }
    if (status == TP_OK && bytes->failed) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory for rows");
    }
    if (status == TP_OK) {
        status = tp_file_write(file->fd, path, bytes->data, bytes->size, error);
    }
    if (status == TP_OK) {
        file->size += bytes->size;
        sink->bytes += bytes->size;
    }
    return status;
}

static tp_status csv_write(void *private, const tp_batch *batch, const tp_names *names,
                           tp_error *error)
{
    csv *sink = private;
    uint64_t window = batch->step - batch->step % sink->options.steps_per_file;
    if (window != sink->window) {
        close_files(sink);
        sink->window = window;
        /* Steps that are repeated from a checkpoint may fall into an earlier window, whose files
         * count; files of later ones are left over from what a crash undid. */
        sink->keep = sink->frontier != NO_WINDOW && window <= sink->frontier;
        sink->frontier = sink->keep ? sink->frontier : window;
    }
    tp_merged_clear(&sink->merged);
    for (uint32_t kind = 1; kind < KINDS; kind++) {
        tp_buf_clear(&sink->files[kind].rows);
    }
    for (uint64_t i = 0; i < batch->count; i++) {
        const tp_record *record = &batch->records[i];
        if (record->kind == TP_RECORD_STATS) {
            const tp_key *key = names->key(names->source, record->key);
            tp_status status =
                key != NULL && key->quantity == TP_COMM
                    ? tp_merged_add(&sink->merged, &record->key, sizeof record->key, record, error)
                    : put_row(sink, record, batch->step, names, error);
            if (status != TP_OK) {
                return status;
            }
        }
    }
    for (uint32_t i = 0; i < sink->merged.count; i++) {
        const tp_record *record = tp_merged_record(&sink->merged, i);
        tp_status status = put_row(sink, record, batch->step, names, error);
        if (status != TP_OK) {
            return status;
        }
    }
    for (uint32_t kind = 1; kind < KINDS; kind++) {
        if (sink->files[kind].rows.size > 0 || sink->files[kind].rows.failed) {
            tp_status status = write_file(sink, kind, error);
            if (status != TP_OK) {
                return status;
            }
        }
    }
    return TP_OK;
}

/* Opens a file of the cursor's window and cuts it back to what the cursor speaks of. */
static tp_status resume_file(csv *sink, uint32_t kind, uint64_t size, tp_error *error)
{
    csv_file *file = &sink->files[kind];
    char path[TP_PATH_MAX];
    tp_status status = file_path(sink, kind, path, error);
    if (status != TP_OK) {
        return status;
    }
    status = tp_file_append(path, &file->fd, &file->size, error);
    if (status == TP_OK && file->size > size) {
        file->size = size;
        return tp_file_truncate(file->fd, path, size, error);
    }
    if (status == TP_OK && file->size < size) {
        /* Somebody else cut or removed it: keep its whole lines. */
        tp_buf text = TP_BUF_INIT;
        tp_log(TP_LOG_WARNING, "%s is shorter than it was left: rows are missing", path);
        status = tp_file_read(path, &text, error);
        if (status == TP_OK) {
            const uint8_t *end = text.size > 0 ? memrchr(text.data, '\n', text.size) : NULL;
            file->size = end != NULL ? (uint64_t)(end - text.data) + 1 : 0;
            status = tp_file_truncate(file->fd, path, file->size, error);
        }
        tp_buf_free(&text);
    }
    return status;
}

/* A file of the cursor's window that the cursor does not speak of: its rows come again. */
static tp_status remove_file(const csv *sink, uint32_t kind, tp_error *error)
{
    char path[TP_PATH_MAX];
    tp_status status = file_path(sink, kind, path, error);
    if (status == TP_OK && unlink(path) != 0 && errno != ENOENT) {
        status = tp_fail(error, tp_status_from_errno(errno), "can't remove %s: %s", path,
                         strerror(errno));
    }
    return status;
}

static void take_cursor(csv *sink, const uint8_t *cursor)
{
    sink->keep = tp_get_u32(cursor + 4) != 0;
    sink->window = tp_get_u64(cursor + 16);
    sink->frontier = tp_get_u64(cursor + 24);
    sink->part = tp_get_u64(cursor + 32);
    sink->last_in_parts = tp_get_u64(cursor + 40);
}

/* Files of earlier windows may have been tidied away: only those of the present one are needed. */
static bool csv_is_whole(const tp_sink_options *options, const uint8_t *cursor, size_t cursor_size)
{
    csv sink = {.options = *options};
    if (cursor_size < CURSOR_START || cursor_size > CURSOR_SIZE ||
        tp_get_u64(cursor + 8) != options->steps_per_file) {
        return true; /* open says what is wrong with it, or needs no files */
    }
    take_cursor(&sink, cursor);
    for (uint32_t kind = 1; CURSOR_START + 8 * (size_t)kind <= cursor_size; kind++) {
        const uint64_t size = tp_get_u64(cursor + CURSOR_START + 8 * (size_t)(kind - 1));
        char path[TP_PATH_MAX];
        if (size > 0 && file_path(&sink, kind, path, NULL) == TP_OK && !tp_file_has(path, size)) {
            return false;
        }
    }
    return true;
}

static tp_status csv_open(void *private, const tp_sink_options *options, const uint8_t *cursor,
                          size_t cursor_size, tp_error *error)
{
    csv *sink = private;
    sink->options = *options;
    sink->window = NO_WINDOW;
    sink->frontier = NO_WINDOW;
    for (uint32_t kind = 1; kind < KINDS; kind++) {
        sink->files[kind].fd = -1;
    }
    put_header(sink, TP_ACTIVATION, &sink->scratch);
    if (sink->scratch.failed) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for the header");
    }
    sink->columns = tp_crc32c(0, sink->scratch.data, sink->scratch.size);
    if (cursor_size == 0) {
        return TP_OK;
    }
    if (cursor_size < CURSOR_START || cursor_size > CURSOR_SIZE || cursor_size % 8 != 0) {
        return tp_fail(error, TP_ERR_CORRUPT, "the cursor of the csv files has a wrong size");
    }
    if (tp_get_u64(cursor + 8) != options->steps_per_file) {
        return TP_OK; /* other names of files from here on */
    }
    take_cursor(sink, cursor);
    const bool other_columns = tp_get_u32(cursor) != sink->columns && sink->window != NO_WINDOW;
    for (uint32_t kind = 1; CURSOR_START + 8 * (size_t)kind <= cursor_size; kind++) {
        uint64_t size = tp_get_u64(cursor + CURSOR_START + 8 * (size_t)(kind - 1));
        tp_status status = TP_OK;
        if (size > 0) {
            status = resume_file(sink, kind, size, error);
        } else if (other_columns && !sink->keep) {
            status = remove_file(sink, kind, error);
        }
        if (status != TP_OK) {
            return status;
        }
    }
    if (other_columns) {
        close_files(sink);
        sink->part++;
        sink->last_in_parts = sink->frontier;
        sink->keep = false;
    }
    return TP_OK;
}

/* Earlier rows of the window stay. */
static tp_status csv_rewind(void *private, uint64_t step, tp_error *error)
{
    csv *sink = private;
    const uint64_t window = step - step % sink->options.steps_per_file;
    close_files(sink);
    sink->window = NO_WINDOW;
    if (sink->frontier != NO_WINDOW && sink->frontier > window) {
        sink->frontier = window;
    }
    return tp_rows_rewind(sink->options.directory, step, error);
}

static void csv_cursor(const void *private, tp_buf *out)
{
    const csv *sink = private;
    tp_buf_put_u32(out, sink->columns);
    tp_buf_put_u32(out, sink->keep);
    tp_buf_put_u64(out, sink->options.steps_per_file);
    tp_buf_put_u64(out, sink->window);
    tp_buf_put_u64(out, sink->frontier);
    tp_buf_put_u64(out, sink->part);
    tp_buf_put_u64(out, sink->last_in_parts);
    for (uint32_t kind = 1; kind < KINDS; kind++) {
        tp_buf_put_u64(out, sink->files[kind].size);
    }
}

static uint64_t csv_bytes(const void *private)
{
    const csv *sink = private;
    return sink->bytes;
}

static void csv_close(void *private)
{
    csv *sink = private;
    close_files(sink);
    for (uint32_t kind = 1; kind < KINDS; kind++) {
        tp_buf_free(&sink->files[kind].rows);
    }
    tp_blocks_free(&sink->prefixes);
    tp_merged_free(&sink->merged);
    tp_buf_free(&sink->scratch);
}

const tp_sink tp_sink_csv = {
    .name = "csv",
    .private_size = sizeof(csv),
    .open = csv_open,
    .is_whole = csv_is_whole,
    .write = csv_write,
    .rewind = csv_rewind,
    .cursor = csv_cursor,
    .bytes = csv_bytes,
    .close = csv_close,
};
