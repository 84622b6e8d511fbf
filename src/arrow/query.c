#include "arrow/query.h"
#include "arrow/exponents.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "arrow/merger.h"
#include "base/error.h"
#include "base/mem.h"

#define BATCH_ROWS 65536u
#define ROWS_AT_ONCE 1024u
#define CHOICES_MAX (1u << 22) /* ids above are of damage, or too many to remember */

struct tp_query {
    atomic_uint holders;
    atomic_uint_fast64_t damaged;
    tp_query_options options; /* its pointers lead to the buffers below */
    tp_buf ranks;
    tp_buf texts;   /* directories, then names, one behind the other */
    tp_buf places;  /* const char *: where they begin */
    tp_buf columns; /* const tp_column * */
};

/* Whether a key is wanted, so that it is judged once and not with every record. */
typedef struct choice {
    const tp_key *key;
    bool wanted;
} choice;

typedef struct stream {
    tp_query *query;
    uint32_t next; /* which directory comes after the one being read */
    tp_reader *reader;
    tp_merger *merger; /* of TP_TABLE_MERGED */
    tp_row_source source;
    tp_item item; /* its records from `at` on are still to come */
    uint64_t at;
    uint32_t bin; /* likewise, of TP_TABLE_EXPONENTS: of the record there */
    bool busy;
    tp_extent extent;
    tp_map known; /* of TP_TABLE_KEYS: addresses of keys that had their row */
    tp_map shown; /* likewise: what they say */
    tp_buf choices;
    uint32_t key_count; /* when keys were looked for last */
    uint64_t segment;   /* likewise */
    uint64_t rows;      /* in the array being made */
    uint32_t cell_count;
    tp_cells *cells;
    tp_error error;
    char text[1024]; /* of the error */
} stream;

tp_query_options tp_query_options_defaults(uint32_t table)
{
    return (tp_query_options){
        .table = table, .last_step = UINT64_MAX, .selection = tp_selection_all()};
}

static const tp_column *const *columns_of(const tp_query *query)
{
    return (const tp_column *const *)(const void *)query->columns.data;
}

static uint32_t column_count(const tp_query *query)
{
    return (uint32_t)(query->columns.size / sizeof(const tp_column *));
}

static tp_status choose_columns(tp_query *query, const tp_query_options *options, tp_error *error)
{
    for (uint32_t i = 0; i < options->column_count; i++) {
        const tp_column *column = tp_column_find(options->table, options->columns[i]);
        if (column == NULL) {
            tp_buf names = TP_BUF_INIT;
            for (uint32_t k = 0; (column = tp_column_at(options->table, k)) != NULL; k++) {
                tp_buf_printf(&names, "%s%s", k > 0 ? ", " : "", tp_column_name(column));
            }
            tp_fail(error, TP_ERR_ARGUMENT, "no such column: '%.60s'; there are %s",
                    options->columns[i], names.failed ? "others" : (const char *)names.data);
            tp_buf_free(&names);
            return TP_ERR_ARGUMENT;
        }
        tp_buf_put(&query->columns, &column, sizeof(const tp_column *));
    }
    const tp_column *column;
    for (uint32_t i = 0;
         options->column_count == 0 && (column = tp_column_at(options->table, i)) != NULL; i++) {
        tp_buf_put(&query->columns, &column, sizeof(const tp_column *));
    }
    return TP_OK;
}

static void copy_texts(tp_query *query, const tp_query_options *options)
{
    const uint32_t count = options->directory_count + options->selection.name_count;
    tp_buf starts = TP_BUF_INIT; /* size_t: the bytes may still move */
    for (uint32_t i = 0; i < count; i++) {
        const char *text = i < options->directory_count
                               ? options->directories[i]
                               : options->selection.names[i - options->directory_count];
        tp_buf_put(&starts, &query->texts.size, sizeof(size_t));
        tp_buf_put(&query->texts, text, strlen(text) + 1);
    }
    query->texts.failed = query->texts.failed || starts.failed;
    for (uint32_t i = 0; !query->texts.failed && i < count; i++) {
        size_t start;
        memcpy(&start, starts.data + i * sizeof start, sizeof start);
        const char *text = (const char *)query->texts.data + start;
        tp_buf_put(&query->places, &text, sizeof(const char *));
    }
    tp_buf_free(&starts);
}

tp_status tp_query_new(tp_query **out, const tp_query_options *options, tp_error *error)
{
    tp_query *query = tp_calloc(1, sizeof *query);
    if (query == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for a query");
    }
    atomic_init(&query->holders, 1);
    tp_status status = choose_columns(query, options, error);
    copy_texts(query, options);
    tp_buf_put(&query->ranks, options->ranks, options->rank_count * sizeof *options->ranks);
    if (status == TP_OK && (query->columns.failed || query->texts.failed || query->places.failed ||
                            query->ranks.failed)) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory for a query");
    }
    if (status != TP_OK) {
        tp_query_drop(query);
        return status;
    }
    query->options = *options;
    query->options.columns = NULL;
    query->options.ranks = (const uint32_t *)(const void *)query->ranks.data;
    query->options.directories = (const char *const *)(const void *)query->places.data;
    if (options->selection.name_count > 0) {
        query->options.selection.names = query->options.directories + options->directory_count;
    }
    if (options->batch_rows == 0) {
        query->options.batch_rows = BATCH_ROWS;
    }
    *out = query;
    return TP_OK;
}

tp_query *tp_query_hold(tp_query *query)
{
    atomic_fetch_add_explicit(&query->holders, 1, memory_order_relaxed);
    return query;
}

void tp_query_drop(tp_query *query)
{
    if (query != NULL && atomic_fetch_sub_explicit(&query->holders, 1, memory_order_acq_rel) == 1) {
        tp_buf_free(&query->ranks);
        tp_buf_free(&query->texts);
        tp_buf_free(&query->places);
        tp_buf_free(&query->columns);
        tp_free(query);
    }
}

uint64_t tp_query_damaged(const tp_query *query)
{
    return atomic_load_explicit(&query->damaged, memory_order_relaxed);
}

tp_status tp_query_schema(const tp_query *query, struct ArrowSchema *out)
{
    const uint32_t count = column_count(query);
    tp_status status = tp_schema_new(out, "+s", "", count, false);
    if (status != TP_OK) {
        return status;
    }
    for (uint32_t i = 0; status == TP_OK && i < count; i++) {
        status = tp_column_schema(columns_of(query)[i], out->children[i]);
    }
    if (status != TP_OK) {
        out->release(out);
    }
    return status;
}

static tp_status no_memory(stream *s)
{
    return tp_fail(&s->error, TP_ERR_NOMEM, "no memory to read %s", s->source.directory);
}

/* What the reader owned is gone with it: texts keep their numbers, addresses mean nothing more. */
static void leave_journal(stream *s)
{
    tp_reader_close(&s->reader);
    for (uint32_t i = 0; i < s->cell_count; i++) {
        tp_strings_forget(&s->cells[i].strings);
    }
    tp_map_free(&s->known);
    tp_map_free(&s->shown);
    tp_buf_clear(&s->choices);
    s->key_count = 0;
    s->segment = 0;
    s->extent = (tp_extent){.first_step = -1, .last_step = -1};
}

static tp_status enter_journal(stream *s)
{
    const tp_query_options *options = &s->query->options;
    s->source.directory = options->directories[s->next++];
    tp_status status = tp_reader_open(&s->reader, s->source.directory, &s->error);
    if (status != TP_OK) {
        return status;
    }
    s->source.reader = s->reader;
    s->source.run = tp_reader_run(s->reader);
    if (!tp_list_has_rank(options->ranks, options->rank_count, s->source.run->rank)) {
        leave_journal(s);
        return TP_OK;
    }
    if (options->table == TP_TABLE_RUNS || options->table == TP_TABLE_KEYS) {
        tp_reader_limit(s->reader, 0, UINT64_MAX, true);
    } else {
        tp_reader_limit(s->reader, options->first_step, options->last_step, false);
    }
    if (options->table == TP_TABLE_OVERVIEW) {
        tp_reader_overview(s->reader, options->width);
    }
    return TP_OK;
}

static tp_status add_rows(stream *s, const tp_row *rows, uint64_t count)
{
    for (uint32_t i = 0; i < s->cell_count; i++) {
        const tp_status status = tp_cells_add(&s->cells[i], s->rows, &s->source, rows, count);
        if (status == TP_ERR_NOMEM) {
            return no_memory(s);
        }
        if (status != TP_OK) {
            return tp_fail(&s->error, status, "the texts of %s are longer than 2 GiB",
                           tp_column_name(s->cells[i].column));
        }
    }
    s->rows += count;
    return TP_OK;
}

/* What a record of this key comes to. *key: NULL when it isn't wanted, or has no name. */
static tp_status choose(stream *s, uint32_t id, const tp_key **key)
{
    const tp_key *found = tp_reader_key(s->reader, id);
    *key = NULL;
    if (found == NULL) {
        return TP_OK;
    }
    if (id >= CHOICES_MAX) {
        *key = tp_selection_has_key(&s->query->options.selection, found) ? found : NULL;
        return TP_OK;
    }
    const size_t needed = (id + 1) * sizeof(choice);
    if (s->choices.size < needed) {
        const size_t before = s->choices.size;
        uint8_t *room = tp_buf_extend(&s->choices, needed - before);
        if (room == NULL) {
            return no_memory(s);
        }
        memset(room, 0, needed - before);
    }
    choice *chosen = (choice *)(void *)s->choices.data + id;
    if (chosen->key != found) {
        *chosen = (choice){found, tp_selection_has_key(&s->query->options.selection, found)};
    }
    *key = chosen->wanted ? found : NULL;
    return TP_OK;
}

/* For how many rows the array has room, of those that are made at once. */
static uint64_t room_left(const stream *s)
{
    const uint64_t left = s->query->options.batch_rows - s->rows;
    return left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE;
}

/* Rows of the item's records, as many as the array has room for. */
static tp_status take_records(stream *s)
{
    const tp_query_options *options = &s->query->options;
    const tp_batch *batch = &s->item.batch;
    const uint32_t kind = options->table == TP_TABLE_ALERTS ? TP_RECORD_ALERT : TP_RECORD_STATS;
    while (s->at < batch->count && s->rows < options->batch_rows) {
        tp_row rows[ROWS_AT_ONCE];
        tp_exponent exponents[ROWS_AT_ONCE];
        uint64_t count = 0;
        const uint64_t most = room_left(s);
        for (; s->at < batch->count && count < most; s->at++) {
            const tp_record *record = &batch->records[s->at];
            const tp_key *key = NULL;
            if (record->kind != kind || record->state != TP_SLOT_DONE ||
                !tp_selection_has_record(&options->selection, record)) {
                continue;
            }
            const tp_status status = choose(s, record->key, &key);
            if (status != TP_OK) {
                return status;
            }
            if (key == NULL) {
                continue;
            }
            rows[count] = (tp_row){.key = key, .record = record};
            if (options->table != TP_TABLE_EXPONENTS) {
                count++;
            } else if (!tp_exponent_rows(batch, record, &s->bin, most, rows, exponents, &count)) {
                break;
            }
        }
        const tp_status status = count == 0 ? TP_OK : add_rows(s, rows, count);
        if (status != TP_OK) {
            return status;
        }
    }
    s->busy = s->at < batch->count;
    return TP_OK;
}

/* Likewise of its overviews, but for those of other steps. */
static tp_status take_overviews(stream *s)
{
    const tp_query_options *options = &s->query->options;
    const tp_item *item = &s->item;
    while (s->at < item->overview_count && s->rows < options->batch_rows) {
        tp_row rows[ROWS_AT_ONCE];
        uint64_t count = 0;
        const uint64_t most = room_left(s);
        for (; s->at < item->overview_count && count < most; s->at++) {
            const tp_overview *row = &item->overviews[s->at];
            const tp_key *key = NULL;
            if (row->first_step > options->last_step || row->last_step < options->first_step) {
                continue;
            }
            const tp_status status = choose(s, row->key, &key);
            if (status != TP_OK) {
                return status;
            }
            if (key != NULL) {
                rows[count++] = (tp_row){.key = key, .overview = row};
            }
        }
        const tp_status status = count == 0 ? TP_OK : add_rows(s, rows, count);
        if (status != TP_OK) {
            return status;
        }
    }
    s->busy = s->at < item->overview_count;
    return TP_OK;
}

/* A row for the key unless one that says the same had one. Most keys come again with every segment,
 * at the same address. */
static tp_status take_key(stream *s, const tp_key *key)
{
    uint32_t unused = 0;
    if (tp_map_get(&s->known, &key, sizeof key, &unused) == TP_OK) {
        return TP_OK;
    }
    tp_buf content = TP_BUF_INIT;
    tp_buf_printf(&content, "%d %d %u %u %zu %s%s", key->vpp_stage, key->slot, key->quantity,
                  key->role, strlen(key->name), key->name, key->global_name);
    if (key->argument != NULL) {
        tp_buf_put(&content, key->argument, strlen(key->argument) + 1);
    }
    tp_status status = content.failed ? TP_ERR_NOMEM : TP_OK;
    const bool is_new = status == TP_OK && tp_map_get(&s->shown, content.data, content.size,
                                                      &unused) == TP_ERR_NOTFOUND;
    if (is_new) {
        status = tp_map_set(&s->shown, content.data, content.size, 0);
    }
    if (status == TP_OK) {
        status = tp_map_set(&s->known, &key, sizeof key, 0);
    }
    tp_buf_free(&content);
    if (status != TP_OK) {
        return no_memory(s);
    }
    const tp_row row = {.key = key};
    return is_new && tp_selection_has_key(&s->query->options.selection, key) ? add_rows(s, &row, 1)
                                                                             : TP_OK;
}

/* Rows of keys that have been defined since the last look. */
static tp_status take_keys(stream *s, uint64_t segment)
{
    const uint32_t count = tp_reader_key_count(s->reader);
    if (segment == s->segment && count == s->key_count) {
        return TP_OK;
    }
    uint64_t place = 0;
    uint32_t id = 0;
    tp_status status = TP_OK;
    for (const tp_key *key;
         status == TP_OK && (key = tp_reader_next_key(s->reader, &place, &id)) != NULL;) {
        status = take_key(s, key);
    }
    s->segment = segment;
    s->key_count = count;
    return status;
}

static tp_status take_item(stream *s)
{
    const tp_item *item = &s->item;
    const tp_row row = {.key = NULL};
    s->source.batch = &item->batch;
    s->source.run = tp_reader_run(s->reader);
    switch (s->query->options.table) {
    case TP_TABLE_RUNS:
        tp_extent_take(&s->extent, item);
        return TP_OK;
    case TP_TABLE_KEYS:
        return take_keys(s, item->position.segment);
    case TP_TABLE_STEPS:
        return item->type == TP_ITEM_BATCH ? add_rows(s, &row, 1) : TP_OK;
    case TP_TABLE_GAPS:
        return item->type == TP_ITEM_BATCH && (item->batch.flags & TP_BATCH_GAP) != 0
                   ? add_rows(s, &row, 1)
                   : TP_OK;
    case TP_TABLE_ALERTS:
        s->busy = item->type == TP_ITEM_ALERTS;
        break;
    case TP_TABLE_OVERVIEW:
        s->busy = item->type == TP_ITEM_OVERVIEW;
        break;
    default:
        s->busy = item->type == TP_ITEM_BATCH && item->batch.records != NULL;
        break;
    }
    s->at = 0;
    return TP_OK;
}

static tp_status end_journal(stream *s)
{
    const tp_row row = {.key = NULL};
    tp_status status = TP_OK;
    if (s->query->options.table == TP_TABLE_RUNS) {
        s->source.extent = &s->extent;
        s->source.run = tp_reader_run(s->reader);
        status = add_rows(s, &row, 1);
    } else if (s->query->options.table == TP_TABLE_KEYS) {
        status = take_keys(s, UINT64_MAX);
    }
    leave_journal(s);
    return status;
}

/* One step of a run, from all of its ranks. TP_END: nothing is left. */
static tp_status take_merged(stream *s)
{
    const tp_query_options *o = &s->query->options;
    const tp_merger_options options = {o->directories, o->directory_count, o->ranks,
                                       o->rank_count,  o->first_step,      o->last_step,
                                       o->selection};
    tp_merged_step step;
    tp_status status = s->merger == NULL ? tp_merger_open(&s->merger, &options, &s->error) : TP_OK;
    if (status == TP_OK) {
        status = tp_merger_next(s->merger, &step, &s->error);
    }
    if (status != TP_OK) {
        return status;
    }
    for (uint32_t i = 0; step.new_run && i < s->cell_count; i++) {
        tp_strings_forget(&s->cells[i].strings);
    }
    atomic_fetch_add_explicit(&s->query->damaged, step.damaged, memory_order_relaxed);
    s->source = step.source;
    return add_rows(s, step.rows, step.count);
}

/* One step ahead: part of an item, the next item, or the next journal. TP_END: nothing is left. */
static tp_status advance(stream *s)
{
    if (s->query->options.table == TP_TABLE_MERGED) {
        return take_merged(s);
    }
    if (s->busy) {
        return s->query->options.table == TP_TABLE_OVERVIEW ? take_overviews(s) : take_records(s);
    }
    if (s->reader == NULL) {
        return s->next < s->query->options.directory_count ? enter_journal(s) : TP_END;
    }
    const tp_status status = tp_reader_next(s->reader, &s->item, &s->error);
    if (status == TP_ERR_CORRUPT) {
        atomic_fetch_add_explicit(&s->query->damaged, 1, memory_order_relaxed);
        return TP_OK;
    }
    if (status == TP_END) {
        return end_journal(s);
    }
    return status == TP_OK ? take_item(s) : status;
}

static tp_status make_array(stream *s, struct ArrowArray *out)
{
    tp_status status = tp_array_new(out, (int64_t)s->rows, 1, s->cell_count, false);
    for (uint32_t i = 0; status == TP_OK && i < s->cell_count; i++) {
        status = tp_cells_take(&s->cells[i], s->rows, out->children[i]);
    }
    s->rows = 0;
    if (status != TP_OK) {
        if (out->release != NULL) {
            out->release(out);
        }
        return no_memory(s);
    }
    return TP_OK;
}

static int error_number(tp_status status)
{
    return status == TP_ERR_NOMEM ? ENOMEM : status == TP_ERR_NOTFOUND ? ENOENT : EIO;
}

static int get_schema(struct ArrowArrayStream *self, struct ArrowSchema *out)
{
    stream *s = self->private_data;
    const tp_status status = tp_query_schema(s->query, out);
    if (status != TP_OK) {
        no_memory(s);
    }
    return status == TP_OK ? 0 : ENOMEM;
}

static int get_next(struct ArrowArrayStream *self, struct ArrowArray *out)
{
    stream *s = self->private_data;
    tp_status status = s->error.code < 0 ? s->error.code : TP_OK; /* after an error no more */
    *out = (struct ArrowArray){0};
    s->error.code = TP_OK;
    while (status == TP_OK && s->rows < s->query->options.batch_rows) {
        status = advance(s);
    }
    if ((status == TP_OK || status == TP_END) && s->rows > 0) {
        status = make_array(s, out);
    }
    s->error.code = status < 0 ? status : TP_OK;
    return status < 0 ? error_number(status) : 0;
}

static const char *get_last_error(struct ArrowArrayStream *self)
{
    stream *s = self->private_data;
    return s->error.code < 0 ? tp_error_format(&s->error, s->text, sizeof s->text) : NULL;
}

static void release_stream(struct ArrowArrayStream *self)
{
    stream *s = self->private_data;
    leave_journal(s);
    tp_merger_close(s->merger);
    tp_buf_free(&s->choices);
    for (uint32_t i = 0; i < s->cell_count; i++) {
        tp_cells_free(&s->cells[i]);
    }
    tp_free(s->cells);
    tp_query_drop(s->query);
    tp_free(s);
    self->release = NULL;
}

tp_status tp_query_stream(tp_query *query, struct ArrowArrayStream *out)
{
    const uint32_t count = column_count(query);
    stream *s = tp_calloc(1, sizeof *s);
    tp_cells *cells = tp_calloc(count, sizeof *cells);
    if (s == NULL || cells == NULL) {
        tp_free(s);
        tp_free(cells);
        return TP_ERR_NOMEM;
    }
    for (uint32_t i = 0; i < count; i++) {
        cells[i].column = columns_of(query)[i];
    }
    s->cells = cells;
    s->cell_count = count;
    s->query = tp_query_hold(query);
    s->source.directory = "";
    atomic_store_explicit(&query->damaged, 0, memory_order_relaxed);
    *out = (struct ArrowArrayStream){get_schema, get_next, get_last_error, release_stream, s};
    return TP_OK;
}
