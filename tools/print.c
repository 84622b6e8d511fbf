#include "tools/print.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"
#include "sinks/decimal.h"
#include "sinks/field.h"

#define GAP 2 /* blanks between the columns of a table */

/* What is kept of a column from array to array. */
typedef struct column {
    const char *name;
    const char *format; /* Arrow's */
    bool is_text;
    const struct ArrowArray *array;
    tp_buf texts; /* of the dictionary, as they are printed, one behind the other */
    tp_buf ends;  /* size_t: where each of them ends */
    size_t width; /* in a table: of the widest cell so far */
} column;

typedef struct printer {
    int format;
    uint64_t width;
    column *columns;
    uint32_t count;
    uint32_t shown; /* columns of a table that fit */
    bool begun;     /* the head has been printed */
    tp_buf out;
    tp_buf cells; /* of a table: the cells of an array, before they are put in line */
    tp_buf ends;
} printer;

static size_t end_of(const tp_buf *ends, uint64_t index)
{
    size_t end;
    memcpy(&end, ends->data + index * sizeof end, sizeof end);
    return end;
}

static size_t start_of(const tp_buf *ends, uint64_t index)
{
    return index == 0 ? 0 : end_of(ends, index - 1);
}

/* Control characters could move the cursor, or end the line. */
static void put_visible(tp_buf *out, const char *text)
{
    for (; *text != '\0'; text++) {
        const bool is_control = (uint8_t)*text < 0x20 || *text == 0x7f;
        tp_buf_put(out, is_control ? "?" : text, 1);
    }
}

/* The texts that are new in this array's dictionary, as this format writes them. */
static tp_status take_texts(const printer *p, column *c)
{
    const struct ArrowArray *dictionary = c->array->dictionary;
    const int32_t *offsets = dictionary->buffers[1];
    const char *bytes = dictionary->buffers[2];
    tp_buf text = TP_BUF_INIT;
    for (uint64_t i = c->ends.size / sizeof(size_t); i < (uint64_t)dictionary->length; i++) {
        tp_buf_clear(&text);
        tp_buf_put(&text, bytes + offsets[i], (size_t)(offsets[i + 1] - offsets[i]));
        tp_buf_put(&text, "", 1);
        const char *terminated = text.failed ? "" : (const char *)text.data;
        if (p->format == TP_PRINT_JSON) {
            tp_text_put_json(&c->texts, terminated);
        } else if (p->format == TP_PRINT_CSV) {
            tp_field_put(&c->texts, terminated);
        } else {
            put_visible(&c->texts, terminated);
        }
        tp_buf_put(&c->ends, &c->texts.size, sizeof(size_t));
        c->texts.failed = c->texts.failed || text.failed;
    }
    tp_buf_free(&text);
    return c->texts.failed || c->ends.failed ? TP_ERR_NOMEM : TP_OK;
}

static void put_number(tp_buf *out, double value, int format)
{
    char text[TP_DECIMAL_MAX];
    if (format == TP_PRINT_TABLE && isfinite(value)) {
        tp_buf_printf(out, "%.6g", value);
    } else if (format == TP_PRINT_JSON && !isfinite(value)) { /* JSON has no number for it */
        tp_buf_printf(out, "\"%s\"", isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
    } else {
        tp_buf_put(out, text, tp_decimal_write(value, text));
    }
}

/* Nanoseconds of Unix time. */
static void put_time(tp_buf *out, int64_t ns, int format)
{
    const int64_t rest = (ns % 1000000000 + 1000000000) % 1000000000;
    const time_t seconds = (time_t)((ns - rest) / 1000000000);
    struct tm utc;
    char text[64] = "?";
    const char *quote = format == TP_PRINT_JSON ? "\"" : "";
    if (gmtime_r(&seconds, &utc) != NULL) {
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    }
    tp_buf_printf(out, "%s%s", quote, text);
    if (format != TP_PRINT_TABLE) {
        tp_buf_printf(out, ".%09" PRId64, rest);
    }
    tp_buf_printf(out, "Z%s", quote);
}

static void put_list(tp_buf *out, const struct ArrowArray *list, int64_t row, int format)
{
    const uint8_t *valid = list->buffers[0];
    const int32_t *offsets = list->buffers[1];
    const int64_t *items = list->children[0]->buffers[1];
    const bool quoted = format == TP_PRINT_CSV && offsets[row + 1] - offsets[row] > 1;
    if ((valid[row / 8] >> (row % 8) & 1) == 0) {
        tp_buf_printf(out, "%s", format == TP_PRINT_JSON ? "null" : "");
        return;
    }
    tp_buf_printf(out, "%s[", quoted ? "\"" : "");
    for (int32_t i = offsets[row]; i < offsets[row + 1]; i++) {
        tp_buf_printf(out, "%s%" PRId64, i > offsets[row] ? ", " : "", items[i]);
    }
    tp_buf_printf(out, "]%s", quoted ? "\"" : "");
}

static void put_cell(tp_buf *out, const column *c, int64_t row, int format)
{
    const void *values = c->array->buffers[1];
    if (c->is_text) {
        const uint64_t number = (uint64_t)((const int32_t *)values)[row];
        const size_t start = start_of(&c->ends, number);
        tp_buf_put(out, c->texts.data + start, end_of(&c->ends, number) - start);
        return;
    }
    switch (c->format[0]) {
    case 'i':
        tp_buf_printf(out, "%" PRId32, ((const int32_t *)values)[row]);
        break;
    case 'l':
        tp_buf_printf(out, "%" PRId64, ((const int64_t *)values)[row]);
        break;
    case 'g':
        put_number(out, ((const double *)values)[row], format);
        break;
    case 't':
        put_time(out, ((const int64_t *)values)[row], format);
        break;
    case 'b':
        tp_buf_printf(out, "%s",
                      (((const uint8_t *)values)[row / 8] >> (row % 8) & 1) != 0 ? "true"
                                                                                 : "false");
        break;
    default:
        put_list(out, c->array, row, format);
        break;
    }
}

static void put_csv(printer *p, int64_t rows)
{
    for (uint32_t i = 0; !p->begun && i < p->count; i++) {
        tp_buf_printf(&p->out, "%s%s", p->columns[i].name, i + 1 < p->count ? "," : "\n");
    }
    for (int64_t row = 0; row < rows; row++) {
        for (uint32_t i = 0; i < p->count; i++) {
            put_cell(&p->out, &p->columns[i], row, TP_PRINT_CSV);
            tp_buf_put(&p->out, i + 1 < p->count ? "," : "\n", 1);
        }
    }
}

static void put_json(printer *p, int64_t rows)
{
    for (int64_t row = 0; row < rows; row++) {
        for (uint32_t i = 0; i < p->count; i++) {
            tp_buf_printf(&p->out, "%s\"%s\": ", i > 0 ? ", " : "{", p->columns[i].name);
            put_cell(&p->out, &p->columns[i], row, TP_PRINT_JSON);
        }
        tp_buf_put(&p->out, "}\n", 2);
    }
}

/* Characters of UTF-8. */
static size_t width_of(const uint8_t *text, size_t size)
{
    size_t width = 0;
    for (size_t i = 0; i < size; i++) {
        width += (text[i] & 0xc0) != 0x80;
    }
    return width;
}

static void put_blanks(tp_buf *out, size_t count)
{
    for (; count > 0; count--) {
        tp_buf_put(out, " ", 1);
    }
}

/* Texts stand at the left of their column, numbers at the right; nothing follows the last one. */
static void put_in_line(const printer *p, tp_buf *out, uint32_t i, const uint8_t *text, size_t size)
{
    const column *c = &p->columns[i];
    const size_t width = width_of(text, size);
    const size_t blanks = c->width > width ? c->width - width : 0;
    const bool is_left = c->is_text || c->format[0] == '+' || c->format[0] == 't';
    put_blanks(out, (i > 0 ? GAP : 0) + (is_left ? 0 : blanks));
    tp_buf_put(out, text, size);
    put_blanks(out, is_left && i + 1 < p->shown ? blanks : 0);
}

static void put_head(printer *p)
{
    size_t total = 0;
    p->shown = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        total += p->columns[i].width + (i > 0 ? GAP : 0);
        if (i == 0 || p->width == 0 || total <= p->width) {
            p->shown = i + 1;
        } else {
            break;
        }
    }
    for (uint32_t i = 0; i < p->shown; i++) {
        const char *name = p->columns[i].name;
        put_in_line(p, &p->out, i, (const uint8_t *)name, strlen(name));
    }
    if (p->shown < p->count) {
        fprintf(stderr,
                "%" PRIu32 " more columns don't fit: --columns chooses, a pipe has room for all\n",
                p->count - p->shown);
    }
    tp_buf_put(&p->out, "\n", 1);
}

static tp_status put_table(printer *p, int64_t rows)
{
    tp_buf_clear(&p->cells);
    tp_buf_clear(&p->ends);
    for (int64_t row = 0; row < rows; row++) {
        for (uint32_t i = 0; i < p->count; i++) {
            const size_t start = p->cells.size;
            put_cell(&p->cells, &p->columns[i], row, TP_PRINT_TABLE);
            tp_buf_put(&p->ends, &p->cells.size, sizeof(size_t));
            if (p->cells.failed || p->ends.failed) {
                return TP_ERR_NOMEM;
            }
            const size_t width = width_of(p->cells.data + start, p->cells.size - start);
            p->columns[i].width = width > p->columns[i].width ? width : p->columns[i].width;
        }
    }
    if (!p->begun) {
        put_head(p);
    }
    for (uint64_t row = 0; row < (uint64_t)rows; row++) {
        for (uint32_t i = 0; i < p->shown; i++) {
            const uint64_t cell = row * p->count + i;
            const size_t start = start_of(&p->ends, cell);
            put_in_line(p, &p->out, i, p->cells.data + start, end_of(&p->ends, cell) - start);
        }
        tp_buf_put(&p->out, "\n", 1);
    }
    return TP_OK;
}

/* No rows: only the head. */
static tp_status put_rows(printer *p, const struct ArrowArray *array, int64_t rows)
{
    tp_status status = TP_OK;
    tp_buf_clear(&p->out);
    for (uint32_t i = 0; status == TP_OK && rows > 0 && i < p->count; i++) {
        p->columns[i].array = array->children[i];
        status = p->columns[i].is_text ? take_texts(p, &p->columns[i]) : TP_OK;
    }
    if (status == TP_OK && p->format == TP_PRINT_TABLE) {
        status = put_table(p, rows);
    } else if (status == TP_OK && p->format == TP_PRINT_CSV) {
        put_csv(p, rows);
    } else if (status == TP_OK) {
        put_json(p, rows);
    }
    p->begun = true;
    return p->out.failed ? TP_ERR_NOMEM : status;
}

static tp_status print_arrays(printer *p, struct ArrowArrayStream *stream, tp_error *error)
{
    for (;;) {
        struct ArrowArray array;
        if (stream->get_next(stream, &array) != 0) {
            return tp_fail(error, TP_ERR_IO, "%s", stream->get_last_error(stream));
        }
        const bool is_end = array.release == NULL;
        if (is_end && p->begun) {
            return TP_OK;
        }
        const tp_status status = put_rows(p, &array, is_end ? 0 : array.length);
        if (!is_end) {
            array.release(&array);
        }
        if (status != TP_OK) {
            return tp_fail(error, status, "no memory");
        }
        fwrite(p->out.data, 1, p->out.size, stdout);
        if (fflush(stdout) != 0 || ferror(stdout)) {
            return tp_fail(error, TP_ERR_IO, "can't write to standard output");
        }
        if (is_end) {
            return TP_OK;
        }
    }
}

tp_status tp_print_stream(struct ArrowArrayStream *stream, int format, uint64_t width,
                          tp_error *error)
{
    struct ArrowSchema schema;
    if (stream->get_schema(stream, &schema) != 0) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory");
    }
    printer p = {.format = format,
                 .width = width,
                 .columns = tp_calloc((size_t)schema.n_children, sizeof *p.columns),
                 .count = (uint32_t)schema.n_children};
    tp_status status = TP_ERR_NOMEM;
    if (p.columns != NULL) {
        for (uint32_t i = 0; i < p.count; i++) {
            p.columns[i].name = schema.children[i]->name;
            p.columns[i].format = schema.children[i]->format;
            p.columns[i].is_text = schema.children[i]->dictionary != NULL;
            p.columns[i].width = strlen(p.columns[i].name);
        }
        status = print_arrays(&p, stream, error);
        for (uint32_t i = 0; i < p.count; i++) {
            tp_buf_free(&p.columns[i].texts);
            tp_buf_free(&p.columns[i].ends);
        }
    } else {
        tp_fail(error, status, "no memory");
    }
    tp_free(p.columns);
    tp_buf_free(&p.out);
    tp_buf_free(&p.cells);
    tp_buf_free(&p.ends);
    schema.release(&schema);
    return status;
}
