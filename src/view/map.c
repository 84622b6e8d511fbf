/* Maps: the worst cell of each row in each span of steps, a byte a cell. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "view/ask.h"
#include "view/brief.h"
#include "view/lines.h"

/* Bytes of cells: 0 … 249 on the ramp, then … */
#define BYTE_RAMP 249
#define BYTE_NAN 250
#define BYTE_POS_INF 251
#define BYTE_NEG_INF 252
#define BYTE_GAP 253
#define BYTE_NONE 254
#define BYTE_OUTSIDE 255

#define CLIP 12.0F /* MADs at the ends of the ramp */
#define NEUTRAL                                                                                    \
    3.0F               /* MADs that are no colour yet; half a MAD more for each doubling of what a
                        cell is the worst of */
#define FAINTEST 0.12F /* of the ramp, where colour begins */
#define SAMPLE 65536   /* values of which the range is found */
#define MOST_CELLS (1U << 22)

/* What a map is of. across: steps, or ranks of one step. */
typedef struct chart {
    const tp_view_run *run;
    const tp_ask *ask;
    uint32_t stat;
    uint64_t from;
    uint64_t to;
    uint64_t per; /* steps a column */
    uint32_t width;
    uint32_t height;
    bool of_ranks;   /* a column is a rank */
    bool ranks_down; /* a row is a rank */
    int64_t rank;    /* -1: all */
    tp_lines lines;
    tp_buf cells;  /* tp_cell [row][column] */
    tp_buf states; /* uint8_t of each column: bit 1 has records, bit 2 has a gap */
    uint64_t gaps;
    tp_grid_view view;
    tp_buf worst;    /* tp_cell of each line, in a block */
    uint32_t coarse; /* steps whose worst stands for each of them: of the widest block; 0: none */
    bool is_coming;  /* the single steps of these */
} chart;

static tp_cell *cell_at(const chart *c, uint32_t row, uint32_t column)
{
    return (tp_cell *)(void *)c->cells.data + (size_t)row * c->width + column;
}

static uint32_t column_of(const chart *c, uint64_t step, uint32_t rank_index)
{
    return c->of_ranks ? rank_index : (uint32_t)((step - c->from) / c->per);
}

static void put(chart *c, uint32_t line, uint32_t rank_index, uint32_t column, tp_cell cell)
{
    tp_cell *to = cell_at(c, c->ranks_down ? rank_index : line, column);
    if (tp_cell_is_worse(cell, *to)) {
        *to = cell;
    }
    tp_line *of = tp_lines_at(&c->lines, line);
    if (isfinite(cell.value) && tp_cell_is_worse(cell, of->worst)) {
        of->worst = cell;
    }
}

static bool is_wanted(const chart *c, const tp_view_column *column)
{
    return !column->is_over && column->step >= c->from && column->step <= c->to;
}

/* Whether all columns of the block are wanted and fall into one of the map. */
static bool is_in_one(const chart *c, const tp_view_rank *rank, tp_grid_place place)
{
    if (!place.is_full) {
        return false;
    }
    for (uint64_t i = place.first; i < place.first + place.width; i++) {
        const tp_view_column *column = tp_view_column_at(rank, i);
        if (!is_wanted(c, column) ||
            (column->step - c->from) / c->per !=
                (tp_view_column_at(rank, place.first)->step - c->from) / c->per) {
            return false;
        }
    }
    return true;
}

/* Columns of the map that the block's columns are in; UINT32_MAX: none. */
static void find_columns(const chart *c, const tp_view_rank *rank, uint32_t rank_index,
                         tp_grid_place place, uint32_t to[TP_GRID_WIDTH])
{
    const uint64_t columns = tp_view_column_count(rank);
    for (uint32_t k = 0; k < place.width; k++) {
        const tp_view_column *column =
            place.first + k < columns ? tp_view_column_at(rank, place.first + k) : NULL;
        to[k] = column == NULL || !is_wanted(c, column) ? UINT32_MAX
                                                        : column_of(c, column->step, rank_index);
    }
}

/* The worst cell of each line, in all columns of the map that the block has. */
static void put_worst(chart *c, uint32_t rank_index, const uint32_t *keys, uint32_t width,
                      const uint32_t to[TP_GRID_WIDTH])
{
    const uint32_t lines = tp_lines_count(&c->lines);
    tp_cell *worst = (tp_cell *)(void *)c->worst.data;
    for (uint32_t line = 0; line < lines; line++) {
        worst[line] = tp_cell_none();
    }
    for (uint32_t i = 0; i < c->view.count; i++) {
        const uint32_t line = tp_lines_of(&c->lines, keys[i]);
        const tp_cell cell = {c->view.values[i], c->view.codes[i]};
        if (line != UINT32_MAX && tp_cell_is_worse(cell, worst[line])) {
            worst[line] = cell;
        }
    }
    for (uint32_t line = 0; line < lines; line++) {
        for (uint32_t k = 0; k < width && !tp_cell_is_none(worst[line]); k++) {
            if (to[k] != UINT32_MAX && (k == 0 || to[k] != to[k - 1])) {
                put(c, line, rank_index, to[k], worst[line]);
            }
        }
    }
}

static void take_block(chart *c, const tp_view_rank *rank, uint32_t rank_index, tp_grid_place place,
                       uint32_t first, uint32_t count)
{
    const bool whole = is_in_one(c, rank, place);
    const bool coarse = place.is_brief && !whole &&
                        !tp_grid_has_fine(rank->grid, place.block, c->stat, first, count);
    const uint32_t *keys = (const uint32_t *)(const void *)rank->rows.data + first;
    uint32_t to[TP_GRID_WIDTH];
    if (tp_grid_read(rank->grid, place.block, c->stat, first, count, whole || coarse, &c->view,
                     NULL) != TP_OK) {
        tp_brief_hurry(rank, c->stat); /* it may not be there yet */
        return;
    }
    find_columns(c, rank, rank_index, place, to);
    if (whole || coarse) {
        c->coarse = coarse && place.width > c->coarse ? place.width : c->coarse;
        put_worst(c, rank_index, keys, place.width, to);
        return;
    }
    for (uint32_t i = 0; i < c->view.count; i++) {
        const uint32_t line = tp_lines_of(&c->lines, keys[i]);
        for (uint32_t k = 0; line != UINT32_MAX && k < place.width; k++) {
            const size_t at = (size_t)i * c->view.width + k;
            const tp_cell cell = {c->view.values[at], c->view.codes[at]};
            if (to[k] != UINT32_MAX && !tp_cell_is_none(cell)) {
                put(c, line, rank_index, to[k], cell);
            }
        }
    }
}

static void take_rank(chart *c, const tp_view_rank *rank, uint32_t rank_index)
{
    const uint64_t columns = tp_view_column_count(rank);
    tp_wish wish = {.rank = rank->rank, .stat = c->stat, .from = UINT64_MAX};
    uint64_t behind = 0; /* the last block that was taken */
    const uint32_t before = c->coarse;
    const bool has = tp_lines_rows(&c->lines, rank, &wish.first, &wish.count);
    c->coarse = 0;
    for (uint64_t i = 0; i < columns; i++) {
        const tp_view_column *column = tp_view_column_at(rank, i);
        if (!is_wanted(c, column)) {
            continue;
        }
        uint8_t *state = c->states.data + column_of(c, column->step, rank_index);
        const bool is_gap = (column->flags & TP_BATCH_GAP) != 0;
        *state |= is_gap ? 2 : 1;
        c->gaps += is_gap;
        if (has && i >= behind) {
            const tp_grid_place place = tp_grid_find(rank->grid, i);
            take_block(c, rank, rank_index, place, wish.first, wish.count);
            behind = place.first + place.width;
        }
        wish.from = i < wish.from ? i : wish.from;
        wish.to = i;
    }
    if (c->coarse > 0 && tp_wishes_add(c->run, &wish)) {
        c->is_coming = true;
    }
    c->coarse = c->coarse > before ? c->coarse : before;
}

static int by_value(const void *a, const void *b)
{
    const float p = *(const float *)a;
    const float q = *(const float *)b;
    return p < q ? -1 : p > q;
}

typedef struct range {
    double low;
    double high;
    bool is_log;
    uint64_t below; /* cells that are outside */
    uint64_t above;
} range;

/* From 0.5 to 99.5 % of the finite values. */
static range find_range(const chart *c)
{
    const tp_cell *cells = (const tp_cell *)(const void *)c->cells.data;
    const size_t total = c->cells.size / sizeof *cells;
    const size_t every = total / SAMPLE + 1;
    tp_buf sample = TP_BUF_INIT;
    range found = {0, 1, false, 0, 0};
    for (size_t i = 0; i < total; i += every) {
        if (isfinite(cells[i].value)) {
            tp_buf_put(&sample, &cells[i].value, sizeof(float));
        }
    }
    const size_t count = sample.failed ? 0 : sample.size / sizeof(float);
    const float *values = (const float *)(const void *)sample.data;
    if (count > 0) {
        qsort(sample.data, count, sizeof(float), by_value);
        found.low = (double)values[(size_t)((double)(count - 1) * 0.005)];
        found.high = (double)values[(size_t)((double)(count - 1) * 0.995)];
        found.is_log = found.low > 0 && found.high / found.low > 50;
    }
    tp_buf_free(&sample);
    return found;
}

/* Of many values the worst is far off by chance alone. */
static float neutral_of(const chart *c)
{
    const uint32_t ranks =
        c->of_ranks || c->ranks_down || c->rank >= 0 ? 1 : tp_view_rank_count(c->run);
    const float steps = (float)(c->per > c->coarse ? c->per : c->coarse);
    return fminf(CLIP - 2, NEUTRAL + 0.5F * log2f(steps * (float)(ranks > 0 ? ranks : 1)));
}

static uint8_t byte_of_distance(int8_t code, float neutral)
{
    const float distance = tp_distance_of_code(code);
    if (isnan(distance) || fabsf(distance) < neutral) {
        return 125;
    }
    const float share = (fminf(CLIP, fabsf(distance)) - neutral) / (CLIP - neutral);
    const float colour = FAINTEST + (1 - FAINTEST) * share;
    return (uint8_t)lrintf(125.0F + (distance < 0 ? -colour : colour) * 124.0F);
}

static uint8_t byte_of_value(double value, range *r)
{
    r->below += value < r->low;
    r->above += value > r->high;
    const double low = r->is_log ? log2(r->low) : r->low;
    const double high = r->is_log ? log2(r->high) : r->high;
    const double here = r->is_log ? (value > 0 ? log2(value) : low) : value;
    const double share = high > low ? (here - low) / (high - low) : 0.5;
    return (uint8_t)lrint(BYTE_RAMP * fmin(1, fmax(0, share)));
}

static void put_bytes(chart *c, tp_buf *out, bool by_distance, range *r)
{
    const tp_cell *cells = (const tp_cell *)(const void *)c->cells.data;
    uint8_t *to = tp_buf_extend(out, (size_t)c->width * c->height);
    uint8_t of_code[256];
    const float neutral = neutral_of(c);
    for (int code = -128; code < 128; code++) {
        of_code[code + 128] = byte_of_distance((int8_t)code, neutral);
    }
    for (size_t i = 0; to != NULL && i < (size_t)c->width * c->height; i++) {
        const tp_cell cell = cells[i];
        const uint8_t state = c->states.data[i % c->width];
        if (tp_cell_is_none(cell)) {
            to[i] = (state & 2) != 0 ? BYTE_GAP : state == 0 ? BYTE_OUTSIDE : BYTE_NONE;
        } else if (!isfinite(cell.value)) {
            to[i] = isnan(cell.value) ? BYTE_NAN : cell.value > 0 ? BYTE_POS_INF : BYTE_NEG_INF;
        } else {
            to[i] = by_distance ? of_code[cell.code + 128] : byte_of_value((double)cell.value, r);
        }
    }
}

static void put_lines(const chart *c, tp_buf *out)
{
    tp_buf_printf(out, ",\"rows\":[");
    for (uint32_t i = 0; i < c->height; i++) {
        tp_buf_printf(out, i > 0 ? "," : "");
        if (c->ranks_down) {
            tp_buf_printf(out, "[\"rank %" PRIu32 "\",\"\",0,0]", tp_view_rank_at(c->run, i)->rank);
            continue;
        }
        const tp_line *line = tp_lines_at(&c->lines, i);
        const tp_view_key *key = tp_view_key_at(c->run, line->key);
        tp_buf_printf(out, "[");
        tp_text_put_json(out, line->is_layer ? key->layer : key->row);
        tp_buf_printf(out, ",");
        tp_text_put_json(out, key->layer);
        tp_buf_printf(out, ",%" PRIu32 ",", line->is_layer ? line->count : 0);
        if (tp_cell_is_none(line->worst) || !isfinite(line->worst.value)) {
            tp_json_cell(out, line->worst);
        } else {
            const float far = tp_distance_of_code(line->worst.code);
            tp_buf_printf(out, "%.3g", isnan(far) ? 0.0 : (double)far);
        }
        tp_buf_printf(out, "]");
    }
    tp_buf_printf(out, "]");
}

static void put_chart(chart *c, tp_answer *answer)
{
    const bool by_distance = strcmp(tp_ask_text(c->ask, "by", "distance"), "value") != 0;
    range r = by_distance ? (range){-(double)CLIP, (double)CLIP, false, 0, 0} : find_range(c);
    tp_buf bytes = TP_BUF_INIT;
    tp_buf head = TP_BUF_INIT;
    put_bytes(c, &bytes, by_distance, &r);
    tp_buf_printf(&head,
                  "{\"from\":%" PRIu64 ",\"to\":%" PRIu64 ",\"per\":%" PRIu64 ",\"w\":%" PRIu32
                  ",\"h\":%" PRIu32 ",\"low\":%.6g,\"high\":%.6g,\"log\":%s,\"below\":%" PRIu64
                  ",\"above\":%" PRIu64 ",\"gaps\":%" PRIu64 ",\"neutral\":%.4g,\"faintest\":%.4g,"
                  "\"coarse\":%" PRIu32 ",\"coming\":%s",
                  c->from, c->to, c->per, c->width, c->height, r.low, r.high,
                  r.is_log ? "true" : "false", r.below, r.above, c->gaps, (double)neutral_of(c),
                  (double)FAINTEST, c->coarse, c->is_coming ? "true" : "false");
    if (c->of_ranks) {
        tp_buf_printf(&head, ",\"ranks\":[");
        for (uint32_t i = 0; i < c->width; i++) {
            tp_buf_printf(&head, "%s%" PRIu32, i > 0 ? "," : "", tp_view_rank_at(c->run, i)->rank);
        }
        tp_buf_printf(&head, "]");
    }
    put_lines(c, &head);
    tp_buf_printf(&head, "}");
    answer->type = "application/octet-stream";
    tp_buf_put_u32(&answer->body, (uint32_t)head.size);
    tp_buf_put_buf(&answer->body, &head);
    tp_buf_put_buf(&answer->body, &bytes);
    tp_buf_free(&head);
    tp_buf_free(&bytes);
}

static bool prepare(chart *c, tp_answer *answer)
{
    const char *cut = tp_ask_text(c->ask, "cut", "module-step");
    const uint32_t ranks = tp_view_rank_count(c->run);
    c->stat = tp_grid_stat_from_name(tp_ask_text(c->ask, "s", "norm"));
    if (c->stat == TP_GRID_STATS || tp_ask_quantity(c->ask) == 0) {
        tp_answer_wrong(answer, 400, "no such quantity or statistic");
        return false;
    }
    tp_ask_steps(c->ask, c->run, &c->from, &c->to);
    c->of_ranks = strcmp(cut, "module-rank") == 0;
    c->ranks_down = strcmp(cut, "rank-step") == 0;
    if (c->of_ranks) {
        c->from = tp_ask_number(c->ask, "step", c->to);
        c->to = c->from;
    }
    c->rank = (int64_t)tp_ask_number(c->ask, "rank", UINT32_MAX);
    if (c->rank == UINT32_MAX || c->of_ranks || c->ranks_down) {
        c->rank = -1;
    }
    const uint64_t span = c->to - c->from + 1;
    uint64_t width = tp_ask_number(c->ask, "w", 400);
    width = width < 1 ? 1 : width > 4096 ? 4096 : width;
    c->per = span / width + (span % width != 0);
    c->width = c->of_ranks ? ranks : (uint32_t)(span / c->per + (span % c->per != 0));
    if (tp_lines_make(&c->lines, c->run, c->ask) != TP_OK) {
        tp_answer_wrong(answer, 503, "no memory");
        return false;
    }
    c->height = c->ranks_down ? ranks : tp_lines_count(&c->lines);
    if ((uint64_t)c->width * c->height > MOST_CELLS) {
        tp_answer_wrong(answer, 400, "too many cells: ask for fewer rows or columns");
        return false;
    }
    for (size_t i = 0; i < (size_t)c->width * c->height; i++) {
        const tp_cell none = tp_cell_none();
        tp_buf_put(&c->cells, &none, sizeof none);
    }
    void *states = tp_buf_extend(&c->states, c->width);
    void *worst = tp_buf_extend(&c->worst, tp_lines_count(&c->lines) * sizeof(tp_cell) + 1);
    if (states == NULL || worst == NULL || c->cells.failed) {
        tp_answer_wrong(answer, 503, "no memory");
        return false;
    }
    memset(states, 0, c->width);
    return true;
}

void tp_answer_map(const tp_view_run *run, const tp_ask *ask, tp_answer *answer)
{
    chart c = {.run = run, .ask = ask};
    if (prepare(&c, answer)) {
        for (uint32_t i = 0; i < tp_view_rank_count(run); i++) {
            const tp_view_rank *rank = tp_view_rank_at(run, i);
            if (c.rank < 0 || rank->rank == c.rank) {
                take_rank(&c, rank, i);
            }
        }
        put_chart(&c, answer);
    }
    tp_lines_free(&c.lines);
    tp_buf_free(&c.cells);
    tp_buf_free(&c.states);
    tp_buf_free(&c.worst);
    tp_grid_view_free(&c.view);
}
