#include "view/run.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "view/brief.h"
#include "view/causes.h"

#define ABNORMAL 65 /* a code: 16 log2(1 + 15.7 MADs) */
#define MIN_LOG (-149.0F)

tp_view_run *tp_view_run_new(const tp_run_info *info, const char *directory)
{
    tp_view_run *run = tp_calloc(1, sizeof *run);
    if (run == NULL) {
        return NULL;
    }
    memcpy(run->id, info->run_id, sizeof run->id);
    run->start_wall_ns = info->start_wall_ns;
    run->directory = tp_strdup(directory);
    run->wishes = tp_wishes_new();
    if (run->directory == NULL || run->wishes == NULL ||
        pthread_rwlock_init(&run->lock, NULL) != 0) {
        tp_wishes_free(run->wishes);
        tp_free(run->directory);
        tp_free(run);
        return NULL;
    }
    return run;
}

static void free_rank(tp_view_rank *rank)
{
    char **directories = (char **)(void *)rank->directories.data;
    for (size_t i = 0; i < rank->directories.size / sizeof *directories; i++) {
        tp_free(directories[i]);
    }
    tp_reader_close(&rank->reader);
    tp_grid_free(rank->grid);
    tp_brief_free(rank->brief);
    tp_view_incidents_free(rank);
    tp_buf *const bufs[] = {&rank->directories, &rank->columns, &rank->rows,    &rank->places,
                            &rank->baselines,   &rank->known,   &rank->touched, &rank->scalars};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) {
        tp_buf_free(bufs[i]);
    }
    tp_free(rank);
}

void tp_view_run_free(tp_view_run *run)
{
    for (uint32_t i = 0; i < tp_view_rank_count(run); i++) {
        free_rank(tp_view_rank_at(run, i));
    }
    tp_view_key *keys = (tp_view_key *)(void *)run->keys.data;
    for (uint32_t i = 0; i < tp_view_key_count(run); i++) {
        tp_free(keys[i].row);
        tp_free(keys[i].name);
        tp_free(keys[i].layer);
    }
    tp_buf_free(&run->keys);
    tp_buf_free(&run->ranks);
    tp_map_free(&run->by_name);
    tp_free(run->directory);
    tp_wishes_free(run->wishes);
    pthread_rwlock_destroy(&run->lock);
    tp_free(run);
}

uint32_t tp_view_rank_count(const tp_view_run *run)
{
    return (uint32_t)(run->ranks.size / sizeof(tp_view_rank *));
}

tp_view_rank *tp_view_rank_at(const tp_view_run *run, uint32_t index)
{
    return ((tp_view_rank **)(void *)run->ranks.data)[index];
}

tp_view_rank *tp_view_rank_find(const tp_view_run *run, uint32_t rank)
{
    for (uint32_t i = 0; i < tp_view_rank_count(run); i++) {
        if (tp_view_rank_at(run, i)->rank == rank) {
            return tp_view_rank_at(run, i);
        }
    }
    return NULL;
}

uint64_t tp_view_column_count(const tp_view_rank *rank)
{
    return rank->columns.size / sizeof(tp_view_column);
}

const tp_view_column *tp_view_column_at(const tp_view_rank *rank, uint64_t index)
{
    return (const tp_view_column *)(const void *)rank->columns.data + index;
}

const tp_view_column *tp_view_column_find(const tp_view_rank *rank, uint64_t step)
{
    for (uint64_t i = tp_view_column_count(rank); i-- > 0;) {
        if (tp_view_column_at(rank, i)->step == step) {
            return tp_view_column_at(rank, i);
        }
    }
    return NULL;
}

const tp_view_scalar *tp_view_scalar_at(const tp_view_rank *rank, uint32_t row, uint64_t column)
{
    const tp_view_scalar *all = (const tp_view_scalar *)(const void *)rank->scalars.data;
    const size_t count = rank->scalars.size / sizeof *all;
    size_t low = 0;
    for (size_t high = count; low < high;) {
        const size_t middle = low + (high - low) / 2;
        if (all[middle].column < column) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    while (low < count && all[low].column == column && all[low].row != row) {
        low++;
    }
    return low < count && all[low].column == column ? &all[low] : NULL;
}

bool tp_view_run_steps(const tp_view_run *run, uint64_t *first, uint64_t *last)
{
    *first = UINT64_MAX;
    *last = 0;
    for (uint32_t i = 0; i < tp_view_rank_count(run); i++) {
        const tp_view_rank *rank = tp_view_rank_at(run, i);
        const uint64_t count = tp_view_column_count(rank);
        if (count > 0) {
            const uint64_t begin = tp_view_column_at(rank, 0)->step;
            const uint64_t end = tp_view_column_at(rank, count - 1)->step;
            *first = begin < *first ? begin : *first;
            *last = end > *last ? end : *last;
        }
    }
    return *first != UINT64_MAX;
}

static tp_status add_directory(tp_view_rank *rank, const char *directory)
{
    char *copy = tp_strdup(directory);
    tp_buf_put(&rank->directories, &copy, sizeof copy);
    if (copy == NULL || rank->directories.failed) {
        tp_free(copy);
        return TP_ERR_NOMEM;
    }
    return TP_OK;
}

tp_status tp_view_run_add(tp_view_run *run, const tp_run_info *info, const char *directory,
                          tp_error *error)
{
    tp_view_rank *rank = tp_view_rank_find(run, info->rank);
    tp_status status = TP_OK;
    if (rank == NULL) {
        rank = tp_calloc(1, sizeof *rank);
        status = rank == NULL ? tp_fail(error, TP_ERR_NOMEM, "no memory for a rank")
                              : tp_grid_new(&rank->grid, error);
        if (status != TP_OK) {
            tp_free(rank);
            return status;
        }
        rank->rank = info->rank;
        pthread_rwlock_wrlock(&run->lock);
        /* In the order of their numbers. */
        uint32_t place = tp_view_rank_count(run);
        tp_buf_put(&run->ranks, &rank, sizeof rank);
        if (run->ranks.failed) {
            status = TP_ERR_NOMEM;
            free_rank(rank);
            rank = NULL;
        }
        tp_view_rank **all = (tp_view_rank **)(void *)run->ranks.data;
        for (; rank != NULL && place > 0 && all[place - 1]->rank > rank->rank; place--) {
            all[place] = all[place - 1];
            all[place - 1] = rank;
        }
        pthread_rwlock_unlock(&run->lock);
    }
    if (status == TP_OK) {
        pthread_rwlock_wrlock(&run->lock);
        status = add_directory(rank, directory);
        pthread_rwlock_unlock(&run->lock);
    }
    return status == TP_OK ? TP_OK : tp_fail(error, status, "no memory for a rank");
}

/* Room for the cells of a column, and baselines for all rows: those of rows that were taken from
 * digests begin with these. */
static tp_status begin_column(tp_view_rank *rank)
{
    const uint32_t rows = tp_grid_rows(rank->grid);
    const uint32_t before =
        (uint32_t)(rank->baselines.size / (TP_GRID_STATS * sizeof(tp_baseline)));
    if (before < rows) {
        const size_t size = (size_t)(rows - before) * TP_GRID_STATS * sizeof(tp_baseline);
        void *memory = tp_buf_extend(&rank->baselines, size);
        if (memory == NULL) {
            return TP_ERR_NOMEM;
        }
        memset(memory, 0, size);
    }
    if (before == 0 && rank->brief != NULL) {
        for (uint32_t stat = 0; stat < TP_GRID_STATS; stat++) {
            tp_brief_seed(rank, tp_grid_columns(rank->grid), stat, 0, rows,
                          (tp_baseline *)(void *)rank->baselines.data + stat, TP_GRID_STATS);
        }
    }
    return tp_grid_begin_column(rank->grid);
}

const tp_key *tp_view_reader_key(const tp_view_rank *rank, uint32_t key)
{
    return rank->definitions != NULL ? tp_definitions_key(rank->definitions, key)
                                     : tp_reader_key(rank->reader, key);
}

/* The row of a record; UINT32_MAX when its name was lost to damage. */
static tp_status find_row(tp_view_run *run, tp_view_rank *rank, const tp_record *record,
                          uint32_t *row)
{
    uint32_t *known = (uint32_t *)(void *)rank->known.data;
    if (record->call == 0 && record->key < rank->known.size / sizeof *known &&
        known[record->key] > 0) {
        *row = known[record->key] - 1;
        return TP_OK;
    }
    *row = UINT32_MAX;
    const tp_key *key = tp_view_reader_key(rank, record->key);
    if (key == NULL) {
        return TP_OK;
    }
    uint32_t number;
    tp_status status = tp_view_series_of(run, key, record->call, record->order, &number);
    if (status == TP_OK) {
        status = tp_view_add_row(rank, number, row);
    }
    if (status == TP_OK && record->call == 0 && record->key < 1U << 24) {
        while (rank->known.size / sizeof(uint32_t) <= record->key && !rank->known.failed) {
            tp_buf_put_u32(&rank->known, 0);
        }
        if (rank->known.failed) {
            return TP_ERR_NOMEM;
        }
        ((uint32_t *)(void *)rank->known.data)[record->key] = *row + 1;
    }
    return status;
}

float tp_view_scale(float value, uint32_t stat)
{
    if (stat == TP_GRID_NORM || stat == TP_GRID_MAX_ABS || stat == TP_GRID_STD) {
        return value > 0 ? fmaxf(log2f(value), MIN_LOG) : MIN_LOG;
    }
    return value;
}

bool tp_view_range(const tp_baseline *baseline, uint32_t stat, float *median, float *mad)
{
    const bool is_log = stat == TP_GRID_NORM || stat == TP_GRID_MAX_ABS || stat == TP_GRID_STD;
    /* What is small beside the tensor's own size isn't far: 5 % where it is a logarithm. */
    const float least = is_log ? 0.05F : stat == TP_GRID_ZEROS ? 0.005F : 1e-30F;
    return tp_baseline_range(baseline, least, is_log || stat == TP_GRID_ZEROS ? 0.0F : 0.05F,
                             median, mad);
}

bool tp_view_is_abnormal(tp_cell cell)
{
    return !tp_cell_is_none(cell) &&
           (!isfinite(cell.value) ||
            (cell.code != TP_CODE_UNKNOWN && (cell.code > ABNORMAL || cell.code < -ABNORMAL)));
}

tp_cell tp_view_settle(tp_baseline *baseline, uint32_t stat, float low, float high, uint32_t count)
{
    tp_cell cell = {high, TP_CODE_UNKNOWN};
    if (!isfinite(low) || !isfinite(high)) {
        cell.value = isfinite(high) ? low : high;
        return cell;
    }
    float median;
    float mad;
    float scaled = tp_view_scale(high, stat);
    float distance = (float)NAN;
    if (tp_view_range(baseline, stat, &median, &mad)) {
        distance = (scaled - median) / mad;
        const float lower = count > 1 ? tp_view_scale(low, stat) : scaled;
        if (fabsf(lower - median) > fabsf(scaled - median)) {
            scaled = lower;
            distance = (scaled - median) / mad;
            cell.value = low;
        }
    }
    cell.code = tp_code_of_distance(distance);
    tp_baseline_take(baseline, scaled, distance);
    return cell;
}

/* The records of a row in the step, as far as they have come: smallest and largest. */
typedef struct touched {
    uint32_t row;
    uint32_t count;
    float low[TP_GRID_STATS];
    float high[TP_GRID_STATS];
} touched;

static void widen(touched *row, const tp_stats *stats)
{
    float values[8];
    tp_digest_values(stats, values);
    for (uint32_t stat = 0; stat < TP_GRID_STATS; stat++) {
        const float value = values[stat];
        const bool first = row->count == 0;
        /* NaN is worse than anything, and stays. */
        row->low[stat] = first || isnan(value) || value < row->low[stat] ? value : row->low[stat];
        row->high[stat] =
            first || isnan(value) || value > row->high[stat] ? value : row->high[stat];
    }
    row->count++;
}

/* Puts a row's cells into the grid, and what they are into its baselines. Whether it is far from
 * normal: in its norm or its largest element, or because it isn't finite. */
static bool settle(tp_view_rank *rank, const touched *row)
{
    tp_baseline *baselines =
        (tp_baseline *)(void *)rank->baselines.data + (size_t)row->row * TP_GRID_STATS;
    bool is_abnormal = false;
    for (uint32_t stat = 0; stat < TP_GRID_STATS; stat++) {
        const tp_cell cell =
            tp_view_settle(&baselines[stat], stat, row->low[stat], row->high[stat], row->count);
        is_abnormal = is_abnormal || !isfinite(cell.value) ||
                      (stat <= TP_GRID_MAX_ABS && tp_view_is_abnormal(cell));
        tp_grid_set(rank->grid, row->row, stat, cell);
    }
    return is_abnormal;
}

/* Finds what is known of the row in this step. places: of each row among them, + 1. */
static touched *touch(tp_view_rank *rank, tp_buf *places, uint32_t row)
{
    while (places->size / sizeof(uint32_t) <= row && !places->failed) {
        tp_buf_put_u32(places, 0);
    }
    if (places->failed) {
        return NULL;
    }
    uint32_t *place = (uint32_t *)(void *)places->data + row;
    if (*place == 0) {
        const touched fresh = {.row = row};
        tp_buf_put(&rank->touched, &fresh, sizeof fresh);
        *place = (uint32_t)(rank->touched.size / sizeof fresh);
    }
    return rank->touched.failed ? NULL : (touched *)(void *)rank->touched.data + (*place - 1);
}

static tp_status take_records(tp_view_run *run, tp_view_rank *rank, const tp_batch *batch,
                              tp_view_column *column)
{
    tp_buf places = TP_BUF_INIT;
    tp_status status = TP_OK;
    double squares[TP_VIEW_QUANTITIES] = {0};
    tp_buf_clear(&rank->touched);
    for (uint64_t i = 0; i < batch->count && batch->records != NULL && status == TP_OK; i++) {
        const tp_record *record = &batch->records[i];
        uint32_t row;
        if (record->state != TP_SLOT_DONE || record->kind != TP_RECORD_STATS) {
            continue;
        }
        status = find_row(run, rank, record, &row);
        if (status != TP_OK || row == UINT32_MAX) {
            continue;
        }
        touched *one = touch(rank, &places, row);
        if (one == NULL) {
            status = TP_ERR_NOMEM;
            break;
        }
        widen(one, &record->u.stats);
        tp_view_key *key = (tp_view_key *)(void *)run->keys.data +
                           ((const uint32_t *)(const void *)rank->rows.data)[row];
        const double norm = tp_stats_norm(&record->u.stats);
        key->dtype = record->dtype;
        key->has |= record->flags;
        key->elements = record->u.stats.count;
        squares[key->quantity] += norm * norm;
    }
    status = status == TP_OK ? begin_column(rank) : status;
    const touched *rows = (const touched *)(const void *)rank->touched.data;
    const uint64_t count = rank->touched.size / sizeof *rows;
    for (uint64_t i = 0; i < count && status == TP_OK; i++) {
        const uint32_t key = ((const uint32_t *)(const void *)rank->rows.data)[rows[i].row];
        const uint32_t quantity = tp_view_key_at(run, key)->quantity;
        column->series[quantity]++;
        column->abnormal[quantity] += settle(rank, &rows[i]);
    }
    const uint32_t gradients =
        column->series[TP_GRAD_REDUCED] > 0 ? TP_GRAD_REDUCED : TP_GRAD_UNREDUCED;
    column->gradient = column->series[gradients] > 0 ? sqrt(squares[gradients]) : (double)NAN;
    tp_buf_free(&places);
    return status;
}

/* A later attempt began before the end of the one before it. */
static void pass_over(tp_view_rank *rank, uint64_t step)
{
    tp_view_column *columns = (tp_view_column *)(void *)rank->columns.data;
    for (uint64_t i = tp_view_column_count(rank); i-- > 0 && columns[i].step >= step;) {
        columns[i].is_over = true;
    }
}

tp_status tp_view_add_column(tp_view_rank *rank, const tp_view_column *column)
{
    pass_over(rank, column->step);
    tp_buf_put(&rank->columns, column, sizeof *column);
    return rank->columns.failed ? TP_ERR_NOMEM : TP_OK;
}

static tp_status take_batch(tp_view_run *run, tp_view_rank *rank, const tp_batch *batch,
                            tp_position position)
{
    tp_view_column column = {.step = batch->step,
                             .position = position,
                             .journal = rank->journal,
                             .flags = batch->flags,
                             .begin_ns = batch->begin_ns,
                             .end_ns = batch->end_ns,
                             .wall_ns = batch->wall_ns,
                             .hook_ns = batch->hook_ns,
                             .writer_ns = batch->writer_ns,
                             .wait_ns = batch->wait_ns,
                             .errors = batch->errors,
                             .records = batch->count,
                             .bytes = batch->bytes,
                             .leaves_out = batch->left_out != 0,
                             .gradient = (double)NAN};
    tp_error error = {0};
    tp_status status = take_records(run, rank, batch, &column);
    if (status == TP_OK && tp_grid_end_column(rank->grid, &error) != TP_OK) {
        snprintf(run->trouble, sizeof run->trouble, "%.250s", error.message);
    }
    if (status == TP_OK) {
        status = tp_view_add_column(rank, &column);
    }
    rank->closed = false;
    rank->micro_steps = batch->micro_steps;
    rank->pp_stage = batch->pp_stage;
    return status;
}

/* Opens the next journal of the rank; false: there is none. */
static bool open_next(tp_view_rank *rank)
{
    const uint32_t next = rank->journal + (rank->reader != NULL);
    char *const *directories = (char *const *)(const void *)rank->directories.data;
    tp_reader *reader = NULL;
    if (next >= rank->directories.size / sizeof *directories ||
        tp_reader_open(&reader, directories[next], NULL) != TP_OK) {
        return false;
    }
    tp_reader_close(&rank->reader);
    rank->reader = reader;
    rank->journal = next;
    rank->position = (tp_position){0};
    tp_buf_clear(&rank->known);
    return true;
}

static tp_status advance_rank(tp_view_run *run, tp_view_rank *rank, bool *more)
{
    tp_item item;
    if (rank->reader == NULL) {
        if (!open_next(rank)) {
            return TP_OK;
        }
        const tp_status status = tp_brief_open(run, rank);
        if (status != TP_OK || rank->brief != NULL) {
            *more = true;
            return status;
        }
    }
    if (tp_brief_advance(run, rank)) {
        *more = true;
        return TP_OK;
    }
    for (;;) {
        const tp_position before = rank->position;
        tp_status status = tp_reader_next(rank->reader, &item, NULL);
        if (status == TP_END && open_next(rank)) {
            continue;
        }
        if (status == TP_ERR_CORRUPT) {
            rank->damaged = true;
            continue;
        }
        if (status != TP_OK) {
            return status == TP_END ? TP_OK : status;
        }
        if (item.position.segment != before.segment) {
            tp_buf_clear(&rank->known); /* ids are of a segment */
        }
        rank->position = item.position;
        pthread_rwlock_wrlock(&run->lock);
        if (item.type == TP_ITEM_BATCH) {
            status = take_batch(run, rank, &item.batch, before);
        } else if (item.type == TP_ITEM_ALERTS) {
            status = tp_view_take_alerts(run, rank, &item.batch);
        } else {
            rank->closed = item.type == TP_ITEM_CLOSE;
        }
        run->version++;
        pthread_rwlock_unlock(&run->lock);
        if (status != TP_OK || item.type == TP_ITEM_BATCH) {
            *more = true;
            return status;
        }
    }
}

tp_status tp_view_run_advance(tp_view_run *run, bool *more)
{
    tp_status status = TP_OK;
    *more = tp_wishes_grant(run);
    for (uint32_t i = 0; i < tp_view_rank_count(run) && status == TP_OK; i++) {
        status = advance_rank(run, tp_view_rank_at(run, i), more);
    }
    return status;
}
