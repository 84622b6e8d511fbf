/* One cell in full, and the worst of the latest step. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "view/brief.h"
#include "view/lines.h"

#define WARM_UP 160 /* columns before, of which the normal range is made */

typedef struct search {
    const tp_view_run *run;
    const tp_lines *lines;
    uint32_t stat;
    uint64_t from;
    uint64_t to;
    tp_grid_view view;
    tp_spot best;    /* rank NULL: none yet */
    bool is_summary; /* of a block whose columns have not been told apart */
} search;

static bool is_in(const search *in, const tp_view_rank *rank, uint64_t column)
{
    const tp_view_column *at = tp_view_column_at(rank, column);
    return !at->is_over && at->step >= in->from && at->step <= in->to;
}

static bool is_whole(const search *in, const tp_view_rank *rank, tp_grid_place place)
{
    bool whole = place.is_full;
    for (uint32_t k = 0; k < place.width && whole; k++) {
        whole = is_in(in, rank, place.first + k);
    }
    return whole;
}

/* Looks at the cells of rows first … in a block, or at the worst one of each row. */
static void look_at(search *in, const tp_view_rank *rank, tp_grid_place place, uint32_t first,
                    uint32_t count, bool summary)
{
    const uint32_t *keys = (const uint32_t *)(const void *)rank->rows.data;
    const uint64_t columns = tp_view_column_count(rank);
    if (!summary && place.is_brief) {
        const tp_wish wish = {rank->rank, in->stat, first, count, place.first, place.first};
        tp_wishes_read(in->run, &wish);
    }
    if (tp_grid_read(rank->grid, place.block, in->stat, first, count, summary, &in->view, NULL) !=
        TP_OK) {
        return;
    }
    for (uint32_t i = 0; i < in->view.count; i++) {
        const uint32_t key = keys[first + i];
        for (uint32_t k = 0; k < in->view.width && tp_lines_of(in->lines, key) != UINT32_MAX; k++) {
            const size_t at = (size_t)i * in->view.width + k;
            const tp_cell cell = {in->view.values[at], in->view.codes[at]};
            if (!tp_cell_is_none(cell) && place.first + k < columns &&
                (summary || is_in(in, rank, place.first + k)) &&
                (in->best.rank == NULL || tp_cell_is_worse(cell, in->best.cell))) {
                in->best = (tp_spot){rank, place.first + k, key, first + i, cell};
                in->is_summary = summary;
            }
        }
    }
}

/* The worst cell of these series in these steps. */
static bool find_spot(const tp_view_run *run, const tp_lines *lines, uint32_t stat, int64_t rank,
                      uint64_t from, uint64_t to, tp_spot *out)
{
    search in = {.run = run, .lines = lines, .stat = stat, .from = from, .to = to};
    for (uint32_t r = 0; r < tp_view_rank_count(run); r++) {
        const tp_view_rank *one = tp_view_rank_at(run, r);
        uint64_t behind = 0; /* the last block that was looked at */
        uint32_t first;
        uint32_t count;
        if ((rank >= 0 && one->rank != rank) || !tp_lines_rows(lines, one, &first, &count)) {
            continue;
        }
        for (uint64_t i = 0; i < tp_view_column_count(one); i++) {
            if (i >= behind && is_in(&in, one, i)) {
                const tp_grid_place place = tp_grid_find(one->grid, i);
                look_at(&in, one, place, first, count, is_whole(&in, one, place));
                behind = place.first + place.width;
            }
        }
    }
    if (in.best.rank != NULL && in.is_summary) {
        const tp_spot worst = in.best;
        in.best.rank = NULL;
        look_at(&in, worst.rank, tp_grid_find(worst.rank->grid, worst.column), worst.row, 1, false);
        in.best = in.best.rank != NULL ? in.best : worst;
    }
    *out = in.best;
    tp_grid_view_free(&in.view);
    return out->rank != NULL;
}

bool tp_spot_normal(const tp_spot *at, uint32_t stat, double *low, double *high)
{
    tp_baseline baseline = {0};
    tp_grid_view view = {0};
    tp_grid_place place = {0};
    const tp_grid *grid = at->rank->grid;
    for (uint64_t i = at->column > WARM_UP ? at->column - WARM_UP : 0; i < at->column; i++) {
        if (i >= place.first + place.width) {
            place = tp_grid_find(grid, i);
            i = place.first; /* of a block all columns */
            const bool as_span =
                place.is_brief && !tp_grid_has_fine(grid, place.block, stat, at->row, 1);
            if (as_span ||
                tp_grid_read(grid, place.block, stat, at->row, 1, false, &view, NULL) != TP_OK) {
                view.count = 0;
            }
            if (as_span) {
                tp_brief_seed_block(at->rank, place.block, stat, at->row, 1, &baseline, 1);
            }
        }
        const float value = view.count > 0 ? view.values[i - place.first] : (float)NAN;
        if (isfinite(value)) {
            const float scaled = tp_view_scale(value, stat);
            float middle;
            float deviation;
            const bool is_known = tp_view_range(&baseline, stat, &middle, &deviation);
            tp_baseline_take(&baseline, scaled,
                             is_known ? (scaled - middle) / deviation : (float)NAN);
        }
    }
    tp_grid_view_free(&view);
    float median;
    float mad;
    if (!tp_view_range(&baseline, stat, &median, &mad)) {
        return false;
    }
    const bool is_log = stat == TP_GRID_NORM || stat == TP_GRID_MAX_ABS || stat == TP_GRID_STD;
    const double from = (double)median - 3 * (double)mad;
    const double to = (double)median + 3 * (double)mad;
    *low = is_log ? exp2(from) : from;
    *high = is_log ? exp2(to) : to;
    return true;
}

static void put_normal(tp_buf *out, const tp_spot *at, uint32_t stat)
{
    double low;
    double high;
    if (tp_spot_normal(at, stat, &low, &high)) {
        tp_buf_printf(out, ",\"normal\":[%.8g,%.8g]", low, high);
    }
}

void tp_json_stats(tp_buf *out, const tp_stats *stats)
{
    const struct {
        const char *name;
        double value;
    } rows[] = {{"norm", tp_stats_norm(stats)},
                {"mean", tp_stats_mean(stats)},
                {"std", tp_stats_std(stats)},
                {"min", stats->min},
                {"max", stats->max},
                {"finite_min", stats->finite_min},
                {"finite_max", stats->finite_max},
                {"max_abs", stats->abs_max}};
    tp_buf_printf(out,
                  ",\"count\":%" PRIu64 ",\"nan\":%" PRIu64 ",\"pos_inf\":%" PRIu64
                  ",\"neg_inf\":%" PRIu64 ",\"zeros\":%" PRIu64 ",\"subnormal\":%" PRIu64,
                  stats->count, stats->nan, stats->pos_inf, stats->neg_inf, stats->zeros,
                  stats->subnormal);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tp_buf_printf(out, ",\"%s\":", rows[i].name);
        tp_json_number(out, rows[i].value);
    }
    if (stats->abs_max_index != TP_NO_INDEX) {
        tp_buf_printf(out, ",\"index\":%" PRIu64, stats->abs_max_index);
    }
}

/* The series of this row among the records of its step: the one that the cell is of. */
static void put_records(tp_buf *out, const tp_spot *at, const tp_view_key *key, uint32_t stat)
{
    tp_reader *reader = NULL;
    tp_item item;
    const tp_record *best = NULL;
    uint32_t many = 0;
    if (tp_view_read_step(at->rank, tp_view_column_at(at->rank, at->column), &reader, &item) !=
        TP_OK) {
        tp_reader_close(&reader);
        return;
    }
    for (uint64_t i = 0; item.batch.records != NULL && i < item.batch.count; i++) {
        const tp_record *record = &item.batch.records[i];
        const tp_key *named = tp_reader_key(reader, record->key);
        char row[1056];
        if (named == NULL || record->state != TP_SLOT_DONE || record->kind != TP_RECORD_STATS ||
            named->quantity != key->quantity || strcmp(named->name, key->name) != 0) {
            continue;
        }
        tp_row_name(named, record->call, row, sizeof row);
        if (strncmp(row, key->row, strlen(row)) != 0) {
            continue;
        }
        const float value = tp_grid_value(&record->u.stats, stat);
        many++;
        if (best == NULL || memcmp(&value, &at->cell.value, sizeof value) == 0 ||
            (isnan(value) && isnan(at->cell.value))) {
            best = record;
        }
    }
    if (best != NULL) {
        uint32_t ndim = 0;
        const int64_t *shape = tp_reader_shape(reader, best->shape, &ndim);
        const char *dtype = tp_dtype_name(best->dtype);
        tp_buf_printf(out, ",\"dtype\":\"%s\",\"micro_step\":%" PRIu32 ",\"records\":%" PRIu32,
                      dtype != NULL ? dtype : "?", best->micro_step, many);
        tp_buf_printf(out, ",\"shape\":[");
        for (uint32_t k = 0; shape != NULL && k < ndim; k++) {
            tp_buf_printf(out, "%s%" PRId64, k > 0 ? "," : "", shape[k]);
        }
        tp_buf_printf(out, "]");
        tp_json_stats(out, &best->u.stats);
    }
    tp_reader_close(&reader);
}

void tp_answer_cell(const tp_view_run *run, const tp_ask *ask, tp_answer *answer)
{
    const uint32_t stat = tp_grid_stat_from_name(tp_ask_text(ask, "s", "norm"));
    const uint64_t rank = tp_ask_number(ask, "rank", UINT64_MAX);
    const char *layer = tp_ask_text(ask, "layer", "");
    tp_lines lines = {0};
    uint64_t from;
    uint64_t to;
    tp_spot at;
    tp_ask_steps(ask, run, &from, &to);
    if (stat == TP_GRID_STATS || tp_lines_make(&lines, run, ask) != TP_OK) {
        tp_lines_free(&lines);
        tp_answer_wrong(answer, 400, "no such statistic");
        return;
    }
    for (uint32_t key = 0; layer[0] != '\0' && key < tp_view_key_count(run); key++) {
        if (strcmp(tp_view_key_at(run, key)->layer, layer) != 0) {
            ((uint32_t *)(void *)lines.of_keys.data)[key] = UINT32_MAX;
        }
    }
    if (!find_spot(run, &lines, stat, rank == UINT64_MAX ? -1 : (int64_t)rank, from, to, &at)) {
        tp_answer_wrong(answer, 404, "nothing was recorded there");
        tp_lines_free(&lines);
        return;
    }
    const tp_view_key *key = tp_view_key_at(run, at.key);
    const tp_view_column *column = tp_view_column_at(at.rank, at.column);
    tp_buf *out = &answer->body;
    tp_buf_printf(out, "{\"row\":");
    tp_text_put_json(out, key->row);
    tp_buf_printf(out, ",\"name\":");
    tp_text_put_json(out, key->name);
    tp_buf_printf(out, ",\"q\":\"%s\",\"step\":%" PRIu64 ",\"rank\":%" PRIu32 ",\"wall\":%" PRId64,
                  tp_quantity_name(key->quantity), column->step, at.rank->rank,
                  column->wall_ns / 1000000);
    tp_buf_printf(out, ",\"value\":");
    tp_json_cell(out, at.cell);
    const float far = tp_distance_of_code(at.cell.code);
    if (!isnan(far)) {
        tp_buf_printf(out, ",\"distance\":%.4g", (double)far);
    }
    put_normal(out, &at, stat);
    put_records(out, &at, key, stat);
    tp_buf_printf(out, "}");
    tp_lines_free(&lines);
}

static int by_badness(const void *a, const void *b)
{
    const tp_spot *p = a;
    const tp_spot *q = b;
    return tp_cell_is_worse(p->cell, q->cell) ? -1 : tp_cell_is_worse(q->cell, p->cell) ? 1 : 0;
}

void tp_worst_rows(const tp_view_run *run, uint64_t limit,
                   void (*add)(struct report *to, const char *quantity, const char *row),
                   struct report *to)
{
    tp_buf spots = TP_BUF_INIT;
    tp_grid_view view = {0};
    for (uint32_t r = 0; r < tp_view_rank_count(run); r++) {
        const tp_view_rank *rank = tp_view_rank_at(run, r);
        const uint32_t rows = tp_grid_rows(rank->grid);
        const size_t begin = spots.size / sizeof(tp_spot);
        for (uint32_t row = 0; row < rows; row++) {
            const tp_spot none = {rank, 0, ((const uint32_t *)(const void *)rank->rows.data)[row],
                                  row, tp_cell_none()};
            tp_buf_put(&spots, &none, sizeof none);
        }
        tp_spot *all = (tp_spot *)(void *)spots.data + begin;
        for (uint64_t i = 0; !spots.failed && i < tp_grid_columns(rank->grid);) {
            const tp_grid_place place = tp_grid_find(rank->grid, i);
            i = place.first + place.width;
            if (tp_grid_read(rank->grid, place.block, TP_GRID_NORM, 0, rows, place.is_full, &view,
                             NULL) != TP_OK) {
                continue;
            }
            for (uint32_t k = 0; k < view.count * view.width; k++) {
                const tp_cell cell = {view.values[k], view.codes[k]};
                if (tp_cell_is_worse(cell, all[k / view.width].cell)) {
                    all[k / view.width].cell = cell;
                }
            }
        }
    }
    const size_t count = spots.failed ? 0 : spots.size / sizeof(tp_spot);
    if (count > 0) {
        qsort(spots.data, count, sizeof(tp_spot), by_badness);
    }
    for (size_t i = 0; i < count && i < limit; i++) {
        const tp_view_key *key =
            tp_view_key_at(run, ((const tp_spot *)(const void *)spots.data)[i].key);
        add(to, tp_quantity_name(key->quantity), key->row);
    }
    tp_buf_free(&spots);
    tp_grid_view_free(&view);
}

tp_status tp_spots_of_step(const tp_view_run *run, uint32_t stat, uint64_t step, tp_buf *spots)
{
    tp_grid_view view = {0};
    for (uint32_t r = 0; r < tp_view_rank_count(run); r++) {
        const tp_view_rank *rank = tp_view_rank_at(run, r);
        const tp_view_column *column = tp_view_column_find(rank, step);
        if (column == NULL) {
            continue;
        }
        const uint64_t i = (uint64_t)(column - tp_view_column_at(rank, 0));
        const tp_grid_place place = tp_grid_find(rank->grid, i);
        const tp_wish wish = {rank->rank, stat, 0, tp_grid_rows(rank->grid), i, i};
        tp_wishes_read(run, &wish);
        if (tp_grid_read(rank->grid, place.block, stat, 0, wish.count, false, &view, NULL) !=
            TP_OK) {
            continue;
        }
        for (uint32_t row = 0; row < view.count; row++) {
            const size_t at = (size_t)row * view.width + (i - place.first);
            const tp_spot one = {rank,
                                 i,
                                 ((const uint32_t *)(const void *)rank->rows.data)[row],
                                 row,
                                 {view.values[at], view.codes[at]}};
            if (!tp_cell_is_none(one.cell)) {
                tp_buf_put(spots, &one, sizeof one);
            }
        }
    }
    tp_grid_view_free(&view);
    return spots->failed ? TP_ERR_NOMEM : TP_OK;
}

/* The series that are farthest from normal in the last step of each rank (or in `step`). */
void tp_answer_worst(const tp_view_run *run, const tp_ask *ask, tp_answer *answer)
{
    const uint32_t stat = tp_grid_stat_from_name(tp_ask_text(ask, "s", "norm"));
    const uint64_t limit = tp_ask_number(ask, "n", 50);
    tp_buf spots = TP_BUF_INIT;
    uint64_t first;
    uint64_t last;
    if (stat == TP_GRID_STATS || !tp_view_run_steps(run, &first, &last)) {
        tp_answer_wrong(answer, 404, "no step yet");
        return;
    }
    const uint64_t step = tp_ask_number(ask, "step", last);
    const size_t count =
        tp_spots_of_step(run, stat, step, &spots) == TP_OK ? spots.size / sizeof(tp_spot) : 0;
    if (count > 0) {
        qsort(spots.data, count, sizeof(tp_spot), by_badness);
    }
    tp_buf_printf(&answer->body, "{\"step\":%" PRIu64 ",\"total\":%zu,\"rows\":[", step, count);
    for (size_t i = 0; i < count && i < limit; i++) {
        const tp_spot *one = (const tp_spot *)(const void *)spots.data + i;
        const tp_view_key *key = tp_view_key_at(run, one->key);
        const float far = tp_distance_of_code(one->cell.code);
        tp_buf_printf(&answer->body, "%s{\"row\":", i > 0 ? "," : "");
        tp_text_put_json(&answer->body, key->row);
        tp_buf_printf(&answer->body, ",\"q\":\"%s\",\"rank\":%" PRIu32 ",\"value\":",
                      tp_quantity_name(key->quantity), one->rank->rank);
        tp_json_cell(&answer->body, one->cell);
        tp_buf_printf(&answer->body, ",\"distance\":%.4g", isnan(far) ? 0.0 : (double)far);
        put_normal(&answer->body, one, stat);
        tp_buf_printf(&answer->body, "}");
    }
    tp_buf_printf(&answer->body, "]}");
    tp_buf_free(&spots);
}
