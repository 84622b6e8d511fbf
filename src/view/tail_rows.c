/* The series of the terminal view: a list of them, the worst first, or one in full. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tensor/dtype.h"
#include "view/brief.h"
#include "view/tail.h"

#define SPARK_STEPS 120 /* of a line in the list */
#define SPARK_WIDTH 64  /* characters at most */
#define PLOT_STEPS 960  /* of one series */
#define LEVELS 8

static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
static const char *const ascii[] = {".", ":", "-", "=", "+", "*", "#", "%"};

static bool is_meant(const tp_tail *tail, const tp_view_key *key)
{
    return tail->filter[0] == '\0' || tp_view_is_meant(tail->filter, key) ||
           (!tail->is_pattern && strcasestr(key->row, tail->filter) != NULL);
}

static int by_distance(const void *a, const void *b)
{
    const tp_tail_line *p = a;
    const tp_tail_line *q = b;
    if (tp_cell_is_worse(p->spot.cell, q->spot.cell)) {
        return -1;
    }
    if (tp_cell_is_worse(q->spot.cell, p->spot.cell)) {
        return 1;
    }
    if (p->guilt != q->guilt) {
        return p->guilt > q->guilt ? -1 : 1;
    }
    return p->order < q->order ? -1 : p->order > q->order;
}

static int by_order(const void *a, const void *b)
{
    const tp_tail_line *p = a;
    const tp_tail_line *q = b;
    return p->order < q->order ? -1 : p->order > q->order;
}

static int by_value(const void *a, const void *b)
{
    const tp_tail_line *p = a;
    const tp_tail_line *q = b;
    const bool p_finite = isfinite(p->spot.cell.value);
    const bool q_finite = isfinite(q->spot.cell.value);
    if (!p_finite || !q_finite) {
        return p_finite != q_finite ? p_finite - q_finite : by_distance(a, b);
    }
    return p->spot.cell.value > q->spot.cell.value   ? -1
           : p->spot.cell.value < q->spot.cell.value ? 1
                                                     : by_order(a, b);
}

/* What is known of a series while the list is made. */
typedef struct place {
    uint32_t line; /* + 1 */
    uint32_t guilt;
} place;

/* Which series is said to have broken first in the newest incident of NaN and Inf, and which ones
 * broke in the same step: when all of them are broken, these lead to the cause. */
static tp_status find_first(const tp_view_run *run, place *places)
{
    tp_incident_place incident = {0};
    tp_buf spots = TP_BUF_INIT;
    tp_status status = TP_OK;
    for (uint64_t n = tp_incident_count(run); n > 0 && !incident.is_nonfinite; n--) {
        tp_incident_find(run, n, &incident);
    }
    if (incident.is_nonfinite) {
        status = tp_spots_of_step(run, TP_GRID_NORM, incident.step, &spots);
    }
    for (size_t i = 0; status == TP_OK && i < spots.size / sizeof(tp_spot); i++) {
        const tp_spot *spot = (const tp_spot *)(const void *)spots.data + i;
        if (!isfinite(spot->cell.value)) {
            places[spot->key].guilt = spot->key == incident.key ? 2 : 1;
        }
    }
    tp_buf_free(&spots);
    return status;
}

/* Takes in one statistic: of a series that is there already, what is worse. */
static tp_status collect_stat(tp_tail *tail, const tp_view_run *run, uint32_t stat, place *places)
{
    tp_buf spots = TP_BUF_INIT;
    tp_status status = tp_spots_of_step(run, stat, tail->step, &spots);
    for (size_t i = 0; status == TP_OK && i < spots.size / sizeof(tp_spot); i++) {
        const tp_spot *spot = (const tp_spot *)(const void *)spots.data + i;
        const tp_view_key *key = tp_view_key_at(run, spot->key);
        place *at = &places[spot->key];
        const tp_tail_line fresh = {*spot, stat, at->guilt, key->order};
        if (at->line > 0) {
            tp_tail_line *line = (tp_tail_line *)(void *)tail->lines.data + (at->line - 1);
            tp_cell cell = spot->cell;
            if (stat != line->stat && isfinite(cell.value) && isfinite(line->spot.cell.value)) {
                cell.value = line->spot.cell.value; /* only distances can be compared */
            }
            if (tp_cell_is_worse(cell, line->spot.cell)) {
                *line = fresh;
            }
        } else if (is_meant(tail, key)) {
            tp_buf_put(&tail->lines, &fresh, sizeof fresh);
            at->line = (uint32_t)(tail->lines.size / sizeof fresh);
        }
    }
    tp_buf_free(&spots);
    return tail->lines.failed ? TP_ERR_NOMEM : status;
}

tp_status tp_tail_collect(tp_tail *tail, const tp_view_run *run)
{
    static int (*const orders[])(const void *, const void *) = {by_distance, by_order, by_value};
    tp_buf memory = TP_BUF_INIT;
    const uint32_t keys = tp_view_key_count(run);
    place *places = tp_buf_extend(&memory, (keys + (size_t)1) * sizeof *places);
    tp_status status = places != NULL ? TP_OK : TP_ERR_NOMEM;
    tp_buf_clear(&tail->lines);
    for (uint32_t i = 0; i < keys && places != NULL; i++) {
        places[i] = (place){0, 0};
    }
    if (status == TP_OK) {
        status = find_first(run, places);
    }
    if (status == TP_OK) {
        status =
            collect_stat(tail, run, tail->stat == TP_TAIL_BOTH ? TP_GRID_NORM : tail->stat, places);
    }
    if (status == TP_OK && tail->stat == TP_TAIL_BOTH) {
        status = collect_stat(tail, run, TP_GRID_MAX_ABS, places);
    }
    tp_buf_free(&memory);
    if (status == TP_OK && tail->lines.size > 0) {
        qsort(tail->lines.data, tail->lines.size / sizeof(tp_tail_line), sizeof(tp_tail_line),
              orders[tail->sort]);
    }
    return status;
}

/* The name in so many columns: parts of the middle are left out, the last one is kept whole as long
 * as it fits. */
static void put_name(tp_screen *screen, uint32_t row, uint32_t column, uint32_t width,
                     uint32_t part, const char *name)
{
    const char *dots = screen->is_utf8 ? "…" : "...";
    const uint32_t gap = screen->is_utf8 ? 1 : 3;
    const uint32_t whole = tp_screen_width(screen, name);
    const char *tail = name;
    if (whole <= width) {
        tp_screen_put(screen, row, column, column + width, part, name);
        return;
    }
    /* The longest end behind a dot, beside the first part or two. */
    const char *head = strchr(name, '.');
    const char *second = head != NULL ? strchr(head + 1, '.') : NULL;
    head = second != NULL && (uint32_t)(second - name) * 2 < width ? second : head;
    uint32_t begin = head != NULL ? (uint32_t)(head - name) + 1 : 0;
    if (begin * 2 > width) {
        begin = 0;
    }
    for (tail = name + begin; *tail != '\0'; tail++) {
        if ((tail == name || tail[-1] == '.') &&
            tp_screen_width(screen, tail) + gap + begin <= width) {
            break;
        }
    }
    if (*tail == '\0') { /* not even the last part fits */
        begin = 0;
        for (tail = name; tp_screen_width(screen, tail) + gap > width;) {
            tail += tp_screen_width(screen, tail) > 1 && (tail[1] & 0xc0) == 0x80 ? 2 : 1;
            while ((*tail & 0xc0) == 0x80) {
                tail++;
            }
        }
    }
    char start[256];
    snprintf(start, sizeof start, "%.*s%s", (int)(begin < 200 ? begin : 200), name, dots);
    column = tp_screen_put(screen, row, column, column + width, part, start);
    tp_screen_put(screen, row, column, column + width, part, tail);
}

/* Cells of a series up to a column, so many buckets of steps: of each the worst. */
static uint32_t read_cells(const tp_spot *at, uint32_t stat, uint32_t steps, uint32_t width,
                           tp_cell *out)
{
    tp_grid_walk walk = {.view = {.count = 0}};
    const uint64_t end = at->column + 1;
    const uint64_t count = end < steps ? end : steps;
    const uint64_t per = count / width + (count % width != 0);
    const uint32_t used = (uint32_t)(count / per + (count % per != 0));
    for (uint32_t i = 0; i < used; i++) {
        out[i] = tp_cell_none();
    }
    for (uint64_t i = end - count; i < end; i++) {
        /* The last bucket is full: it is the one that is looked at. */
        tp_cell *to = &out[used - 1 - (end - 1 - i) / per];
        const tp_cell cell = tp_grid_cell(at->rank->grid, &walk, stat, at->row, i);
        if (!tp_view_column_at(at->rank, i)->is_over && !tp_cell_is_none(cell) &&
            (tp_cell_is_none(*to) || tp_cell_is_worse(cell, *to))) {
            *to = cell;
        }
    }
    tp_grid_view_free(&walk.view);
    return used;
}

/* Bottom and top of what is drawn: wide enough that what is usual looks flat. */
static void find_range(const tp_cell *cells, uint32_t count, uint32_t stat, float *low, float *high)
{
    *low = INFINITY;
    *high = -INFINITY;
    for (uint32_t i = 0; i < count; i++) {
        if (!tp_cell_is_none(cells[i]) && isfinite(cells[i].value)) {
            const float value = tp_view_scale(cells[i].value, stat);
            *low = fminf(*low, value);
            *high = fmaxf(*high, value);
        }
    }
    const bool is_log = stat == TP_GRID_NORM || stat == TP_GRID_MAX_ABS || stat == TP_GRID_STD;
    const float least = is_log ? 1.0F : 0.1F * fmaxf(fabsf(*low), fabsf(*high));
    if (*high - *low < least) {
        const float middle = *low + (*high - *low) / 2;
        *low = middle - least / 2;
        *high = middle + least / 2;
    }
}

static uint32_t level_of(float value, float low, float high, uint32_t levels)
{
    const float share = high > low ? (value - low) / (high - low) : 0;
    const float level = share * (float)levels;
    return level >= (float)levels ? levels - 1 : level > 0 ? (uint32_t)level : 0;
}

static uint32_t part_of(tp_cell cell)
{
    const float far = tp_distance_of_code(cell.code);
    return !isfinite(cell.value) ? TP_PART_BAD
           : far > 6             ? TP_PART_ABOVE
           : far < -6            ? TP_PART_BELOW
                                 : TP_PART_PLAIN;
}

static uint32_t spark_steps(const tp_tail *tail)
{
    return tail->spark_steps > 0 ? tail->spark_steps : SPARK_STEPS;
}

static void draw_spark(const tp_tail *tail, const tp_tail_line *line, tp_screen *screen,
                       uint32_t row, uint32_t column, uint32_t width)
{
    tp_cell cells[SPARK_WIDTH];
    float low;
    float high;
    const uint32_t count = read_cells(&line->spot, line->stat, spark_steps(tail),
                                      width < SPARK_WIDTH ? width : SPARK_WIDTH, cells);
    find_range(cells, count, line->stat, &low, &high);
    for (uint32_t i = 0; i < count; i++) {
        const char *text = " ";
        if (!tp_cell_is_none(cells[i])) {
            const uint32_t level =
                level_of(tp_view_scale(cells[i].value, line->stat), low, high, LEVELS);
            text = !isfinite(cells[i].value) ? (screen->is_utf8 ? "×" : "!")
                   : screen->is_utf8         ? blocks[level]
                                             : ascii[level];
        }
        tp_screen_put(screen, row, column + i, 0, part_of(cells[i]), text);
    }
}

static const char *stat_label(uint32_t stat)
{
    return stat == TP_GRID_MAX_ABS ? "max |x|" : tp_grid_stat_name(stat);
}

static const char *quantity_label(const tp_view_key *key)
{
    const char *name = tp_quantity_name(key->quantity);
    return name != NULL ? name : "?";
}

static void normal_text(const tp_screen *screen, const tp_spot *spot, uint32_t stat, char *text,
                        size_t size)
{
    char from[TP_NUMBER_TEXT];
    char to[TP_NUMBER_TEXT];
    double low;
    double high;
    text[0] = '\0';
    if (tp_spot_normal(spot, stat, &low, &high)) {
        snprintf(text, size, "%s%s%s", tp_number_text(from, low), screen->is_utf8 ? "–" : "..",
                 tp_number_text(to, high));
    }
}

static void distance_text(tp_cell cell, char *text, size_t size)
{
    const float far = tp_distance_of_code(cell.code);
    if (!isfinite(cell.value)) {
        tp_number_text(text, (double)cell.value);
    } else if (isnan(far)) {
        text[0] = '\0';
    } else {
        snprintf(text, size, "%.*f MAD", fabsf(far) < 10 ? 1 : 0, (double)far);
    }
}

/* Columns of the list, and where they end; 0: it has no room. */
typedef struct columns {
    uint32_t name; /* widths */
    uint32_t quantity;
    uint32_t stat;
    uint32_t value;
    uint32_t normal;
    uint32_t distance;
    uint32_t rank;
    uint32_t spark;
} columns;

/* Leaves out what matters least until names have room. */
static columns choose(const tp_screen *screen, uint32_t longest, uint32_t quantity, bool with_ranks)
{
    columns c = {0, quantity, 7, 9, 17, 9, with_ranks ? 4 : 0, 24};
    const struct {
        uint32_t *column;
        uint32_t width;
    } drops[] = {{&c.spark, 16}, {&c.spark, 8}, {&c.normal, 0},   {&c.stat, 0},
                 {&c.rank, 0},   {&c.spark, 0}, {&c.quantity, 0}, {&c.distance, 0}};
    const uint32_t wanted = longest < 28 ? longest : 28;
    for (size_t i = 0;; i++) {
        const uint32_t all[] = {c.quantity, c.stat, c.value, c.normal, c.distance, c.rank, c.spark};
        uint32_t used = 2;
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            used += all[k] > 0 ? all[k] + 1 : 0;
        }
        if (used + wanted <= screen->width || i == sizeof drops / sizeof *drops) {
            const uint32_t rest = screen->width > used ? screen->width - used : 1;
            const uint32_t more = rest > longest ? rest - longest : 0;
            c.name = rest < longest ? rest : longest;
            c.spark += c.spark > 0 ? (more < 36 ? more : 36) : 0;
            return c;
        }
        *drops[i].column = drops[i].width;
    }
}

static void draw_line(const tp_tail *tail, const tp_tail_line *line, const tp_view_run *run,
                      tp_screen *screen, uint32_t row, const columns *c, bool is_selected)
{
    const tp_view_key *key = tp_view_key_at(run, line->spot.key);
    char text[96];
    const uint32_t part = part_of(line->spot.cell);
    uint32_t at = 2;
    if (is_selected) {
        tp_screen_put(screen, row, 0, 0, TP_PART_STRONG, screen->is_utf8 ? "›" : ">");
    }
    put_name(screen, row, at, c->name, is_selected ? TP_PART_STRONG : TP_PART_PLAIN, key->row);
    at += c->name + 1;
    if (c->quantity > 0) {
        tp_screen_put(screen, row, at, at + c->quantity, TP_PART_QUIET, quantity_label(key));
        at += c->quantity + 1;
    }
    if (c->stat > 0) {
        tp_screen_put(screen, row, at, at + c->stat, TP_PART_QUIET, stat_label(line->stat));
        at += c->stat + 1;
    }
    at += c->value;
    tp_screen_put_right(screen, row, at++, part,
                        tp_number_text(text, (double)line->spot.cell.value));
    if (c->normal > 0) {
        normal_text(screen, &line->spot, line->stat, text, sizeof text);
        at += c->normal;
        tp_screen_put_right(screen, row, at++, TP_PART_QUIET, text);
    }
    if (c->distance > 0) {
        distance_text(line->spot.cell, text, sizeof text);
        at += c->distance;
        tp_screen_put_right(screen, row, at++, part, text);
    }
    if (c->rank > 0) {
        snprintf(text, sizeof text, "%" PRIu32, line->spot.rank->rank);
        at += c->rank;
        tp_screen_put_right(screen, row, at++, TP_PART_PLAIN, text);
    }
    if (c->spark > 0) {
        draw_spark(tail, line, screen, row, at, c->spark);
    }
}

static void draw_titles(const tp_tail *tail, tp_screen *screen, uint32_t row, const columns *c)
{
    static const char *const titles[] = {"worst now", "series", "largest now"};
    char text[sizeof tail->filter + 16];
    uint32_t at = 2;
    snprintf(text, sizeof text, "%s%s%s", titles[tail->sort], tail->filter[0] != '\0' ? ": " : "",
             tail->filter);
    tp_screen_put(screen, row, at, at + c->name + 1 + c->quantity, TP_PART_QUIET, text);
    at += c->name + 1 + (c->quantity > 0 ? c->quantity + 1 : 0);
    if (c->stat > 0) {
        tp_screen_put(screen, row, at, 0, TP_PART_QUIET, "stat");
        at += c->stat + 1;
    }
    at += c->value;
    tp_screen_put_right(screen, row, at++, TP_PART_QUIET, "value");
    if (c->normal > 0) {
        at += c->normal;
        tp_screen_put_right(screen, row, at++, TP_PART_QUIET, "normal");
    }
    if (c->distance > 0) {
        at += c->distance;
        tp_screen_put_right(screen, row, at++, TP_PART_QUIET, "off by");
    }
    if (c->rank > 0) {
        at += c->rank;
        tp_screen_put_right(screen, row, at++, TP_PART_QUIET, "rank");
    }
    if (c->spark >= 14) {
        if (spark_steps(tail) == UINT32_MAX) {
            tp_screen_put(screen, row, at, 0, TP_PART_QUIET, "all steps");
        } else {
            tp_screen_printf(screen, row, at, TP_PART_QUIET, "last %" PRIu32 " steps",
                             spark_steps(tail));
        }
    }
}

/* Where the selected line is; the list moves under it only as far as it must. */
static uint64_t find_selected(tp_tail *tail, uint64_t count, uint64_t shown)
{
    const tp_tail_line *lines = (const tp_tail_line *)(const void *)tail->lines.data;
    uint64_t selected = 0;
    for (uint64_t i = 0; tail->selected != TP_VIEW_NO_KEY && i < count; i++) {
        if (lines[i].spot.key == tail->selected) {
            selected = i;
        }
    }
    tail->shown = shown;
    tail->top = selected < tail->top ? selected : tail->top;
    tail->top = selected >= tail->top + shown ? selected + 1 - shown : tail->top;
    return selected;
}

uint32_t tp_tail_draw_list(tp_tail *tail, const tp_view_run *run, tp_screen *screen, uint32_t row,
                           uint32_t end)
{
    const tp_tail_line *lines = (const tp_tail_line *)(const void *)tail->lines.data;
    const uint64_t count = tail->lines.size / sizeof *lines;
    char text[TP_NUMBER_TEXT];
    uint32_t longest = 9;
    uint32_t quantity = 4;
    if (row + 2 > end) {
        return row;
    }
    uint64_t shown = end - row - 1;
    if (count > shown && shown > 2) {
        shown--; /* for how many more there are */
    }
    const uint64_t selected = count > 0 ? find_selected(tail, count, shown) : 0;
    for (uint64_t i = tail->top; i < count && i < tail->top + shown; i++) {
        const tp_view_key *key = tp_view_key_at(run, lines[i].spot.key);
        const uint32_t width = tp_screen_width(screen, key->row);
        const uint32_t other = (uint32_t)strlen(quantity_label(key));
        longest = width > longest ? width : longest;
        quantity = other > quantity ? other : quantity;
    }
    const columns c = choose(screen, longest, quantity, tp_view_rank_count(run) > 1);
    draw_titles(tail, screen, row++, &c);
    if (count == 0) {
        tp_screen_put(screen, row++, 2, 0, TP_PART_QUIET,
                      tail->filter[0] != '\0' ? "no series has a name like that in this step"
                                              : "nothing was recorded in this step");
    }
    for (uint64_t i = tail->top; i < count && i < tail->top + shown; i++) {
        draw_line(tail, &lines[i], run, screen, row++, &c, tail->has_keys && i == selected);
    }
    if (count > tail->top + shown && row < end) {
        tp_screen_printf(screen, row++, 2, TP_PART_QUIET, "%s %s more",
                         screen->is_utf8 ? "…" : "...",
                         tp_count_text(text, count - tail->top - shown));
    }
    return row;
}

/* Eighths of a character where there are such, else whole ones. */
static const char *bar_text(const tp_screen *screen, uint32_t eighths)
{
    return eighths == 0 ? " " : screen->is_utf8 ? blocks[eighths - 1] : "#";
}

static void draw_plot(const tp_tail_line *line, tp_screen *screen, uint32_t row, uint32_t end)
{
    tp_cell cells[PLOT_STEPS];
    char text[TP_NUMBER_TEXT];
    float low;
    float high;
    const uint32_t axis = 12;
    const uint32_t rows = end - row;
    uint32_t width = screen->width - axis - 2;
    width = width < PLOT_STEPS ? width : PLOT_STEPS;
    const uint32_t count = read_cells(&line->spot, line->stat, PLOT_STEPS, width, cells);
    find_range(cells, count, line->stat, &low, &high);
    const bool is_log =
        line->stat == TP_GRID_NORM || line->stat == TP_GRID_MAX_ABS || line->stat == TP_GRID_STD;
    if (low <= high) {
        tp_screen_put_right(screen, row, axis - 1, TP_PART_QUIET,
                            tp_number_text(text, is_log ? exp2((double)high) : (double)high));
        tp_screen_put_right(screen, end - 1, axis - 1, TP_PART_QUIET,
                            tp_number_text(text, is_log ? exp2((double)low) : (double)low));
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t part = part_of(cells[i]);
        if (tp_cell_is_none(cells[i])) {
            continue;
        }
        if (!isfinite(cells[i].value)) {
            tp_screen_put(screen, row, axis + i, 0, part, screen->is_utf8 ? "×" : "!");
            continue;
        }
        const uint32_t level =
            1 + level_of(tp_view_scale(cells[i].value, line->stat), low, high, rows * LEVELS);
        for (uint32_t k = 0; k < rows; k++) {
            const uint32_t below = k * LEVELS;
            const uint32_t filled = level <= below           ? 0
                                    : level - below > LEVELS ? LEVELS
                                                             : level - below;
            tp_screen_put(screen, end - 1 - k, axis + i, 0, part, bar_text(screen, filled));
        }
    }
}

uint32_t tp_tail_draw_series(const tp_tail *tail, const tp_view_run *run, tp_screen *screen,
                             uint32_t row, uint32_t end)
{
    const tp_tail_line *lines = (const tp_tail_line *)(const void *)tail->lines.data;
    const tp_tail_line *line = &lines[0];
    char text[96];
    for (uint64_t i = 0; i < tail->lines.size / sizeof *lines; i++) {
        line = lines[i].spot.key == tail->selected ? &lines[i] : line;
    }
    const tp_view_key *key = tp_view_key_at(run, line->spot.key);
    const char *dtype = tp_dtype_name(key->dtype);
    put_name(screen, row++, 2, screen->width - 4, TP_PART_STRONG, key->row);
    tp_screen_printf(screen, row++, 2, TP_PART_QUIET, "%s  %s  %s elements  rank %" PRIu32,
                     quantity_label(key), dtype != NULL ? dtype : "?",
                     tp_count_text(text, key->elements), line->spot.rank->rank);
    for (uint32_t stat = 0; stat < TP_GRID_STATS && row + 3 < end; stat++) {
        tp_spot spot = line->spot;
        tp_grid_walk walk = {.view = {.count = 0}};
        const tp_wish wish = {spot.rank->rank, stat, spot.row, 1, spot.column, spot.column};
        tp_wishes_read(run, &wish);
        spot.cell = tp_grid_cell(spot.rank->grid, &walk, stat, spot.row, spot.column);
        tp_grid_view_free(&walk.view);
        if (tp_cell_is_none(spot.cell)) {
            continue;
        }
        tp_screen_put(screen, row, 2, 0, stat == line->stat ? TP_PART_STRONG : TP_PART_QUIET,
                      stat_label(stat));
        tp_screen_put_right(screen, row, 24, part_of(spot.cell),
                            tp_number_text(text, (double)spot.cell.value));
        normal_text(screen, &spot, stat, text, sizeof text);
        tp_screen_put_right(screen, row, 46, TP_PART_QUIET, text);
        distance_text(spot.cell, text, sizeof text);
        tp_screen_put_right(screen, row++, 58, part_of(spot.cell), text);
    }
    if (row + 3 < end) {
        tp_screen_printf(screen, row + 1, 2, TP_PART_QUIET, "%s, the last %" PRIu64 " steps",
                         stat_label(line->stat),
                         line->spot.column + 1 < PLOT_STEPS ? line->spot.column + 1 : PLOT_STEPS);
        draw_plot(line, screen, row + 2, end);
        row = end;
    }
    return row;
}
