#include "arrow/columns.h"

#include <stddef.h>
#include <string.h>

enum kind { I32, I64, F64, FLAG, TIME, TEXT, DIMS };

/* What a column's offset counts from. */
enum base { NOWHERE, RUN, EXTENT, BATCH, KEY, RECORD, OVERVIEW, MERGED, EXPONENT };

struct tp_column {
    const char *name;
    uint8_t kind;
    uint8_t base;
    uint16_t offset;
    uint32_t bit;                            /* of a FLAG in a word of bits; 0: a bool */
    double (*number)(const tp_stats *stats); /* of an F64 that is computed */
    /* Of a TEXT: the text, perhaps written to scratch, and an address that goes with it for as long
     * as the reader lives (NULL: none). NULL: the address is enough where it is known, and where it
     * isn't the text is asked for again, without identity. */
    const char *(*text)(const tp_row_source *source, const tp_row *row, char *scratch,
                        const void **identity);
};

#define SCRATCH_SIZE 4096

static const char *directory_of(const tp_row_source *source, const tp_row *row, char *scratch,
                                const void **identity)
{
    (void)row;
    (void)scratch;
    *identity = source->directory;
    return source->directory;
}

static const char *run_of(const tp_row_source *source, const tp_row *row, char *scratch,
                          const void **identity)
{
    (void)row;
    (void)scratch;
    (void)identity; /* the reader overwrites it when another segment begins */
    return source->run->run_id;
}

static const char *name_of(const tp_row_source *source, const tp_row *row, char *scratch,
                           const void **identity)
{
    (void)source;
    (void)scratch;
    *identity = row->key;
    return row->key->name;
}

/* The quantities, with a space between. */
static const char *left_out_of(const tp_row_source *source, const tp_row *row, char *scratch,
                               const void **identity)
{
    (void)row;
    (void)identity;
    tp_quantities_describe(source->batch->left_out, scratch, SCRATCH_SIZE);
    return scratch;
}

static const char *global_name_of(const tp_row_source *source, const tp_row *row, char *scratch,
                                  const void **identity)
{
    (void)source;
    (void)scratch;
    *identity = row->key->global_name; /* the key may be a copy */
    return row->key->global_name;
}

static const char *row_of(const tp_row_source *source, const tp_row *row, char *scratch,
                          const void **identity)
{
    (void)source;
    const uint32_t call = row->record != NULL ? row->record->call : 0;
    if (call == 0 && identity != NULL) {
        *identity = row->key;
        return NULL;
    }
    tp_row_name(row->key, call, scratch, SCRATCH_SIZE);
    return scratch;
}

/* Of a word that a later version may have added. */
static const char *word(const char *found, const void **identity)
{
    const char *text = found != NULL ? found : "";
    *identity = text;
    return text;
}

static const char *quantity_of(const tp_row_source *source, const tp_row *row, char *scratch,
                               const void **identity)
{
    (void)source;
    (void)scratch;
    return word(tp_quantity_name(row->key->quantity), identity);
}

static const char *role_of(const tp_row_source *source, const tp_row *row, char *scratch,
                           const void **identity)
{
    (void)source;
    (void)scratch;
    return word(tp_role_name(row->key->role), identity);
}

static const char *dtype_of(const tp_row_source *source, const tp_row *row, char *scratch,
                            const void **identity)
{
    (void)source;
    (void)scratch;
    return word(tp_dtype_name(row->record->dtype), identity);
}

static const char *rule_of(const tp_row_source *source, const tp_row *row, char *scratch,
                           const void **identity)
{
    (void)source;
    (void)scratch;
    return word(tp_rule_name(row->record->u.alert.rule), identity);
}

static const char *op_of(const tp_row_source *source, const tp_row *row, char *scratch,
                         const void **identity)
{
    (void)source;
    (void)scratch;
    return word(tp_op_name(row->record->u.alert.op), identity);
}

#define TEXT_OF(what)                                                                              \
    {                                                                                              \
#what, TEXT, NOWHERE, 0, 0, NULL, what##_of                                                \
    }
#define AT(name, kind, base, type, member)                                                         \
    {                                                                                              \
        name, kind, base, offsetof(type, member), 0, NULL, NULL                                    \
    }
#define OF_KEY                                                                                     \
    TEXT_OF(name), TEXT_OF(row), TEXT_OF(quantity), TEXT_OF(role),                                 \
        AT("slot", I32, KEY, tp_key, slot), AT("vpp_stage", I32, KEY, tp_key, vpp_stage)
#define OF_RUN TEXT_OF(run), AT("rank", I32, RUN, tp_run_info, rank)
#define OF_STEP AT("attempt", I32, BATCH, tp_batch, attempt), AT("step", I64, BATCH, tp_batch, step)
#define OF_RECORD                                                                                  \
    AT("micro_step", I32, RECORD, tp_record, micro_step),                                          \
        AT("call", I32, RECORD, tp_record, call), AT("order", I64, RECORD, tp_record, order)
#define STAT(name, kind) AT(#name, kind, RECORD, tp_record, u.stats.name)
#define ALERT(name, kind) AT(#name, kind, RECORD, tp_record, u.alert.name)
#define COMPUTED(name)                                                                             \
    {                                                                                              \
#name, F64, RECORD, 0, 0, tp_stats_##name, NULL                                            \
    }
#define BATCH_FLAG(name, bit)                                                                      \
    {                                                                                              \
        name, FLAG, BATCH, offsetof(tp_batch, flags), bit, NULL, NULL                              \
    }
#define OF_COUNTS                                                                                  \
    STAT(count, I64), STAT(nan, I64), STAT(pos_inf, I64), STAT(neg_inf, I64), STAT(zeros, I64),    \
        STAT(subnormal, I64)
#define OF_EXTREMES                                                                                \
    COMPUTED(norm), STAT(min, F64), STAT(max, F64), COMPUTED(mean), COMPUTED(std),                 \
        STAT(finite_min, F64), STAT(finite_max, F64), STAT(abs_max, F64)
#define OF_SUMS                                                                                    \
    STAT(sum, F64), STAT(sum_abs, F64), STAT(sum_sq, F64), STAT(m2, F64), STAT(sq_exp, I64)

static const tp_column runs[] = {
    OF_RUN,
    AT("opened", TIME, RUN, tp_run_info, start_wall_ns),
    AT("attempts", I32, EXTENT, tp_extent, attempts),
    AT("steps", I64, EXTENT, tp_extent, steps),
    AT("first_step", I64, EXTENT, tp_extent, first_step),
    AT("last_step", I64, EXTENT, tp_extent, last_step),
    AT("removed", I64, EXTENT, tp_extent, removed),
    AT("closed", FLAG, EXTENT, tp_extent, closed),
    TEXT_OF(directory),
};

static const tp_column keys[] = {OF_RUN, OF_KEY, TEXT_OF(global_name)};

static const tp_column series[] = {
    OF_RUN,
    OF_STEP,
    BATCH_FLAG("partial", TP_BATCH_PARTIAL),
    OF_RECORD,
    OF_KEY,
    TEXT_OF(dtype),
    AT("shape", DIMS, RECORD, tp_record, shape),
    OF_COUNTS,
    OF_EXTREMES,
    STAT(abs_max_index, I64),
    OF_SUMS,
    AT("time_ns", I64, RECORD, tp_record, time_ns),
};

static const tp_column alerts[] = {
    OF_RUN,
    OF_STEP,
    OF_RECORD,
    OF_KEY,
    TEXT_OF(rule),
    TEXT_OF(op),
    ALERT(value, F64),
    ALERT(baseline, F64),
    ALERT(threshold, F64),
    ALERT(samples, I64),
    ALERT(more, I64),
    ALERT(incident, I64),
};

static const tp_column steps[] = {
    OF_RUN,
    OF_STEP,
    AT("pp_stage", I32, BATCH, tp_batch, pp_stage),
    BATCH_FLAG("partial", TP_BATCH_PARTIAL),
    BATCH_FLAG("skipped", TP_BATCH_SKIPPED),
    BATCH_FLAG("gap", TP_BATCH_GAP),
    AT("micro_steps", I32, BATCH, tp_batch, micro_steps),
    AT("count", I64, BATCH, tp_batch, count),
    AT("unfilled", I32, BATCH, tp_batch, unfilled),
    AT("errors", I64, BATCH, tp_batch, errors),
    AT("time", TIME, BATCH, tp_batch, wall_ns),
    AT("begin_ns", I64, BATCH, tp_batch, begin_ns),
    AT("end_ns", I64, BATCH, tp_batch, end_ns),
    AT("hook_ns", I64, BATCH, tp_batch, hook_ns),
    AT("wait_ns", I64, BATCH, tp_batch, wait_ns),
    AT("writer_ns", I64, BATCH, tp_batch, writer_ns),
    AT("bytes", I64, BATCH, tp_batch, bytes),
    TEXT_OF(left_out),
    AT("zoom", I32, BATCH, tp_batch, zoom),
};

static const tp_column overview[] = {
    OF_RUN,
    AT("attempt", I32, RUN, tp_run_info, attempt),
    AT("first_step", I64, OVERVIEW, tp_overview, first_step),
    AT("last_step", I64, OVERVIEW, tp_overview, last_step),
    OF_KEY,
    AT("count", I32, OVERVIEW, tp_overview, count),
    AT("nan", I32, OVERVIEW, tp_overview, nan),
    AT("inf", I32, OVERVIEW, tp_overview, inf),
    AT("norm_min", F64, OVERVIEW, tp_overview, norm_min),
    AT("norm_max", F64, OVERVIEW, tp_overview, norm_max),
};

static const tp_column merged[] = {
    TEXT_OF(run),
    OF_STEP,
    AT("micro_step", I32, RECORD, tp_record, micro_step),
    {"name", TEXT, NOWHERE, 0, 0, NULL, global_name_of},
    TEXT_OF(quantity),
    AT("vpp_stage", I32, KEY, tp_key, vpp_stage),
    AT("parts", I32, MERGED, tp_merged, parts),
    AT("records", I32, MERGED, tp_merged, records),
    AT("missing", I64, MERGED, tp_merged, missing),
    AT("different", I32, MERGED, tp_merged, different),
    OF_COUNTS,
    OF_EXTREMES,
    OF_SUMS,
};

static const tp_column exponents[] = {
    OF_RUN,
    OF_STEP,
    OF_RECORD,
    OF_KEY,
    TEXT_OF(dtype),
    STAT(count, I64),
    AT("exponent", I32, EXPONENT, tp_exponent, exponent),
    AT("elements", I64, EXPONENT, tp_exponent, elements),
};

#define TABLE(name, columns)                                                                       \
    {                                                                                              \
        name, columns, sizeof(columns) / sizeof((columns)[0])                                      \
    }

static const struct {
    const char *name;
    const tp_column *columns;
    uint32_t count;
} tables[TP_TABLE_COUNT + 1] = {
    [TP_TABLE_RUNS] = TABLE("runs", runs),
    [TP_TABLE_KEYS] = TABLE("keys", keys),
    [TP_TABLE_SERIES] = TABLE("series", series),
    [TP_TABLE_ALERTS] = TABLE("alerts", alerts),
    [TP_TABLE_STEPS] = TABLE("steps", steps),
    [TP_TABLE_GAPS] = TABLE("gaps", steps),
    [TP_TABLE_OVERVIEW] = TABLE("overview", overview),
    [TP_TABLE_MERGED] = TABLE("merged", merged),
    [TP_TABLE_EXPONENTS] = TABLE("exponents", exponents),
};

void tp_extent_take(tp_extent *extent, const tp_item *item)
{
    extent->closed = item->type == TP_ITEM_CLOSE;
    if (item->type == TP_ITEM_REMOVED) {
        extent->removed += item->batch.count;
    }
    if (item->type == TP_ITEM_BATCH) {
        const int64_t step = (int64_t)item->batch.step;
        extent->first_step = extent->steps == 0 ? step : extent->first_step;
        extent->last_step = step;
        extent->steps++;
        if (item->batch.attempt >= extent->attempts) {
            extent->attempts = item->batch.attempt + 1;
        }
    }
}

const char *tp_table_name(uint32_t table)
{
    return table <= TP_TABLE_COUNT ? tables[table].name : NULL;
}

uint32_t tp_table_from_name(const char *name)
{
    uint32_t table = TP_TABLE_COUNT;
    while (table > 0 && strcmp(tables[table].name, name) != 0) {
        table--;
    }
    return table;
}

const tp_column *tp_column_at(uint32_t table, uint32_t place)
{
    return place < tables[table].count ? &tables[table].columns[place] : NULL;
}

const tp_column *tp_column_find(uint32_t table, const char *name)
{
    for (uint32_t i = 0; i < tables[table].count; i++) {
        if (strcmp(tables[table].columns[i].name, name) == 0) {
            return &tables[table].columns[i];
        }
    }
    return NULL;
}

const char *tp_column_name(const tp_column *column)
{
    return column->name;
}

tp_status tp_column_schema(const tp_column *column, struct ArrowSchema *out)
{
    static const char *const formats[] = {
        [I32] = "i",        [I64] = "l",  [F64] = "g",   [FLAG] = "b",
        [TIME] = "tsn:UTC", [TEXT] = "i", [DIMS] = "+l",
    };
    tp_status status = tp_schema_new(out, formats[column->kind], column->name, column->kind == DIMS,
                                     column->kind == TEXT);
    if (status == TP_OK && column->kind == TEXT) {
        status = tp_schema_new(out->dictionary, "u", "", 0, false);
    } else if (status == TP_OK && column->kind == DIMS) {
        status = tp_schema_new(out->children[0], "l", "item", 0, false);
    }
    if (status != TP_OK && out->release != NULL) {
        out->release(out);
    }
    return status;
}

/* Where the values of a column are read: at `fixed` for all rows, or behind a pointer that each row
 * has at `member`. */
typedef struct spot {
    const uint8_t *fixed;
    size_t member;
} spot;

static spot spot_of(const tp_column *column, const tp_row_source *source)
{
    const void *const bases[] = {
        [RUN] = source->run, [EXTENT] = source->extent, [BATCH] = source->batch};
    switch (column->base) {
    case NOWHERE:
        return (spot){NULL, 0};
    case KEY:
        return (spot){NULL, offsetof(tp_row, key)};
    case RECORD:
        return (spot){NULL, offsetof(tp_row, record)};
    case MERGED:
        return (spot){NULL, offsetof(tp_row, merged)};
    case OVERVIEW:
        return (spot){NULL, offsetof(tp_row, overview)};
    case EXPONENT:
        return (spot){NULL, offsetof(tp_row, exponent)};
    default:
        return (spot){(const uint8_t *)bases[column->base] + column->offset, 0};
    }
}

static const uint8_t *value_at(const tp_column *column, spot from, const tp_row *row)
{
    if (from.fixed != NULL) {
        return from.fixed;
    }
    const uint8_t *base;
    memcpy(&base, (const uint8_t *)row + from.member, sizeof(const uint8_t *));
    return base + column->offset;
}

static void add_computed(tp_cells *cells, const tp_row *rows, uint64_t count)
{
    double *out = tp_buf_extend(&cells->values, count * sizeof *out);
    for (uint64_t i = 0; out != NULL && i < count; i++) {
        out[i] = cells->column->number(&rows[i].record->u.stats);
    }
}

static void add_words(tp_cells *cells, spot from, const tp_row *rows, uint64_t count)
{
    uint32_t *out = tp_buf_extend(&cells->values, count * sizeof *out);
    for (uint64_t i = 0; out != NULL && i < count; i++) {
        memcpy(&out[i], value_at(cells->column, from, &rows[i]), sizeof *out);
    }
}

static void add_doublewords(tp_cells *cells, spot from, const tp_row *rows, uint64_t count)
{
    uint64_t *out = tp_buf_extend(&cells->values, count * sizeof *out);
    for (uint64_t i = 0; out != NULL && i < count; i++) {
        memcpy(&out[i], value_at(cells->column, from, &rows[i]), sizeof *out);
    }
}

/* Bit `place` of the bitmap, which holds that many already. */
static void put_bit(tp_buf *bits, uint64_t place, bool value)
{
    if (place % 8 == 0) {
        tp_buf_put(bits, "", 1);
    }
    if (!bits->failed) {
        bits->data[place / 8] |= (uint8_t)((unsigned)value << (place % 8));
    }
}

static void add_flags(tp_cells *cells, uint64_t length, spot from, const tp_row *rows,
                      uint64_t count)
{
    const tp_column *column = cells->column;
    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *at = value_at(column, from, &rows[i]);
        const bool value = column->bit != 0 ? (tp_get_u32(at) & column->bit) != 0 : at[0] != 0;
        put_bit(&cells->values, length + i, value);
    }
}

static void add_dims(tp_cells *cells, uint64_t length, const tp_row_source *source,
                     const tp_row *rows, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t ndim = 0;
        const int64_t *dims = tp_reader_shape(source->reader, rows[i].record->shape, &ndim);
        if (cells->offsets.size == 0) {
            tp_buf_put_u32(&cells->offsets, 0);
        }
        if (dims != NULL) {
            tp_buf_put(&cells->values, dims, ndim * sizeof *dims);
        }
        tp_buf_put_u32(&cells->offsets, (uint32_t)(cells->values.size / sizeof *dims));
        put_bit(&cells->valid, length + i, dims != NULL);
        cells->nulls += dims == NULL;
    }
}

static tp_status add_texts(tp_cells *cells, const tp_row_source *source, const tp_row *rows,
                           uint64_t count)
{
    char scratch[SCRATCH_SIZE];
    const void *last = NULL; /* most neighbours have the same run, quantity, dtype … */
    int32_t number = 0;
    int32_t *out = tp_buf_extend(&cells->values, count * sizeof *out);
    for (uint64_t i = 0; out != NULL && i < count; i++) {
        const void *identity = NULL;
        const char *text = cells->column->text(source, &rows[i], scratch, &identity);
        if (identity == NULL || identity != last) {
            tp_status status = identity == NULL
                                   ? TP_ERR_NOTFOUND
                                   : tp_strings_find(&cells->strings, identity, &number);
            if (status == TP_ERR_NOTFOUND) {
                text = text != NULL ? text : cells->column->text(source, &rows[i], scratch, NULL);
                status = tp_strings_add(&cells->strings, text, identity, &number);
            }
            if (status != TP_OK) {
                return status;
            }
            last = identity;
        }
        out[i] = number;
    }
    return TP_OK;
}

tp_status tp_cells_add(tp_cells *cells, uint64_t length, const tp_row_source *source,
                       const tp_row *rows, uint64_t count)
{
    const spot from = spot_of(cells->column, source);
    tp_status status = TP_OK;
    switch (cells->column->kind) {
    case I32:
        add_words(cells, from, rows, count);
        break;
    case FLAG:
        add_flags(cells, length, from, rows, count);
        break;
    case TEXT:
        status = add_texts(cells, source, rows, count);
        break;
    case DIMS:
        add_dims(cells, length, source, rows, count);
        break;
    default:
        if (cells->column->number != NULL) {
            add_computed(cells, rows, count);
        } else {
            add_doublewords(cells, from, rows, count);
        }
        break;
    }
    if (cells->values.failed || cells->offsets.failed || cells->valid.failed) {
        status = TP_ERR_NOMEM;
    }
    return status;
}

tp_status tp_cells_take(tp_cells *cells, uint64_t length, struct ArrowArray *out)
{
    const uint8_t kind = cells->column->kind;
    tp_status status = tp_array_new(out, (int64_t)length, 2, kind == DIMS, kind == TEXT);
    if (status != TP_OK) {
        return status;
    }
    if (kind == DIMS) {
        const uint64_t items = cells->values.size / sizeof(int64_t);
        status = tp_array_new(out->children[0], (int64_t)items, 2, 0, false);
        if (status == TP_OK) {
            tp_array_own(out, 0, &cells->valid);
            tp_array_own(out, 1, &cells->offsets);
            tp_array_own(out->children[0], 1, &cells->values);
            out->null_count = (int64_t)cells->nulls;
            cells->nulls = 0;
        }
    } else {
        if (kind == TEXT) {
            status = tp_strings_array(&cells->strings, out->dictionary);
        }
        tp_array_own(out, 1, &cells->values);
    }
    return status; /* what has been made belongs to the caller's array by now */
}

void tp_cells_free(tp_cells *cells)
{
    tp_buf_free(&cells->values);
    tp_buf_free(&cells->offsets);
    tp_buf_free(&cells->valid);
    tp_strings_free(&cells->strings);
}
