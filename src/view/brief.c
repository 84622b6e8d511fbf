#include "view/brief_parts.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "journal/attempts.h"
#include "journal/records.h"
#include "view/causes.h"

#define MOST_MADE ((size_t)128 << 20) /* of digests that are made, values in memory */

void tp_brief_free(tp_brief *brief)
{
    if (brief == NULL) {
        return;
    }
    for (uint32_t i = 0; i < brief->vocabularies.size / sizeof(tp_vocabulary); i++) {
        tp_buf_free(&tp_vocabulary_at(brief, i)->rows);
        tp_buf_free(&tp_vocabulary_at(brief, i)->known);
        tp_map_free(&tp_vocabulary_at(brief, i)->calls);
    }
    for (uint32_t i = 0; i < tp_brief_segment_count(brief); i++) {
        tp_buf_free(&tp_brief_segment_at(brief, i)->made_spans);
        tp_buf_free(&tp_brief_segment_at(brief, i)->made_values);
    }
    tp_buf *const bufs[] = {&brief->segments,  &brief->vocabularies, &brief->values,
                            &brief->baselines, &brief->cells,        &brief->far};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) {
        tp_buf_free(bufs[i]);
    }
    tp_segment_close(&brief->file);
    tp_index_free(&brief->index);
    tp_digest_free(&brief->digest);
    tp_definitions_free(&brief->definitions);
    tp_free(brief);
}

/* The folder of the rank's first journal, and whether it is large. */
static bool is_large(const tp_view_rank *rank, char folder[TP_PATH_MAX], uint64_t *first,
                     uint64_t *last)
{
    const char *directory = *(char *const *)(const void *)rank->directories.data;
    char path[TP_PATH_MAX];
    struct stat info;
    uint64_t bytes = 0;
    if (tp_path_join(folder, directory, "journal") != TP_OK) {
        return false;
    }
    if (tp_segment_find(folder, 0, first, last) != TP_OK) {
        snprintf(folder, TP_PATH_MAX, "%s", directory);
        if (tp_segment_find(folder, 0, first, last) != TP_OK) {
            return false;
        }
    }
    for (uint64_t i = *first; i <= *last && bytes < TP_BRIEF_LEAST_BYTES; i++) {
        if (tp_segment_path(path, folder, i) == TP_OK && stat(path, &info) == 0) {
            bytes += (uint64_t)info.st_size;
        }
    }
    return bytes >= TP_BRIEF_LEAST_BYTES;
}

/* Where the parts of a segment's digest lie; false: it has none that is whole. */
static bool find_parts(const tp_index *index, uint64_t offsets[TP_BRIEF_PARTS])
{
    uint32_t found = 0;
    for (uint64_t i = 0; i < tp_index_count(index); i++) {
        const tp_index_entry *entry = tp_index_at(index, i);
        if (entry->type == TP_FRAME_DIGEST && entry->level < TP_BRIEF_PARTS) {
            offsets[entry->level] = entry->offset;
            found |= 1U << entry->level;
        }
    }
    return found == (1U << TP_BRIEF_PARTS) - 1;
}

/* Opens a segment and reads what its digest says of steps. false: it is read step by step, as are
 * those behind it. */
static bool open_segment(tp_brief *brief, tp_brief_segment *one, const tp_attempts *attempts)
{
    tp_run_info info;
    uint32_t header = 0;
    if (tp_segment_open(&brief->file, brief->folder, one->number) != TP_OK ||
        tp_file_read_at(brief->file.fd, brief->file.path, 0, TP_SEGMENT_HEADER_MAX,
                        &brief->file.stored, NULL) != TP_OK ||
        tp_segment_header_get(brief->file.stored.data, brief->file.stored.size, &info, &header) !=
            TP_OK) {
        return false;
    }
    tp_index_load(&brief->index, &brief->file);
    brief->attempt = info.attempt;
    return find_parts(&brief->index, one->offsets) &&
           /* of steps that a later attempt has repeated, a digest speaks, too */
           brief->index.last_step < tp_attempts_end(attempts, info.attempt) &&
           tp_segment_read(&brief->file, one->offsets[TP_DIGEST_OF_STEPS], TP_FRAME_DIGEST) &&
           tp_digest_get_steps(&brief->file.payload, &brief->digest) == TP_OK;
}

static tp_status read_definitions(tp_brief *brief)
{
    tp_status status = TP_OK;
    tp_definitions_begin(&brief->definitions);
    for (uint64_t i = 0; i < tp_index_count(&brief->index) && status != TP_ERR_NOMEM; i++) {
        const tp_index_entry *entry = tp_index_at(&brief->index, i);
        if (entry->type == TP_FRAME_DEFINITIONS &&
            tp_segment_read(&brief->file, entry->offset, TP_FRAME_DEFINITIONS)) {
            status = tp_definitions_get(&brief->definitions, &brief->file.payload);
        }
    }
    return status == TP_ERR_NOMEM ? status : TP_OK; /* names that are lost are passed over */
}

static tp_status know_row(tp_vocabulary *words, const tp_digest_row *row, uint32_t place)
{
    const uint32_t name[2] = {row->key, row->call};
    if (row->call > 0) {
        return tp_map_set(&words->calls, name, sizeof name, place + 1);
    }
    while (words->known.size / sizeof(uint32_t) <= row->key && !words->known.failed) {
        tp_buf_put_u32(&words->known, 0);
    }
    if (words->known.failed) {
        return TP_ERR_NOMEM;
    }
    ((uint32_t *)(void *)words->known.data)[row->key] = place + 1;
    return TP_OK;
}

tp_status tp_brief_begin_vocabulary(tp_brief *brief)
{
    tp_vocabulary *words = tp_buf_extend(&brief->vocabularies, sizeof *words);
    if (words != NULL) {
        *words = (tp_vocabulary){.calls = TP_MAP_INIT};
    }
    return words != NULL ? TP_OK : TP_ERR_NOMEM;
}

tp_status tp_brief_add_row(tp_view_run *run, tp_view_rank *rank, const tp_digest_row *row,
                           const tp_key *key)
{
    tp_brief *brief = rank->brief;
    tp_vocabulary *words =
        tp_vocabulary_at(brief, (uint32_t)(brief->vocabularies.size / sizeof(tp_vocabulary)) - 1);
    tp_status status = TP_OK;
    uint32_t number;
    uint32_t place = UINT32_MAX;
    if (key != NULL) {
        status = tp_view_series_of(run, key, row->call, row->order, &number);
        status = status == TP_OK ? tp_view_add_row(rank, number, &place) : status;
        status = status == TP_OK ? know_row(words, row, place) : status;
        if (status == TP_OK) {
            tp_view_key *series = (tp_view_key *)(void *)run->keys.data + number;
            series->dtype = row->dtype;
            series->elements = row->elements;
        }
    }
    tp_buf_put_u32(&words->rows, place);
    return words->rows.failed ? TP_ERR_NOMEM : status;
}

/* Rows that were not in the segment before. */
static tp_status add_vocabulary(tp_view_run *run, tp_view_rank *rank, const tp_brief_segment *one)
{
    tp_brief *brief = rank->brief;
    tp_buf rows = TP_BUF_INIT;
    tp_status status = tp_brief_begin_vocabulary(brief);
    status = status == TP_OK ? read_definitions(brief) : status;
    if (status == TP_OK) {
        status = tp_segment_read(&brief->file, one->offsets[TP_DIGEST_OF_ROWS], TP_FRAME_DIGEST)
                     ? tp_digest_get_rows(&brief->file.payload, &brief->digest, &rows)
                     : TP_ERR_CORRUPT;
    }
    for (uint32_t i = 0; i < brief->digest.rows && status == TP_OK; i++) {
        const tp_digest_row *row = (const tp_digest_row *)(const void *)rows.data + i;
        status = tp_brief_add_row(
            run, rank, row,
            row->key < 1U << 24 ? tp_definitions_key(&brief->definitions, row->key) : NULL);
    }
    tp_buf_free(&rows);
    return status;
}

static tp_status take_alerts(tp_view_run *run, tp_view_rank *rank, uint64_t step)
{
    tp_brief *brief = rank->brief;
    tp_buf records = TP_BUF_INIT;
    tp_status status = TP_OK;
    for (uint64_t i = 0; i < tp_index_count(&brief->index) && status != TP_ERR_NOMEM; i++) {
        const tp_index_entry *entry = tp_index_at(&brief->index, i);
        tp_batch batch = {.step = step, .rank = rank->rank, .attempt = brief->attempt};
        if (entry->type == TP_FRAME_ALERTS && entry->step == step &&
            tp_segment_read(&brief->file, entry->offset, TP_FRAME_ALERTS) &&
            tp_records_get_alerts(&brief->file.payload, &batch, &records) == TP_OK) {
            rank->definitions = &brief->definitions;
            status = tp_view_take_alerts(run, rank, &batch);
            rank->definitions = NULL;
        }
    }
    tp_buf_free(&records);
    return status == TP_ERR_NOMEM ? status : TP_OK;
}

static bool has_alerts(const tp_index *index)
{
    bool has = false;
    for (uint64_t i = 0; i < tp_index_count(index) && !has; i++) {
        has = tp_index_at(index, i)->type == TP_FRAME_ALERTS;
    }
    return has;
}

tp_status tp_brief_add_step(tp_view_rank *rank, uint64_t segment, const tp_digest_step *step)
{
    const tp_view_column column = {.step = step->step,
                                   .position = {segment, step->offset},
                                   .flags = step->flags,
                                   .begin_ns = step->begin_ns,
                                   .end_ns = step->end_ns,
                                   .wall_ns = step->wall_ns,
                                   .hook_ns = step->hook_ns,
                                   .writer_ns = step->writer_ns,
                                   .wait_ns = step->wait_ns,
                                   .errors = step->errors,
                                   .records = step->records,
                                   .gradient = step->gradient};
    rank->micro_steps = step->micro_steps;
    rank->pp_stage = step->pp_stage;
    return tp_view_add_column(rank, &column);
}

tp_status tp_brief_add_segment(tp_view_rank *rank, tp_brief_segment *one, const tp_buf *spans,
                               const tp_buf *scalars)
{
    tp_brief *brief = rank->brief;
    const tp_digest_span *span = (const tp_digest_span *)(const void *)spans->data;
    const tp_digest_scalar *scalar = (const tp_digest_scalar *)(const void *)scalars->data;
    const uint32_t *rows =
        (const uint32_t *)(const void *)tp_vocabulary_at(brief, one->vocabulary)->rows.data;
    tp_status status = TP_OK;
    one->spans = (uint32_t)(spans->size / sizeof *span);
    one->column = tp_grid_columns(rank->grid);
    one->block = tp_grid_find(rank->grid, one->column).block;
    for (size_t i = 0; i < scalars->size / sizeof *scalar; i++) {
        const tp_view_scalar logged = {one->column + scalar[i].step, rows[scalar[i].row],
                                       scalar[i].value};
        tp_buf_put(&rank->scalars, &logged, sizeof logged);
    }
    for (uint32_t i = 0; i < one->spans && status == TP_OK; i++) {
        status = tp_grid_add_brief(rank->grid, span[i].steps);
    }
    tp_buf_put(&brief->segments, one, sizeof *one);
    return brief->segments.failed || rank->scalars.failed ? TP_ERR_NOMEM : status;
}

/* The steps of a segment, with their alerts. */
static tp_status take_steps(tp_view_run *run, tp_view_rank *rank, const tp_brief_segment *one)
{
    tp_brief *brief = rank->brief;
    const uint64_t count = brief->digest.steps.size / sizeof(tp_digest_step);
    const bool alerts = has_alerts(&brief->index);
    tp_status status = TP_OK;
    for (uint64_t i = 0; i < count && status == TP_OK; i++) {
        const tp_digest_step *step =
            (const tp_digest_step *)(const void *)brief->digest.steps.data + i;
        status = tp_brief_add_step(rank, one->number, step);
        if (alerts && status == TP_OK) {
            status = take_alerts(run, rank, step->step);
        }
    }
    return status;
}

static tp_status take_segment(tp_view_run *run, tp_view_rank *rank, tp_brief_segment *one)
{
    tp_brief *brief = rank->brief;
    const uint32_t count = tp_brief_segment_count(brief);
    const tp_brief_segment *before = count > 0 ? tp_brief_segment_at(brief, count - 1) : NULL;
    tp_status status = TP_OK;
    one->rows = brief->digest.rows;
    if (before == NULL || before->is_made || brief->digest.rows_crc != brief->rows_crc ||
        brief->digest.rows != before->rows) {
        status = add_vocabulary(run, rank, one);
        brief->rows_crc = brief->digest.rows_crc;
    }
    one->vocabulary = (uint32_t)(brief->vocabularies.size / sizeof(tp_vocabulary)) - 1;
    status = status == TP_OK ? take_steps(run, rank, one) : status;
    return status == TP_OK
               ? tp_brief_add_segment(rank, one, &brief->digest.spans, &brief->digest.scalars)
               : status;
}

/* Leaves the reader at the segment that is read step by step; behind the last one: at its end. */
static tp_status go_behind(tp_view_run *run, tp_view_rank *rank, uint64_t number, uint64_t last)
{
    tp_brief *brief = rank->brief;
    tp_error error = {0};
    rank->position = (tp_position){number, 0};
    if (number > last) {
        if (tp_segment_open(&brief->file, brief->folder, last) != TP_OK) {
            return TP_ERR_IO;
        }
        const uint64_t end = brief->file.size;
        rank->closed = tp_segment_read(
            &brief->file, end - TP_FRAME_HEADER_SIZE - TP_FRAME_TRAILER_SIZE, TP_FRAME_CLOSE);
        rank->position = (tp_position){last, end};
    }
    const tp_status status = tp_reader_seek(rank->reader, rank->position, &error);
    if (status != TP_OK) {
        snprintf(run->trouble, sizeof run->trouble, "%.250s", error.message);
    }
    return status;
}

tp_status tp_brief_open(tp_view_run *run, tp_view_rank *rank)
{
    tp_attempts attempts = {.items = TP_BUF_INIT};
    uint64_t number;
    uint64_t last;
    char folder[TP_PATH_MAX];
    if (rank->journal != 0 || tp_view_column_count(rank) > 0 ||
        !is_large(rank, folder, &number, &last)) {
        return TP_OK;
    }
    tp_brief *brief = tp_calloc(1, sizeof *brief);
    if (brief == NULL) {
        return TP_ERR_NOMEM;
    }
    brief->file.fd = -1;
    brief->stat = TP_BRIEF_NO_STAT;
    memcpy(brief->folder, folder, sizeof folder);
    pthread_rwlock_wrlock(&run->lock);
    rank->brief = brief;
    pthread_rwlock_unlock(&run->lock);
    tp_status status = tp_attempts_load(&attempts, folder);
    for (; number <= last && status == TP_OK; number++) {
        tp_brief_segment one = {.number = number};
        char path[TP_PATH_MAX];
        if (tp_segment_path(path, folder, number) == TP_OK && !tp_file_has(path, 0)) {
            continue;
        }
        if (open_segment(brief, &one, &attempts)) {
            pthread_rwlock_wrlock(&run->lock);
            status = take_segment(run, rank, &one);
            run->version++;
            pthread_rwlock_unlock(&run->lock);
        } else if (number < last && brief->made < MOST_MADE) {
            status = tp_brief_make(run, rank, &one);
        } else {
            break; /* it may be growing, or there are too many */
        }
    }
    tp_attempts_free(&attempts);
    status = status == TP_OK ? go_behind(run, rank, number, last) : status;
    pthread_rwlock_wrlock(&run->lock);
    /* Steps of a segment that wasn't taken in to its end have no place. */
    rank->columns.size = (size_t)tp_grid_columns(rank->grid) * sizeof(tp_view_column);
    if (tp_brief_segment_count(brief) == 0) {
        rank->brief = NULL;
        tp_brief_free(brief);
    }
    pthread_rwlock_unlock(&run->lock);
    return status;
}

uint32_t tp_brief_segment_of(const tp_brief *brief, uint64_t column)
{
    uint32_t low = 0;
    for (uint32_t high = tp_brief_segment_count(brief) - 1; low < high;) {
        const uint32_t middle = low + (high - low + 1) / 2;
        if (tp_brief_segment_at(brief, middle)->column <= column) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

const char *tp_brief_folder(const tp_brief *brief)
{
    return brief->folder;
}

uint32_t tp_brief_row_of(const tp_brief *brief, uint32_t segment, const tp_record *record)
{
    const tp_vocabulary *words =
        tp_vocabulary_at(brief, tp_brief_segment_at(brief, segment)->vocabulary);
    const uint32_t name[2] = {record->key, record->call};
    uint32_t row = 0;
    if (record->call > 0) {
        (void)tp_map_get(&words->calls, name, sizeof name, &row);
    } else if (record->key < words->known.size / sizeof row) {
        row = ((const uint32_t *)(const void *)words->known.data)[record->key];
    }
    return row - 1;
}
