#include "view/tail.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "view/brief.h"

#define RECENT 100             /* steps of which times and cost are told */
#define NEAR 5                 /* a rank that is so many steps behind is late */
#define STALL_NS 30000000000.0 /* without a step; and five of the usual ones */

void tp_tail_free(tp_tail *tail)
{
    tp_buf_free(&tail->lines);
}

void tp_tail_move(tp_tail *tail, int64_t by)
{
    const tp_tail_line *lines = (const tp_tail_line *)(const void *)tail->lines.data;
    const int64_t count = (int64_t)(tail->lines.size / sizeof *lines);
    int64_t at = 0;
    for (int64_t i = 0; i < count && tail->selected != TP_VIEW_NO_KEY; i++) {
        at = lines[i].spot.key == tail->selected ? i : at;
    }
    at += by;
    at = at >= count ? count - 1 : at;
    if (count > 0) {
        tail->selected = at <= 0 ? lines[0].spot.key : lines[at].spot.key;
    }
}

static const tp_view_column *last_column(const tp_view_rank *rank)
{
    const uint64_t count = tp_view_column_count(rank);
    return count > 0 ? tp_view_column_at(rank, count - 1) : NULL;
}

/* The last step that all ranks have which aren't late. */
static uint64_t common_step(const tp_view_run *run, uint64_t last)
{
    uint64_t common = last;
    for (uint32_t i = 0; i < tp_view_rank_count(run); i++) {
        const tp_view_column *column = last_column(tp_view_rank_at(run, i));
        if (column != NULL && column->step + NEAR >= last && column->step < common) {
            common = column->step;
        }
    }
    return common;
}

static int by_size(const void *a, const void *b)
{
    const double p = *(const double *)a;
    const double q = *(const double *)b;
    return p < q ? -1 : p > q;
}

/* What the last steps took: the median time of one, and the part of it that watching took. */
static double recent_time(const tp_view_run *run, double *share)
{
    double times[RECENT];
    double total = 0;
    double hooks = 0;
    size_t count = 0;
    for (uint32_t r = 0; r < tp_view_rank_count(run); r++) {
        const tp_view_rank *rank = tp_view_rank_at(run, r);
        const uint64_t columns = tp_view_column_count(rank);
        for (uint64_t i = columns > RECENT ? columns - RECENT : 0; i < columns; i++) {
            const tp_view_column *column = tp_view_column_at(rank, i);
            const double time = (double)(column->end_ns - column->begin_ns);
            total += time;
            hooks += (double)(column->hook_ns + column->wait_ns);
            if (r == 0) {
                times[count++] = time;
            }
        }
    }
    *share = total > 0 ? hooks / total : 0;
    qsort(times, count, sizeof *times, by_size);
    return count > 0 ? times[count / 2] : 0;
}

static void put_duration(char *text, size_t size, double ns)
{
    const double seconds = ns / 1e9;
    if (seconds < 1) {
        snprintf(text, size, "%.3g ms", seconds * 1e3);
    } else if (seconds < 60) {
        snprintf(text, size, "%.3g s", seconds);
    } else if (seconds < 3600) {
        snprintf(text, size, "%.0f min %.0f s", floor(seconds / 60), floor(fmod(seconds, 60)));
    } else {
        snprintf(text, size, "%.0f h %.0f min", floor(seconds / 3600),
                 floor(fmod(seconds, 3600) / 60));
    }
}

void tp_tail_state_text(const tp_tail *tail, const tp_view_run *run, char *text, size_t size,
                        uint32_t *part)
{
    int64_t newest = run->start_wall_ns;
    double share;
    char duration[48];
    for (uint32_t i = 0; i < tp_view_rank_count(run); i++) {
        const tp_view_column *column = last_column(tp_view_rank_at(run, i));
        newest = column != NULL && column->wall_ns > newest ? column->wall_ns : newest;
    }
    const double still = (double)(tail->now_ns - newest);
    put_duration(duration, sizeof duration, still);
    *part = TP_PART_STRONG;
    if (!run->is_read) {
        snprintf(text, size, "reading");
    } else if (tail->state == TP_STATE_CLOSED) {
        snprintf(text, size, "ended");
    } else if (tail->state == TP_STATE_KILLED) {
        *part = TP_PART_BAD;
        snprintf(text, size, "killed %s ago", duration);
    } else if (still > fmax(STALL_NS, 5 * recent_time(run, &share))) {
        *part = TP_PART_ABOVE;
        snprintf(text, size, "no step for %s", duration);
    } else if (tail->state == TP_STATE_UNKNOWN) {
        snprintf(text, size, "not closed");
    } else {
        *part = TP_PART_GOOD;
        snprintf(text, size, "live");
    }
}

bool tp_tail_scalar(const tp_view_run *run, uint32_t key, uint64_t step, double *value,
                    double *finite)
{
    bool found = false;
    *finite = (double)NAN;
    for (uint32_t r = 0; r < tp_view_rank_count(run) && key != TP_VIEW_NO_KEY && !found; r++) {
        const tp_view_rank *rank = tp_view_rank_at(run, r);
        const uint32_t row = tp_view_row_of(rank, key);
        tp_grid_walk walk = {.view = {.count = 0}};
        const uint64_t columns = row == UINT32_MAX ? 0 : tp_view_column_count(rank);
        for (uint64_t i = columns; i-- > 0 && i + 10 * RECENT > columns && isnan(*finite);) {
            const tp_view_scalar *logged = tp_view_scalar_at(rank, row, i);
            const tp_cell cell = logged != NULL
                                     ? (tp_cell){(float)logged->value, TP_CODE_UNKNOWN}
                                     : tp_grid_cell(rank->grid, &walk, TP_GRID_MEAN, row, i);
            if (tp_cell_is_none(cell) || tp_view_column_at(rank, i)->step > step) {
                continue;
            }
            *value = found ? *value : (double)cell.value;
            *finite = isfinite(cell.value) ? (double)cell.value : *finite;
            found = true;
        }
        tp_grid_view_free(&walk.view);
    }
    return found;
}

double tp_tail_gradient(const tp_view_run *run, uint64_t step, double *finite)
{
    double value = (double)NAN;
    *finite = (double)NAN;
    for (uint32_t r = 0; r < tp_view_rank_count(run); r++) {
        const tp_view_rank *rank = tp_view_rank_at(run, r);
        uint64_t looked = 0;
        for (uint64_t i = tp_view_column_count(rank); i-- > 0 && looked < 10 * RECENT;) {
            const tp_view_column *column = tp_view_column_at(rank, i);
            if (column->step == step) {
                value = r == 0 || column->gradient > value || isnan(column->gradient)
                            ? column->gradient
                            : value;
            }
            looked += column->step <= step;
            if (column->step <= step && isfinite(column->gradient)) {
                *finite = fmax(*finite, column->gradient);
                break;
            }
        }
    }
    return value;
}

static uint32_t put_value(tp_screen *screen, uint32_t row, uint32_t column, const char *label,
                          double value, double finite)
{
    char text[TP_NUMBER_TEXT];
    const bool is_bad = !isfinite(value);
    column = tp_screen_printf(screen, row, column, TP_PART_QUIET, "%s ", label);
    column = tp_screen_put(screen, row, column, 0, is_bad ? TP_PART_BAD : TP_PART_STRONG,
                           tp_number_text(text, value));
    if (is_bad && isfinite(finite)) {
        column = tp_screen_printf(screen, row, column, TP_PART_QUIET, " (%s)",
                                  tp_number_text(text, finite));
    }
    return column + 3;
}

static uint32_t late_ranks(const tp_view_run *run, uint64_t last)
{
    uint32_t late = 0;
    for (uint32_t i = 0; i < tp_view_rank_count(run); i++) {
        const tp_view_column *column = last_column(tp_view_rank_at(run, i));
        late += column == NULL || column->step + NEAR < last;
    }
    return late;
}

static void draw_head(const tp_tail *tail, const tp_view_run *run, tp_screen *screen, bool has)
{
    static const char *const losses[] = {"loss", NULL};
    static const char *const rates[] = {"learning_rate", "learning rate", "lr", NULL};
    char text[TP_NUMBER_TEXT];
    char state[96];
    double share;
    double value;
    double finite;
    uint32_t part;
    uint64_t lost = 0;
    uint64_t first;
    uint64_t last;
    const double time = recent_time(run, &share);
    const uint32_t ranks = tp_view_rank_count(run);
    uint32_t at = tp_screen_put(screen, 0, 0, 0, TP_PART_STRONG, "tensorprobe tail") + 2;
    at = tp_screen_put(screen, 0, at, at + 32, TP_PART_PLAIN, run->id) + 3;
    tp_tail_state_text(tail, run, state, sizeof state, &part);
    at = tp_screen_printf(screen, 0, at, part, "%s %s", screen->is_utf8 ? "●" : "*", state) + 3;
    if (!has || !tp_view_run_steps(run, &first, &last)) {
        tp_screen_put(screen, 0, at, 0, TP_PART_QUIET, "no step yet");
        return;
    }
    at = tp_screen_put(screen, 0, at, 0, TP_PART_QUIET, "step ");
    at = tp_screen_put(screen, 0, at, 0, TP_PART_STRONG, tp_count_text(text, tail->step));
    at = tp_screen_put(screen, 0, at, 0, TP_PART_QUIET, tail->is_pinned ? " paused" : "") + 2;
    put_duration(state, sizeof state, time);
    at = tp_screen_printf(screen, 0, at, TP_PART_QUIET, "%s a step", state) + 3;
    const uint32_t late = late_ranks(run, last);
    tp_screen_printf(screen, 0, at, late > 0 ? TP_PART_ABOVE : TP_PART_QUIET,
                     "%" PRIu32 " rank%s, %" PRIu32 " late", ranks, ranks == 1 ? "" : "s", late);
    at = 0;
    if (tp_tail_scalar(run, tp_view_find_scalar(run, losses), tail->step, &value, &finite)) {
        at = put_value(screen, 1, at, "loss", value, finite);
    }
    value = tp_tail_gradient(run, tail->step, &finite);
    if (!isnan(value) || isfinite(finite)) {
        at = put_value(screen, 1, at, "grad norm", value, finite);
    }
    if (tp_tail_scalar(run, tp_view_find_scalar(run, rates), tail->step, &value, &finite)) {
        at = put_value(screen, 1, at, "lr", value, finite);
    }
    at = tp_screen_put(screen, 1, at, 0, TP_PART_QUIET, "monitor ");
    at = tp_screen_printf(screen, 1, at, TP_PART_PLAIN, "%.2g %% of step", 100 * share) + 3;
    for (uint32_t r = 0; r < ranks; r++) {
        const tp_view_rank *rank = tp_view_rank_at(run, r);
        for (uint64_t i = 0; i < tp_view_column_count(rank); i++) {
            lost += (tp_view_column_at(rank, i)->flags & TP_BATCH_GAP) != 0;
        }
    }
    at = tp_screen_put(screen, 1, at, 0, TP_PART_QUIET, "lost ");
    tp_screen_printf(screen, 1, at, lost > 0 ? TP_PART_ABOVE : TP_PART_PLAIN, "%s step%s",
                     tp_count_text(text, lost), lost == 1 ? "" : "s");
}

/* A text in so many lines, broken at spaces. Returns the row behind it. */
static uint32_t put_lines(tp_screen *screen, uint32_t row, uint32_t column, uint32_t lines,
                          uint32_t part, const char *text)
{
    char line[1024];
    while (*text != '\0' && lines > 0) {
        const uint32_t room = screen->width > column ? screen->width - column : 1;
        size_t length = 0;
        for (size_t i = 0; text[i] != '\0' && i + 1 < sizeof line; i++) {
            line[i] = text[i];
            line[i + 1] = '\0';
            if (tp_screen_width(screen, line) > room && lines > 1 && length > 0) {
                break;
            }
            length = text[i] == ' ' || text[i + 1] == '\0' || lines == 1 ? i + 1 : length;
        }
        length = length > 0 ? length : strlen(line);
        line[length] = '\0';
        tp_screen_put(screen, row++, column, 0, part, line);
        text += length;
        lines--;
        column = 4;
    }
    return row;
}

/* The newest one in full, and a line of each other, as many as fit. Returns the row behind. */
static uint32_t draw_incidents(const tp_view_run *run, tp_screen *screen, uint32_t row,
                               uint32_t lines)
{
    const uint64_t count = tp_incident_count(run);
    const uint32_t end = row + lines;
    tp_incident_place one;
    char number[TP_NUMBER_TEXT];
    if (count == 0) {
        tp_screen_put(screen, row, 0, 0, TP_PART_QUIET, "no incident");
        return row + 1;
    }
    for (uint64_t n = count; n > 0 && row < end && tp_incident_find(run, n, &one); n--) {
        const uint32_t part = one.is_nonfinite ? TP_PART_BAD : TP_PART_ABOVE;
        const char *mark =
            one.is_nonfinite ? (screen->is_utf8 ? "▼" : "v") : (screen->is_utf8 ? "▲" : "^");
        uint32_t at = tp_screen_printf(screen, row, 0, part, "%s %" PRIu64 "  step %s", mark, n,
                                       tp_count_text(number, one.step)) +
                      2;
        if (tp_view_rank_count(run) > 1) {
            at = tp_screen_printf(screen, row, at, part, "rank %" PRIu32, one.rank);
            if (one.ranks > 1) {
                at = tp_screen_printf(screen, row, at, part, ", then %" PRIu32 " more",
                                      one.ranks - 1);
            }
            at += 2;
        }
        const uint32_t most = n == count && end - row > 1 ? end - row - (n > 1) : 1;
        row = put_lines(screen, row, at, most < 3 ? most : 3, part, one.text);
    }
    return row;
}

/* Whether anything of the rank isn't finite in that step. */
static bool is_bad(const tp_view_run *run, const tp_view_rank *rank, uint64_t step)
{
    const tp_view_column *column = tp_view_column_find(rank, step);
    tp_grid_view view = {0};
    bool bad = false;
    if (column == NULL) {
        return false;
    }
    const uint64_t i = (uint64_t)(column - tp_view_column_at(rank, 0));
    const tp_grid_place place = tp_grid_find(rank->grid, i);
    const tp_wish wish = {rank->rank, TP_GRID_NORM, 0, tp_grid_rows(rank->grid), i, i};
    tp_wishes_read(run, &wish);
    if (tp_grid_read(rank->grid, place.block, TP_GRID_NORM, 0, wish.count, false, &view, NULL) ==
        TP_OK) {
        for (uint32_t row = 0; row < view.count && !bad; row++) {
            const size_t at = (size_t)row * view.width + (i - place.first);
            bad = !isfinite(view.values[at]) &&
                  !tp_cell_is_none((tp_cell){view.values[at], view.codes[at]});
        }
    }
    tp_grid_view_free(&view);
    return bad;
}

static void draw_ranks(const tp_tail *tail, const tp_view_run *run, tp_screen *screen, uint32_t row)
{
    uint32_t at = tp_screen_put(screen, row, 2, 0, TP_PART_QUIET, "ranks  ");
    for (uint32_t r = 0; r < tp_view_rank_count(run); r++) {
        const tp_view_rank *rank = tp_view_rank_at(run, r);
        const tp_view_column *column = last_column(rank);
        const bool late = column == NULL || column->step + NEAR < tail->step;
        const bool bad = is_bad(run, rank, tail->step);
        const char *mark =
            bad ? (screen->is_utf8 ? "×" : "!") : (late ? "late" : (screen->is_utf8 ? "·" : "."));
        if (at + 12 > screen->width) {
            tp_screen_put(screen, row, at, 0, TP_PART_QUIET, screen->is_utf8 ? "…" : "...");
            return;
        }
        at = tp_screen_printf(screen, row, at,
                              bad    ? TP_PART_BAD
                              : late ? TP_PART_ABOVE
                                     : TP_PART_QUIET,
                              "%" PRIu32 " %s", rank->rank, mark) +
             1;
    }
}

static void draw_keys(const tp_tail *tail, tp_screen *screen)
{
    static const char *const keys[][2] = {
        {"q", "quit"},      {"up/down", "move"}, {"enter", "series"}, {"/", "filter"},
        {"s", "statistic"}, {"o", "order"},      {"space", "pause"}};
    static const char *const sorts[] = {"worst first", "as executed", "largest first"};
    const uint32_t row = screen->height - 1;
    uint32_t at = 1;
    if (tail->is_typing) {
        at = tp_screen_put(screen, row, at, 0, TP_PART_KEY, " / ") + 1;
        at = tp_screen_put(screen, row, at, 0, TP_PART_STRONG, tail->filter);
        at = tp_screen_put(screen, row, at, 0, TP_PART_PLAIN, screen->is_utf8 ? "█" : "_") + 2;
        tp_screen_put(screen, row, at, 0, TP_PART_QUIET,
                      "a part of names, or a pattern with *; enter: done, esc: all");
        return;
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *key = i == 1 && screen->is_utf8 ? "↑↓" : keys[i][0];
        const char *does = i == 2 && tail->is_detail   ? "list"
                           : i == 5                    ? sorts[tail->sort]
                           : i == 6 && tail->is_pinned ? "go on"
                                                       : keys[i][1];
        const uint32_t width = tp_screen_width(screen, key) + (uint32_t)strlen(does) + 4;
        if (at + width > screen->width) {
            return;
        }
        at = tp_screen_printf(screen, row, at, TP_PART_KEY, " %s ", key) + 1;
        at = tp_screen_put(screen, row, at, 0, TP_PART_QUIET, does) + 2;
    }
}

tp_status tp_tail_draw(tp_tail *tail, const tp_view_run *run, tp_screen *screen)
{
    uint64_t first;
    uint64_t last = 0;
    const bool has = tp_view_run_steps(run, &first, &last);
    const bool is_wide = tp_view_rank_count(run) > 1;
    if (has && !tail->is_pinned) {
        tail->step = common_step(run, last);
    }
    const tp_status status = tp_tail_collect(tail, run);
    draw_head(tail, run, screen, has);
    if (status != TP_OK || !has || screen->height < 8 || screen->width < 40) {
        return status;
    }
    const uint32_t room = screen->height - 2 - (tail->has_keys ? 1 : 0);
    const uint32_t blank = room >= 16;
    const uint32_t incidents = room >= 24 ? 6 : room >= 12 ? 3 : room >= 9 ? 2 : 1;
    uint32_t row = draw_incidents(run, screen, 2 + blank, incidents) + blank;
    const uint32_t ranks = is_wide && room >= 12 ? 1 + blank : 0;
    const uint32_t end = 2 + room - ranks;
    if (tail->is_detail && tail->lines.size > 0) {
        row = tp_tail_draw_series(tail, run, screen, row, end);
    } else {
        row = tp_tail_draw_list(tail, run, screen, row, end);
    }
    if (ranks > 0) {
        draw_ranks(tail, run, screen, (tail->has_keys ? end : row) + blank);
    }
    if (tail->has_keys) {
        draw_keys(tail, screen);
    }
    return TP_OK;
}
