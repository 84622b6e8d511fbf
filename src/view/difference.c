/* How far two runs are from each other, as a map. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "view/lines.h"
#include "view/parting.h"

#define MOST_VALUES 20000000 /* that are compared */
#define BYTE_NAN 250         /* finite in one of them alone */
#define BYTE_NONE 254
#define NEUTRAL 125
#define FAINTEST 20 /* of 124: just beyond what is allowed */

/* A step of both. */
typedef struct pair {
    uint64_t step;
    uint64_t a; /* columns */
    uint64_t b;
} pair;

typedef struct chart {
    const tp_view_run *a;
    const tp_view_run *b;
    uint32_t stat;
    uint64_t from;
    uint64_t to;
    uint64_t per;
    uint32_t width;
    uint32_t height;
    tp_lines lines;
    tp_buf cells; /* float: how many times what is allowed; NaN: nothing; infinite: finite in one */
    float *worst; /* of each line */
    uint64_t compared;
    uint64_t differ;
    uint64_t first; /* step with a difference */
} chart;

static uint64_t next_column(const tp_view_rank *rank, uint64_t at)
{
    while (at < tp_view_column_count(rank) && tp_view_column_at(rank, at)->is_over) {
        at++;
    }
    return at;
}

/* Steps of both ranks in the window. */
static void find_pairs(const chart *c, const tp_view_rank *a, const tp_view_rank *b, tp_buf *out)
{
    uint64_t i = next_column(a, 0);
    uint64_t k = next_column(b, 0);
    tp_buf_clear(out);
    while (i < tp_view_column_count(a) && k < tp_view_column_count(b)) {
        const uint64_t of_a = tp_view_column_at(a, i)->step;
        const uint64_t of_b = tp_view_column_at(b, k)->step;
        if (of_a == of_b && of_a >= c->from && of_a <= c->to) {
            const pair both = {of_a, i, k};
            tp_buf_put(out, &both, sizeof both);
        }
        i = of_a <= of_b ? next_column(a, i + 1) : i;
        k = of_b <= of_a ? next_column(b, k + 1) : k;
    }
}

/* In multiples of what is allowed; infinite where one of them alone is finite. */
static float distance_between(float a, float b, double tolerance)
{
    if (!isfinite(a) || !isfinite(b)) {
        const bool is_same = (isnan(a) && isnan(b)) || a == b;
        return is_same ? 0 : INFINITY;
    }
    const double scale = fmax(fabs((double)a), fabs((double)b));
    return scale > 0 ? (float)(fabs((double)a - (double)b) / scale / tolerance) : 0;
}

static void take_series(chart *c, const tp_view_rank *a, const tp_view_rank *b, uint32_t key,
                        const tp_buf *pairs)
{
    const tp_view_key *one = tp_view_key_at(c->a, key);
    const uint32_t line = tp_lines_of(&c->lines, key);
    const uint32_t other = tp_view_key_find(c->b, one->quantity, one->row);
    const uint32_t row_a = tp_view_row_of(a, key);
    const uint32_t row_b = other != TP_VIEW_NO_KEY ? tp_view_row_of(b, other) : UINT32_MAX;
    const pair *all = (const pair *)(const void *)pairs->data;
    tp_grid_walk of_a = {0};
    tp_grid_walk of_b = {0};
    if (line == UINT32_MAX || row_a == UINT32_MAX || row_b == UINT32_MAX) {
        return;
    }
    const double tolerance = fmax(fmax(tp_parting_tolerance(one->dtype),
                                       tp_parting_tolerance(tp_view_key_at(c->b, other)->dtype)),
                                  1e-7); /* cells are f32 */
    float *cells = (float *)(void *)c->cells.data + (size_t)line * c->width;
    for (size_t i = 0; i < pairs->size / sizeof *all; i++) {
        const tp_cell x = tp_grid_cell(a->grid, &of_a, c->stat, row_a, all[i].a);
        const tp_cell y = tp_grid_cell(b->grid, &of_b, c->stat, row_b, all[i].b);
        if (tp_cell_is_none(x) || tp_cell_is_none(y)) {
            continue;
        }
        const float far = distance_between(x.value, y.value, tolerance);
        float *to = &cells[(all[i].step - c->from) / c->per];
        *to = isnan(*to) || far > *to ? far : *to;
        c->worst[line] = fmaxf(c->worst[line], far);
        c->compared++;
        c->differ += far > 1;
        c->first = far > 1 && all[i].step < c->first ? all[i].step : c->first;
    }
    tp_grid_view_free(&of_a.view);
    tp_grid_view_free(&of_b.view);
}

static void put_head(const chart *c, tp_buf *out)
{
    tp_buf_printf(out,
                  "{\"from\":%" PRIu64 ",\"to\":%" PRIu64 ",\"per\":%" PRIu64 ",\"w\":%" PRIu32
                  ",\"h\":%" PRIu32 ",\"compared\":%" PRIu64 ",\"differ\":%" PRIu64
                  ",\"first\":%" PRId64 ",\"rows\":[",
                  c->from, c->to, c->per, c->width, c->height, c->compared, c->differ,
                  c->first != UINT64_MAX ? (int64_t)c->first : -1);
    for (uint32_t i = 0; i < c->height; i++) {
        const tp_line *line = tp_lines_at(&c->lines, i);
        const tp_view_key *key = tp_view_key_at(c->a, line->key);
        tp_buf_printf(out, i > 0 ? ",[" : "[");
        tp_text_put_json(out, line->is_layer ? key->layer : key->row);
        tp_buf_printf(out, ",");
        tp_text_put_json(out, key->layer);
        tp_buf_printf(out, ",%" PRIu32 ",", line->is_layer ? line->count : 0);
        tp_json_number(out, (double)c->worst[i]);
        tp_buf_printf(out, "]");
    }
    tp_buf_printf(out, "]}");
}

/* Colours: from what is allowed on, by powers of ten, to a million times that. */
static void put_bytes(const chart *c, tp_buf *out)
{
    const float *cells = (const float *)(const void *)c->cells.data;
    for (size_t i = 0; i < (size_t)c->width * c->height; i++) {
        uint8_t byte = NEUTRAL;
        if (isnan(cells[i])) {
            byte = BYTE_NONE;
        } else if (isinf(cells[i])) {
            byte = BYTE_NAN;
        } else if (cells[i] > 1) {
            const float share = fminf(1, log10f(cells[i]) / 6);
            byte = (uint8_t)(NEUTRAL + FAINTEST + lrintf((124 - FAINTEST) * share));
        }
        tp_buf_put(out, &byte, 1);
    }
}

static bool prepare(chart *c, const tp_ask *ask, tp_answer *answer)
{
    uint64_t width = tp_ask_number(ask, "w", 400);
    c->stat = tp_grid_stat_from_name(tp_ask_text(ask, "s", "norm"));
    /* What can be near zero by chance has no size of its own to be held against. */
    if ((c->stat != TP_GRID_NORM && c->stat != TP_GRID_MAX_ABS && c->stat != TP_GRID_STD) ||
        tp_ask_quantity(ask) == 0) {
        tp_answer_wrong(answer, 400, "write s=norm, max_abs or std, and a quantity");
        return false;
    }
    tp_ask_steps(ask, c->a, &c->from, &c->to);
    width = width < 1 ? 1 : width > 2000 ? 2000 : width;
    const uint64_t span = c->to - c->from + 1;
    c->per = span / width + (span % width != 0);
    c->width = (uint32_t)(span / c->per + (span % c->per != 0));
    c->first = UINT64_MAX;
    if (tp_lines_make(&c->lines, c->a, ask) != TP_OK) {
        tp_answer_wrong(answer, 503, "no memory");
        return false;
    }
    c->height = tp_lines_count(&c->lines);
    const size_t cells = (size_t)c->width * c->height;
    float *memory = tp_buf_extend(&c->cells, cells * sizeof(float) + 1);
    c->worst = tp_calloc(c->height + 1, sizeof *c->worst);
    if (memory == NULL || c->worst == NULL) {
        tp_answer_wrong(answer, 503, "no memory");
        return false;
    }
    for (size_t i = 0; i < cells; i++) {
        memory[i] = (float)NAN;
    }
    return true;
}

/* Each rank with its own, or with the first one that there is; or the two that are asked for. */
static void compare(chart *c, const tp_ask *ask)
{
    const uint64_t of_a = tp_ask_number(ask, "rank", UINT64_MAX);
    const uint64_t of_b = tp_ask_number(ask, "rank2", UINT64_MAX);
    const bool both = of_a <= UINT32_MAX && of_b <= UINT32_MAX;
    tp_buf pairs = TP_BUF_INIT;
    for (uint32_t i = 0; i < tp_view_rank_count(c->a) && tp_view_rank_count(c->b) > 0; i++) {
        const tp_view_rank *a = tp_view_rank_at(c->a, i);
        const tp_view_rank *b = tp_view_rank_find(c->b, both ? (uint32_t)of_b : a->rank);
        if (both && a->rank != of_a) {
            continue;
        }
        b = b == NULL && !both ? tp_view_rank_at(c->b, 0) : b;
        if (b == NULL) {
            continue;
        }
        find_pairs(c, a, b, &pairs);
        for (uint32_t key = 0; key < tp_view_key_count(c->a) && !pairs.failed; key++) {
            if (c->compared < MOST_VALUES) {
                take_series(c, a, b, key, &pairs);
            }
        }
    }
    tp_buf_free(&pairs);
}

void tp_answer_difference(tp_library *library, const tp_ask *ask, tp_answer *answer)
{
    tp_view_run *a = tp_library_find(library, tp_ask_text(ask, "r", ""));
    tp_view_run *b = tp_library_find(library, tp_ask_text(ask, "r2", ""));
    if (a == NULL || b == NULL) {
        tp_answer_wrong(answer, 404, "no such run");
        return;
    }
    chart c = {.a = a, .b = b, .cells = TP_BUF_INIT};
    tp_buf head = TP_BUF_INIT;
    pthread_rwlock_rdlock(&a->lock);
    if (a != b) {
        pthread_rwlock_rdlock(&b->lock);
    }
    if (prepare(&c, ask, answer)) {
        compare(&c, ask);
        put_head(&c, &head);
        answer->type = "application/octet-stream";
        tp_buf_put_u32(&answer->body, (uint32_t)head.size);
        tp_buf_put_buf(&answer->body, &head);
        put_bytes(&c, &answer->body);
    }
    if (a != b) {
        pthread_rwlock_unlock(&b->lock);
    }
    pthread_rwlock_unlock(&a->lock);
    tp_buf_free(&head);
    tp_buf_free(&c.cells);
    tp_free(c.worst);
    tp_lines_free(&c.lines);
}
