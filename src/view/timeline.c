/* Runs, a run at a glance, and its time line. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"
#include "view/ask.h"
#include "view/brief.h"

void tp_answer_runs(tp_library *library, tp_answer *answer)
{
    tp_buf *out = &answer->body;
    tp_buf_printf(out, "{\"runs\":[");
    for (uint32_t i = 0;; i++) {
        const tp_view_run *run = tp_library_at(library, i);
        if (run == NULL) {
            break;
        }
        tp_buf_printf(out, "%s{\"id\":", i > 0 ? "," : "");
        tp_text_put_json(out, run->id);
        tp_buf_printf(out, ",\"directory\":");
        tp_text_put_json(out, run->directory);
        tp_buf_printf(out, ",\"start\":%" PRId64 "}", run->start_wall_ns / 1000000);
    }
    tp_buf_printf(out, "]}");
}

static void put_ranks(const tp_view_run *run, tp_buf *out)
{
    tp_buf_printf(out, ",\"ranks\":[");
    for (uint32_t i = 0; i < tp_view_rank_count(run); i++) {
        const tp_view_rank *rank = tp_view_rank_at(run, i);
        const uint64_t count = tp_view_column_count(rank);
        const tp_view_column *last = count > 0 ? tp_view_column_at(rank, count - 1) : NULL;
        tp_buf_printf(out,
                      "%s{\"rank\":%" PRIu32 ",\"steps\":%" PRIu64 ",\"last\":%" PRId64
                      ",\"wall\":%" PRId64 ",\"closed\":%s,\"damaged\":%s,\"alerts\":%" PRIu64 "}",
                      i > 0 ? "," : "", rank->rank, count, last != NULL ? (int64_t)last->step : -1,
                      last != NULL ? last->wall_ns / 1000000 : 0, rank->closed ? "true" : "false",
                      rank->damaged ? "true" : "false", rank->alert_count);
    }
    tp_buf_printf(out, "]");
}

static void put_quantities(const tp_view_run *run, tp_buf *out)
{
    uint64_t counts[TP_VIEW_QUANTITIES] = {0};
    uint32_t roles[TP_VIEW_QUANTITIES] = {0};
    const char *separator = "";
    for (uint32_t i = 0; i < tp_view_key_count(run); i++) {
        const tp_view_key *key = tp_view_key_at(run, i);
        counts[key->quantity]++;
        roles[key->quantity] |= 1U << key->role;
    }
    tp_buf_printf(out, ",\"quantities\":[");
    for (uint32_t q = 1; q < TP_VIEW_QUANTITIES && tp_quantity_name(q) != NULL; q++) {
        if (counts[q] > 0) {
            tp_buf_printf(out, "%s{\"q\":\"%s\",\"series\":%" PRIu64 ",\"roles\":%" PRIu32 "}",
                          separator, tp_quantity_name(q), counts[q], roles[q]);
            separator = ",";
        }
    }
    tp_buf_printf(out, "],\"scalars\":[");
    separator = "";
    for (uint32_t i = 0; i < tp_view_key_count(run); i++) {
        const tp_view_key *key = tp_view_key_at(run, i);
        if (key->quantity == TP_SCALAR) {
            tp_buf_printf(out, "%s", separator);
            tp_text_put_json(out, key->row);
            separator = ",";
        }
    }
    tp_buf_printf(out, "]");
}

/* What watching took, of all ranks together. */
static void put_cost(const tp_view_run *run, tp_buf *out)
{
    double total = 0;
    double hook = 0;
    double writer = 0;
    double wait = 0;
    uint64_t steps = 0;
    uint64_t gaps = 0;
    uint64_t lost = 0;
    uint64_t records = 0;
    uint64_t errors = 0;
    uint64_t bytes = 0;
    uint64_t with_bytes = 0;
    uint64_t left_out = 0;
    for (uint32_t r = 0; r < tp_view_rank_count(run); r++) {
        const tp_view_rank *rank = tp_view_rank_at(run, r);
        for (uint64_t i = 0; i < tp_view_column_count(rank); i++) {
            const tp_view_column *column = tp_view_column_at(rank, i);
            const bool is_gap = (column->flags & TP_BATCH_GAP) != 0;
            total += (double)(column->end_ns - column->begin_ns);
            hook += (double)column->hook_ns;
            writer += (double)column->writer_ns;
            wait += (double)column->wait_ns;
            errors += column->errors;
            bytes += column->bytes;
            with_bytes += column->bytes > 0;
            left_out += column->leaves_out;
            gaps += is_gap;
            *(is_gap ? &lost : &records) += column->records;
            steps++;
        }
    }
    tp_buf_printf(out,
                  ",\"cost\":{\"seconds\":%.6g,\"hook\":%.6g,\"writer\":%.6g,\"wait\":%.6g,"
                  "\"steps\":%" PRIu64 ",\"gaps\":%" PRIu64 ",\"lost\":%" PRIu64
                  ",\"records\":%" PRIu64 ",\"errors\":%" PRIu64 ",\"bytes\":%.6g"
                  ",\"left_out\":%" PRIu64 "}",
                  total / 1e9, total > 0 ? hook / total : 0, total > 0 ? writer / total : 0,
                  total > 0 ? wait / total : 0, steps, gaps, lost, records, errors,
                  with_bytes > 0 ? (double)bytes / (double)with_bytes : 0, left_out);
}

void tp_answer_run(const tp_view_run *run, tp_answer *answer)
{
    tp_buf *out = &answer->body;
    uint64_t first = 0;
    uint64_t last = 0;
    const bool has = tp_view_run_steps(run, &first, &last);
    tp_buf_printf(out, "{\"id\":");
    tp_text_put_json(out, run->id);
    tp_buf_printf(out, ",\"directory\":");
    tp_text_put_json(out, run->directory);
    tp_buf_printf(out,
                  ",\"start\":%" PRId64 ",\"first\":%" PRId64 ",\"last\":%" PRId64
                  ",\"keys\":%" PRIu32 ",\"version\":%" PRIu64 ",\"read\":%s,\"trouble\":",
                  run->start_wall_ns / 1000000, has ? (int64_t)first : -1, has ? (int64_t)last : -1,
                  tp_view_key_count(run), run->version, run->is_read ? "true" : "false");
    tp_text_put_json(out, run->trouble);
    put_ranks(run, out);
    put_quantities(run, out);
    put_cost(run, out);
    tp_buf_printf(out, "}");
}

/* Smallest, largest and last value of each bucket, and how many weren't finite. */
typedef struct bucket {
    double low;
    double high;
    double last;
    uint32_t count; /* finite ones */
    uint32_t nan;
    uint32_t inf;
} bucket;

typedef struct track {
    const char *name;
    bucket *buckets;
} track;

static void take(bucket *to, double value)
{
    if (!isfinite(value)) {
        *(isnan(value) ? &to->nan : &to->inf) += 1;
        return;
    }
    to->low = to->count == 0 || value < to->low ? value : to->low;
    to->high = to->count == 0 || value > to->high ? value : to->high;
    to->last = value;
    to->count++;
}

static void put_track(tp_buf *out, const track *one, uint32_t width)
{
    static const char *const fields[] = {"min", "max", "last"};
    tp_buf_printf(out, ",\"%s\":{", one->name);
    for (uint32_t f = 0; f < 3; f++) {
        tp_buf_printf(out, "%s\"%s\":[", f > 0 ? "," : "", fields[f]);
        for (uint32_t i = 0; i < width; i++) {
            const bucket *b = &one->buckets[i];
            const double value = f == 0 ? b->low : f == 1 ? b->high : b->last;
            tp_buf_printf(out, i > 0 ? "," : "");
            if (b->count == 0) {
                tp_buf_printf(out, "null");
            } else {
                tp_buf_printf(out, "%.9g", value);
            }
        }
        tp_buf_printf(out, "]");
    }
    /* [bucket, NaN, ±Inf] of those that have any. */
    tp_buf_printf(out, ",\"odd\":[");
    const char *separator = "";
    for (uint32_t i = 0; i < width; i++) {
        const bucket *b = &one->buckets[i];
        if (b->nan + b->inf > 0) {
            tp_buf_printf(out, "%s[%" PRIu32 ",%" PRIu32 ",%" PRIu32 "]", separator, i, b->nan,
                          b->inf);
            separator = ",";
        }
    }
    tp_buf_printf(out, "]}");
}

uint32_t tp_view_find_scalar(const tp_view_run *run, const char *const *names)
{
    for (; *names != NULL; names++) {
        for (uint32_t i = 0; i < tp_view_key_count(run); i++) {
            const tp_view_key *key = tp_view_key_at(run, i);
            if (key->quantity == TP_SCALAR && strcasestr(key->row, *names) != NULL) {
                return i;
            }
        }
    }
    return TP_VIEW_NO_KEY;
}

typedef struct window {
    uint64_t from;
    uint64_t to;
    uint64_t per;
    uint32_t width;
} window;

/* What a series is gathered into. */
typedef struct gathering {
    const window *window;
    bucket *buckets;
    uint32_t coarse; /* steps of the widest span whose extremes stand for each; 0: all are single */
    bool is_coming;  /* the single steps of these */
} gathering;

static bool is_in(const window *w, const tp_view_column *column)
{
    return !column->is_over && column->step >= w->from && column->step <= w->to;
}

/* What was logged in the columns that were taken from digests. */
static void take_scalars(const tp_view_rank *rank, uint32_t row, uint32_t stat, const gathering *to)
{
    const tp_view_scalar *scalars = (const tp_view_scalar *)(const void *)rank->scalars.data;
    for (size_t i = 0; i < rank->scalars.size / sizeof *scalars; i++) {
        const tp_view_column *column = tp_view_column_at(rank, scalars[i].column);
        if (scalars[i].row == row && is_in(to->window, column)) {
            const bool has_sign = stat != TP_GRID_NORM && stat != TP_GRID_MAX_ABS;
            take(&to->buckets[(column->step - to->window->from) / to->window->per],
                 has_sign ? scalars[i].value : fabs(scalars[i].value));
        }
    }
}

/* The smallest and the largest value of a span, in each bucket that it touches. */
static void take_span(const tp_view_rank *rank, tp_grid_place place, const tp_grid_view *view,
                      gathering *to)
{
    uint64_t last = UINT64_MAX;
    if (view->count == 0 || tp_digest_is_none((tp_digest_value){view->lows[0], view->values[0]})) {
        return;
    }
    for (uint32_t k = 0; k < place.width; k++) {
        const tp_view_column *column = tp_view_column_at(rank, place.first + k);
        const uint64_t at = (column->step - to->window->from) / to->window->per;
        if (!is_in(to->window, column) || at == last) {
            continue;
        }
        last = at;
        take(&to->buckets[at], (double)view->lows[0]);
        if (memcmp(&view->lows[0], &view->values[0], sizeof(float)) != 0) {
            take(&to->buckets[at], (double)view->values[0]);
        }
    }
    to->coarse = place.width > to->coarse ? place.width : to->coarse;
}

/* Values of a series of a rank in the window: each is given to a bucket. */
static void take_series(const tp_view_run *run, const tp_view_rank *rank, uint32_t key,
                        uint32_t stat, gathering *to)
{
    const uint32_t row = tp_view_row_of(rank, key);
    const bool is_scalar = key != TP_VIEW_NO_KEY &&
                           tp_view_key_at(run, key)->quantity == TP_SCALAR && stat != TP_GRID_STD &&
                           stat != TP_GRID_ZEROS;
    const window *w = to->window;
    tp_wish wish = {.rank = rank->rank, .stat = stat, .first = row, .count = 1, .from = UINT64_MAX};
    tp_grid_view view = {0};
    tp_grid_place place = {0};
    for (uint64_t i = 0; row != UINT32_MAX && i < tp_view_column_count(rank); i++) {
        const tp_view_column *column = tp_view_column_at(rank, i);
        if (!is_in(w, column)) {
            continue;
        }
        wish.from = i < wish.from ? i : wish.from;
        wish.to = i;
        if (i >= place.first + place.width) {
            place = tp_grid_find(rank->grid, i);
            const bool as_span =
                place.is_brief &&
                (is_scalar || !tp_grid_has_fine(rank->grid, place.block, stat, row, 1));
            const tp_status status =
                as_span ? tp_grid_read_brief(rank->grid, place.block, stat, row, 1, &view, NULL)
                        : tp_grid_read(rank->grid, place.block, stat, row, 1, false, &view, NULL);
            if (status != TP_OK) {
                tp_brief_hurry(rank, stat);
                view.count = 0;
            } else if (as_span && !is_scalar) {
                take_span(rank, place, &view, to);
            }
            view.count = as_span ? 0 : view.count;
        }
        if (view.count > 0) {
            const tp_cell cell = {view.values[i - place.first], view.codes[i - place.first]};
            if (!tp_cell_is_none(cell)) {
                take(&to->buckets[(column->step - w->from) / w->per], (double)cell.value);
            }
        }
    }
    if (is_scalar) {
        take_scalars(rank, row, stat, to);
    }
    to->coarse = to->coarse > w->per ? to->coarse : 0;
    to->is_coming = (to->coarse > 0 && tp_wishes_add(run, &wish)) || to->is_coming;
    tp_grid_view_free(&view);
}

static window window_of(const tp_view_run *run, const tp_ask *ask)
{
    window w;
    tp_ask_steps(ask, run, &w.from, &w.to);
    const uint64_t span = w.to - w.from + 1;
    uint64_t pixels = tp_ask_number(ask, "w", 600);
    pixels = pixels < 1 ? 1 : pixels > 4096 ? 4096 : pixels;
    w.per = span / pixels + (span % pixels != 0);
    w.width = (uint32_t)(span / w.per + (span % w.per != 0));
    return w;
}

static void put_window(tp_buf *out, const window *w)
{
    tp_buf_printf(out,
                  "{\"from\":%" PRIu64 ",\"to\":%" PRIu64 ",\"per\":%" PRIu64 ",\"w\":%" PRIu32,
                  w->from, w->to, w->per, w->width);
}

/* Of each quantity: the largest share of its series that are far from normal, bucket by bucket. */
static void put_health(const tp_view_run *run, const window *w, tp_buf *out)
{
    tp_buf shares = TP_BUF_INIT;
    const char *separator = "";
    tp_buf_printf(out, ",\"health\":{");
    for (uint32_t q = 1; q < TP_VIEW_QUANTITIES && tp_quantity_name(q) != NULL; q++) {
        uint64_t now = 0;
        uint64_t all = 0;
        tp_buf_clear(&shares);
        double *share = tp_buf_extend(&shares, w->width * sizeof(double));
        if (share == NULL) {
            break;
        }
        memset(share, 0, w->width * sizeof(double));
        for (uint32_t r = 0; r < tp_view_rank_count(run); r++) {
            const tp_view_rank *rank = tp_view_rank_at(run, r);
            const tp_view_column *latest = NULL; /* that has some: a last step may have little */
            for (uint64_t i = 0; i < tp_view_column_count(rank); i++) {
                const tp_view_column *column = tp_view_column_at(rank, i);
                latest = column->series[q] > 0 ? column : latest;
                if (column->series[q] > 0 && !column->is_over && column->step >= w->from &&
                    column->step <= w->to) {
                    const double here = (double)column->abnormal[q] / (double)column->series[q];
                    double *to = &share[(column->step - w->from) / w->per];
                    *to = here > *to ? here : *to;
                }
            }
            now += latest != NULL ? latest->abnormal[q] : 0;
            all += latest != NULL ? latest->series[q] : 0;
        }
        if (all == 0) {
            continue;
        }
        tp_buf_printf(out, "%s\"%s\":{\"now\":%" PRIu64 ",\"all\":%" PRIu64 ",\"share\":[",
                      separator, tp_quantity_name(q), now, all);
        separator = ",";
        for (uint32_t i = 0; i < w->width; i++) {
            tp_buf_printf(out, "%s%.3g", i > 0 ? "," : "", share[i]);
        }
        tp_buf_printf(out, "]}");
    }
    tp_buf_printf(out, "}");
    tp_buf_free(&shares);
}

/* Steps whose records were given up, as [first, last, records], those that follow one another
 * together. */
static void put_gaps(const tp_view_run *run, tp_buf *out)
{
    const char *separator = "";
    tp_buf_printf(out, ",\"gaps\":[");
    for (uint32_t r = 0; r < tp_view_rank_count(run); r++) {
        const tp_view_rank *rank = tp_view_rank_at(run, r);
        uint64_t first = 0;
        uint64_t lost = 0;
        bool is_in = false;
        for (uint64_t i = 0; i <= tp_view_column_count(rank); i++) {
            const tp_view_column *column =
                i < tp_view_column_count(rank) ? tp_view_column_at(rank, i) : NULL;
            const bool is_gap = column != NULL && (column->flags & TP_BATCH_GAP) != 0;
            if (is_in && !is_gap) {
                tp_buf_printf(out, "%s[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", separator, first,
                              tp_view_column_at(rank, i - 1)->step, lost);
                separator = ",";
                lost = 0;
            } else if (is_gap && !is_in) {
                first = column->step;
            }
            lost += is_gap ? column->records : 0;
            is_in = is_gap;
        }
    }
    tp_buf_printf(out, "]");
}

void tp_answer_timeline(const tp_view_run *run, const tp_ask *ask, tp_answer *answer)
{
    static const char *const losses[] = {"loss", NULL};
    static const char *const rates[] = {"learning_rate", "learning rate", "lr", NULL};
    const window w = window_of(run, ask);
    const uint32_t loss = tp_view_find_scalar(run, losses);
    const uint32_t rate = tp_view_find_scalar(run, rates);
    tp_buf memory = TP_BUF_INIT;
    bucket *buckets = tp_buf_extend(&memory, (size_t)7 * w.width * sizeof *buckets);
    if (buckets == NULL) {
        tp_answer_wrong(answer, 503, "no memory");
        return;
    }
    memset(buckets, 0, (size_t)7 * w.width * sizeof *buckets);
    const track tracks[] = {{"loss", buckets},
                            {"gradient", buckets + w.width},
                            {"rate", buckets + 2 * (size_t)w.width},
                            {"seconds", buckets + 3 * (size_t)w.width},
                            {"hook", buckets + 4 * (size_t)w.width},
                            {"writer", buckets + 5 * (size_t)w.width},
                            {"bytes", buckets + 6 * (size_t)w.width}};
    for (uint32_t r = 0; r < tp_view_rank_count(run); r++) {
        const tp_view_rank *rank = tp_view_rank_at(run, r);
        take_series(run, rank, loss, TP_GRID_MEAN, &(gathering){&w, tracks[0].buckets, 0, false});
        take_series(run, rank, rate, TP_GRID_MEAN, &(gathering){&w, tracks[2].buckets, 0, false});
        for (uint64_t i = 0; i < tp_view_column_count(rank); i++) {
            const tp_view_column *column = tp_view_column_at(rank, i);
            if (column->is_over || column->step < w.from || column->step > w.to) {
                continue;
            }
            const uint64_t at = (column->step - w.from) / w.per;
            const double seconds = (double)(column->end_ns - column->begin_ns) / 1e9;
            const bool has =
                column->series[TP_GRAD_REDUCED] + column->series[TP_GRAD_UNREDUCED] > 0;
            if (has) {
                take(&tracks[1].buckets[at], column->gradient);
            }
            take(&tracks[3].buckets[at], seconds);
            if (seconds > 0) {
                take(&tracks[4].buckets[at], (double)column->hook_ns / 1e9 / seconds);
                take(&tracks[5].buckets[at], (double)column->writer_ns / 1e9 / seconds);
            }
            if (column->bytes > 0) {
                take(&tracks[6].buckets[at], (double)column->bytes);
            }
        }
    }
    put_window(&answer->body, &w);
    tp_buf_printf(&answer->body, ",\"loss_name\":");
    tp_text_put_json(&answer->body, loss != TP_VIEW_NO_KEY ? tp_view_key_at(run, loss)->row : "");
    for (size_t i = 0; i < sizeof tracks / sizeof *tracks; i++) {
        put_track(&answer->body, &tracks[i], w.width);
    }
    put_health(run, &w, &answer->body);
    put_gaps(run, &answer->body);
    tp_buf_printf(&answer->body, "}");
    tp_buf_free(&memory);
}

void tp_answer_series(const tp_view_run *run, const tp_ask *ask, tp_answer *answer)
{
    const uint32_t key = tp_view_key_find(run, tp_ask_quantity(ask), tp_ask_text(ask, "row", ""));
    const uint32_t stat = tp_grid_stat_from_name(tp_ask_text(ask, "s", "norm"));
    const uint64_t only = tp_ask_number(ask, "rank", UINT64_MAX);
    const window w = window_of(run, ask);
    tp_buf memory = TP_BUF_INIT;
    if (key == TP_VIEW_NO_KEY || stat == TP_GRID_STATS) {
        tp_answer_wrong(answer, 404, "no such series");
        return;
    }
    bucket *buckets = tp_buf_extend(&memory, w.width * sizeof *buckets);
    if (buckets == NULL) {
        tp_answer_wrong(answer, 503, "no memory");
        return;
    }
    const tp_view_key *one = tp_view_key_at(run, key);
    const char *dtype = tp_dtype_name(one->dtype);
    const char *separator = "";
    gathering gathered = {&w, buckets, 0, false};
    put_window(&answer->body, &w);
    tp_buf_printf(&answer->body, ",\"row\":");
    tp_text_put_json(&answer->body, one->row);
    tp_buf_printf(&answer->body,
                  ",\"q\":\"%s\",\"s\":\"%s\",\"dtype\":\"%s\",\"elements\":%" PRIu64
                  ",\"values\":%s,\"exponents\":%s,\"ranks\":[",
                  tp_quantity_name(one->quantity), tp_grid_stat_name(stat),
                  dtype != NULL ? dtype : "?", one->elements,
                  (one->has & TP_RECORD_HISTOGRAM) != 0 ? "true" : "false",
                  (one->has & TP_RECORD_EXPONENTS) != 0 ? "true" : "false");
    for (uint32_t r = 0; r < tp_view_rank_count(run); r++) {
        const tp_view_rank *rank = tp_view_rank_at(run, r);
        if (tp_view_row_of(rank, key) == UINT32_MAX || (only != UINT64_MAX && rank->rank != only)) {
            continue;
        }
        memset(buckets, 0, w.width * sizeof *buckets);
        take_series(run, rank, key, stat, &gathered);
        tp_buf_printf(&answer->body, "%s{\"rank\":%" PRIu32, separator, rank->rank);
        put_track(&answer->body, &(track){"v", buckets}, w.width);
        tp_buf_printf(&answer->body, "}");
        separator = ",";
    }
    tp_buf_printf(&answer->body, "],\"coarse\":%" PRIu32 ",\"coming\":%s}", gathered.coarse,
                  gathered.is_coming ? "true" : "false");
    tp_buf_free(&memory);
}

typedef struct match {
    uint32_t key;
    uint32_t badness;
} match;

static int by_badness(const void *a, const void *b)
{
    const match *p = a;
    const match *q = b;
    return p->badness != q->badness ? (p->badness < q->badness ? -1 : 1)
                                    : (p->key < q->key ? -1 : p->key > q->key);
}

/* Each word has to be in the name, behind the one before it. What begins a part of the name, and
 * what leaves little of it over, is better. UINT32_MAX: it isn't meant. */
static uint32_t badness_of(const char *words, const char *row)
{
    char word[128];
    const char *at = row;
    uint32_t badness = (uint32_t)strlen(row);
    while (*words != '\0') {
        const size_t length = strcspn(words, " ");
        if (length > 0 && length < sizeof word) {
            memcpy(word, words, length);
            word[length] = '\0';
            const char *found = strcasestr(at, word);
            if (found == NULL) {
                return UINT32_MAX;
            }
            badness += found > row && found[-1] != '.' && found[-1] != '_' ? 40 : 0;
            at = found + length;
        }
        words += length + (words[length] == ' ');
    }
    return badness;
}

#define RESULTS 12

void tp_answer_search(const tp_view_run *run, const tp_ask *ask, tp_answer *answer)
{
    const char *words = tp_ask_text(ask, "t", "");
    tp_buf matches = TP_BUF_INIT;
    for (uint32_t i = 0; i < tp_view_key_count(run); i++) {
        const match one = {i, badness_of(words, tp_view_key_at(run, i)->row)};
        if (one.badness != UINT32_MAX) {
            tp_buf_put(&matches, &one, sizeof one);
        }
    }
    const size_t count = matches.failed ? 0 : matches.size / sizeof(match);
    if (count > 0) {
        qsort(matches.data, count, sizeof(match), by_badness);
    }
    tp_buf_printf(&answer->body, "{\"total\":%zu,\"results\":[", count);
    for (size_t i = 0; i < count && i < RESULTS; i++) {
        const tp_view_key *key =
            tp_view_key_at(run, ((const match *)(const void *)matches.data)[i].key);
        tp_buf_printf(&answer->body, "%s{\"row\":", i > 0 ? "," : "");
        tp_text_put_json(&answer->body, key->row);
        tp_buf_printf(&answer->body, ",\"q\":\"%s\"}", tp_quantity_name(key->quantity));
    }
    tp_buf_printf(&answer->body, "]}");
    tp_buf_free(&matches);
}
