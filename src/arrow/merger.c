#include "arrow/merger.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"

/* A rank's journal, and the batch that is its next. */
typedef struct source {
    const char *directory;
    tp_reader *reader;
    tp_item item;
    bool has_batch;
} source;

/* A whole parameter in one step, as far as its parts have come. */
typedef struct whole {
    tp_key key; /* strings are a reader's */
    tp_record record;
    tp_merged merged;
} whole;

/* A part as its first copy has it. */
typedef struct part {
    tp_stats stats;
    uint32_t rank;
} part;

struct tp_merger {
    tp_merger_options options;
    source *sources; /* of all runs, opened by and by */
    tp_run_info run; /* the one that is being read */
    bool *done;      /* for each directory */
    bool in_run;
    bool new_run;
    tp_map names; /* what a whole is of → its place */
    tp_map spans; /* likewise, and of which part → its place: copies are left out */
    tp_buf parts;
    tp_buf wholes;
    tp_buf rows;
    tp_buf scratch;
    uint64_t damaged;
};

tp_status tp_merger_open(tp_merger **out, const tp_merger_options *options, tp_error *error)
{
    tp_merger *made = tp_calloc(1, sizeof *made);
    const size_t count = options->directory_count == 0 ? 1 : options->directory_count;
    if (made != NULL) {
        made->options = *options;
        made->sources = tp_calloc(count, sizeof *made->sources);
        made->done = tp_calloc(count, sizeof *made->done);
    }
    if (made == NULL || made->sources == NULL || made->done == NULL) {
        tp_merger_close(made);
        return tp_fail(error, TP_ERR_NOMEM, "no memory to put parts together");
    }
    *out = made;
    return TP_OK;
}

static void close_sources(tp_merger *m)
{
    for (uint32_t i = 0; i < m->options.directory_count; i++) {
        tp_reader_close(&m->sources[i].reader);
    }
}

void tp_merger_close(tp_merger *merger)
{
    if (merger == NULL) {
        return;
    }
    if (merger->sources != NULL) {
        close_sources(merger);
    }
    tp_map_free(&merger->names);
    tp_map_free(&merger->spans);
    tp_buf_free(&merger->parts);
    tp_buf_free(&merger->wholes);
    tp_buf_free(&merger->rows);
    tp_buf_free(&merger->scratch);
    tp_free(merger->sources);
    tp_free(merger->done);
    tp_free(merger);
}

/* Goes to the next batch of one rank, if it has one. */
static tp_status step_on(tp_merger *m, source *from, tp_error *error)
{
    from->has_batch = false;
    for (;;) {
        const tp_status status = tp_reader_next(from->reader, &from->item, error);
        if (status == TP_ERR_CORRUPT) {
            m->damaged++;
            continue;
        }
        if (status != TP_OK) {
            return status == TP_END ? TP_OK : status;
        }
        if (from->item.type == TP_ITEM_BATCH && from->item.batch.records != NULL) {
            from->has_batch = true;
            return TP_OK;
        }
    }
}

/* Opens one journal if it is of this run (of any, when none has been chosen). */
static tp_status open_source(tp_merger *m, uint32_t number, bool *chosen, tp_error *error)
{
    source *from = &m->sources[number];
    from->directory = m->options.directories[number];
    tp_status status = tp_reader_open(&from->reader, from->directory, error);
    if (status != TP_OK) {
        return status;
    }
    const tp_run_info *run = tp_reader_run(from->reader);
    if (!*chosen) {
        m->run = *run;
        *chosen = true;
    }
    if (strcmp(m->run.run_id, run->run_id) != 0) {
        tp_reader_close(&from->reader);
        return TP_OK;
    }
    m->done[number] = true;
    if (!tp_list_has_rank(m->options.ranks, m->options.rank_count, run->rank)) {
        tp_reader_close(&from->reader);
        return TP_OK;
    }
    tp_reader_limit(from->reader, m->options.first_step, m->options.last_step, false);
    return step_on(m, from, error);
}

/* TP_END: there is no run any more. */
static tp_status open_run(tp_merger *m, tp_error *error)
{
    bool chosen = false;
    close_sources(m);
    for (uint32_t i = 0; i < m->options.directory_count; i++) {
        const tp_status status = m->done[i] ? TP_OK : open_source(m, i, &chosen, error);
        if (status != TP_OK) {
            return status;
        }
    }
    m->in_run = chosen;
    m->new_run = true;
    return chosen ? TP_OK : TP_END;
}

static bool is_before(const tp_batch *a, const tp_batch *b)
{
    return a->attempt != b->attempt ? a->attempt < b->attempt : a->step < b->step;
}

/* Which rank's batch comes first; NULL: none has one. */
static const source *first_source(const tp_merger *m)
{
    const source *first = NULL;
    for (uint32_t i = 0; i < m->options.directory_count; i++) {
        const source *one = &m->sources[i];
        if (one->reader != NULL && one->has_batch &&
            (first == NULL || is_before(&one->item.batch, &first->item.batch))) {
            first = one;
        }
    }
    return first;
}

bool tp_merger_takes(uint32_t quantity)
{
    switch (quantity) {
    case TP_GRAD_REDUCED:
    case TP_PARAM_ORIGIN:
    case TP_PARAM_UPDATED:
    case TP_EXP_AVG:
    case TP_EXP_AVG_SQ:
    case TP_ADAM_UPDATE:
    case TP_ADAM_RATIO:
        return true;
    default:
        return false;
    }
}

/* Damaged ranges may be of any size: unsigned numbers may overflow. */
static uint64_t whole_elements(const tp_span *span)
{
    uint64_t product = 1;
    for (uint32_t i = 0; i < span->ndim; i++) {
        product *= (uint64_t)span->ranges[i].full;
    }
    return product;
}

/* The whole that the record is a part of; NULL: memory ran out. */
static whole *find_whole(tp_merger *m, const tp_key *key, const tp_record *record)
{
    tp_buf *name = &m->scratch;
    tp_buf_clear(name);
    tp_buf_put_u32(name, key->quantity);
    tp_buf_put_u32(name, (uint32_t)key->vpp_stage);
    tp_buf_put_u32(name, record->micro_step);
    tp_buf_put(name, key->global_name, strlen(key->global_name) + 1);
    uint32_t place = 0;
    if (name->failed) {
        return NULL;
    }
    if (tp_map_get(&m->names, name->data, name->size, &place) != TP_OK) {
        const whole made = {.key = *key, .record = *record};
        place = (uint32_t)(m->wholes.size / sizeof made);
        tp_buf_put(&m->wholes, &made, sizeof made);
        if (m->wholes.failed || tp_map_set(&m->names, name->data, name->size, place) != TP_OK) {
            return NULL;
        }
        whole *at = (whole *)(void *)m->wholes.data + place;
        at->record.u.stats.count = 0;
        at->merged.missing =
            (int64_t)(key->span == NULL || key->span->ndim == 0 ? record->u.stats.count
                                                                : whole_elements(key->span));
    }
    return (whole *)(void *)m->wholes.data + place;
}

/* Copies have the same elements, and so the same bits of everything. */
static void compare_copy(const tp_merger *m, whole *into, uint32_t place, uint32_t rank,
                         const tp_record *record)
{
    const part *first = (const part *)(const void *)m->parts.data + place;
    if (first->rank == rank || memcmp(&first->stats, &record->u.stats, sizeof first->stats) == 0) {
        return;
    }
    if (into->merged.different++ == 0) {
        into->merged.other = rank;
        into->merged.first = first->rank;
    }
}

static tp_status add_record(tp_merger *m, const tp_key *key, uint32_t rank, const tp_record *record)
{
    whole *into = find_whole(m, key, record);
    uint32_t place = 0;
    if (into == NULL) {
        return TP_ERR_NOMEM;
    }
    if (key->span != NULL && key->span->ndim > 0) {
        tp_buf_put(&m->scratch, key->span->ranges, key->span->ndim * sizeof(tp_range));
    }
    if (m->scratch.failed) {
        return TP_ERR_NOMEM;
    }
    into->merged.records++;
    if (tp_map_get(&m->spans, m->scratch.data, m->scratch.size, &place) == TP_OK) {
        if (key->span != NULL && key->span->copies > 1) {
            compare_copy(m, into, place, rank, record);
        }
        return TP_OK; /* a copy of what has been added */
    }
    const part first = {record->u.stats, rank};
    place = (uint32_t)(m->parts.size / sizeof first);
    tp_buf_put(&m->parts, &first, sizeof first);
    if (m->parts.failed ||
        tp_map_set(&m->spans, m->scratch.data, m->scratch.size, place) != TP_OK) {
        return TP_ERR_NOMEM;
    }
    tp_stats_merge(&into->record.u.stats, &record->u.stats);
    into->merged.parts++;
    into->merged.missing = (int64_t)((uint64_t)into->merged.missing - record->u.stats.count);
    return TP_OK;
}

static tp_status add_batch(tp_merger *m, const source *from)
{
    const tp_batch *batch = &from->item.batch;
    tp_status status = TP_OK;
    for (uint64_t i = 0; status == TP_OK && i < batch->count; i++) {
        const tp_record *record = &batch->records[i];
        const tp_key *key = tp_reader_key(from->reader, record->key);
        if (key != NULL && record->kind == TP_RECORD_STATS && record->state == TP_SLOT_DONE &&
            tp_merger_takes(key->quantity) && tp_selection_has_key(&m->options.selection, key) &&
            tp_selection_has_record(&m->options.selection, record)) {
            status = add_record(m, key, batch->rank, record);
        }
    }
    return status;
}

static tp_status make_rows(tp_merger *m)
{
    const whole *all = (const whole *)(const void *)m->wholes.data;
    for (size_t i = 0; i < m->wholes.size / sizeof *all; i++) {
        const tp_row row = {.key = &all[i].key, .record = &all[i].record, .merged = &all[i].merged};
        tp_buf_put(&m->rows, &row, sizeof row);
    }
    return m->rows.failed ? TP_ERR_NOMEM : TP_OK;
}

/* All ranks' batches of the step that comes first. */
static tp_status merge_step(tp_merger *m, const source *first, tp_merged_step *out, tp_error *error)
{
    const tp_batch at = first->item.batch;
    out->source = (tp_row_source){.directory = first->directory, .run = &m->run};
    for (uint32_t i = 0; i < m->options.directory_count; i++) {
        source *from = &m->sources[i];
        if (from->reader == NULL || !from->has_batch || from->item.batch.step != at.step ||
            from->item.batch.attempt != at.attempt) {
            continue;
        }
        tp_status status = add_batch(m, from);
        if (status != TP_OK) {
            return tp_fail(error, status, "no memory to put parts together");
        }
    }
    return make_rows(m) == TP_OK ? TP_OK
                                 : tp_fail(error, TP_ERR_NOMEM, "no memory to put parts together");
}

static tp_status leave_step(tp_merger *m, const tp_batch *at, tp_error *error)
{
    for (uint32_t i = 0; i < m->options.directory_count; i++) {
        source *from = &m->sources[i];
        if (from->reader != NULL && from->has_batch && !is_before(at, &from->item.batch)) {
            const tp_status status = step_on(m, from, error);
            if (status != TP_OK) {
                return status;
            }
        }
    }
    return TP_OK;
}

tp_status tp_merger_next(tp_merger *merger, tp_merged_step *out, tp_error *error)
{
    /* What was handed out last is read on the caller's side until now. */
    const source *first = merger->in_run ? first_source(merger) : NULL;
    if (first != NULL && merger->rows.size > 0) {
        const tp_batch at = first->item.batch;
        const tp_status status = leave_step(merger, &at, error);
        if (status != TP_OK) {
            return status;
        }
        first = first_source(merger);
    }
    tp_map_free(&merger->names);
    tp_map_free(&merger->spans);
    tp_buf_clear(&merger->parts);
    tp_buf_clear(&merger->wholes);
    tp_buf_clear(&merger->rows);
    *out = (tp_merged_step){.count = 0};
    for (;;) {
        while (first == NULL) {
            const tp_status status = open_run(merger, error);
            if (status != TP_OK) {
                return status;
            }
            first = first_source(merger);
        }
        const tp_status status = merge_step(merger, first, out, error);
        if (status != TP_OK) {
            return status;
        }
        out->source.batch = &first->item.batch;
        out->source.reader = first->reader;
        if (merger->rows.size > 0) {
            break;
        }
        const tp_batch at = first->item.batch;
        const tp_status left = leave_step(merger, &at, error);
        if (left != TP_OK) {
            return left;
        }
        first = first_source(merger);
    }
    out->rows = (const tp_row *)(const void *)merger->rows.data;
    out->count = merger->rows.size / sizeof(tp_row);
    out->damaged = merger->damaged;
    out->new_run = merger->new_run;
    merger->damaged = 0;
    merger->new_run = false;
    return TP_OK;
}
