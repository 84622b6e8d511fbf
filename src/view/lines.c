#include "view/lines.h"

#include <stdlib.h>
#include <string.h>

#define MOST_LINES 4000 /* that a map has, unfolded or not */

uint32_t tp_lines_count(const tp_lines *lines)
{
    return (uint32_t)(lines->lines.size / sizeof(tp_line));
}

tp_line *tp_lines_at(const tp_lines *lines, uint32_t index)
{
    return (tp_line *)(void *)lines->lines.data + index;
}

uint32_t tp_lines_of(const tp_lines *lines, uint32_t key)
{
    return ((const uint32_t *)(const void *)lines->of_keys.data)[key];
}

bool tp_lines_rows(const tp_lines *lines, const tp_view_rank *rank, uint32_t *first,
                   uint32_t *count)
{
    const uint32_t rows = tp_grid_rows(rank->grid);
    const uint32_t *keys = (const uint32_t *)(const void *)rank->rows.data;
    uint32_t low = rows;
    uint32_t high = 0;
    for (uint32_t row = 0; row < rows; row++) {
        if (tp_lines_of(lines, keys[row]) != UINT32_MAX) {
            low = row < low ? row : low;
            high = row;
        }
    }
    *first = low;
    *count = low < rows ? high - low + 1 : 0;
    return *count > 0;
}

void tp_lines_free(tp_lines *lines)
{
    tp_buf_free(&lines->lines);
    tp_buf_free(&lines->of_keys);
}

bool tp_lines_has(const tp_view_key *key, uint32_t quantity, const char *side)
{
    return key->quantity == quantity &&
           (key->role == TP_ROLE_NONE || strcmp(side, "all") == 0 ||
            strcmp(side, key->role == TP_ROLE_INPUT ? "input" : "output") == 0);
}

/* Whether a layer stands in a list "blocks.3,blocks.7". */
static bool is_in(const char *list, const char *layer)
{
    const size_t length = strlen(layer);
    for (const char *at = list; *at != '\0';) {
        const size_t part = strcspn(at, ",");
        if (part == length && memcmp(at, layer, length) == 0) {
            return true;
        }
        at += part + (at[part] == ',');
    }
    return false;
}

static int by_order(const void *a, const void *b)
{
    const tp_line *p = a;
    const tp_line *q = b;
    if (p->order != q->order) {
        return p->order < q->order ? -1 : 1;
    }
    return p->key < q->key ? -1 : p->key > q->key;
}

/* Puts the series of a layer into one line, at the place of the first of them. */
static tp_status fold(tp_lines *lines, const tp_view_run *run, const char *unfolded)
{
    tp_map layers = TP_MAP_INIT;
    uint32_t kept = 0;
    tp_status status = TP_OK;
    for (uint32_t i = 0; i < tp_lines_count(lines) && status == TP_OK; i++) {
        const tp_line one = *tp_lines_at(lines, i);
        const char *layer = tp_view_key_at(run, one.key)->layer;
        uint32_t place;
        if (layer[0] == '\0' || is_in(unfolded, layer)) {
            *tp_lines_at(lines, kept++) = one;
        } else if (tp_map_get(&layers, layer, strlen(layer), &place) == TP_OK) {
            tp_lines_at(lines, place)->count++;
        } else {
            status = tp_map_set(&layers, layer, strlen(layer), kept);
            *tp_lines_at(lines, kept) = one;
            tp_lines_at(lines, kept++)->is_layer = true;
        }
    }
    lines->lines.size = kept * sizeof(tp_line);
    /* Which line each series is in. */
    uint32_t *of_keys = (uint32_t *)(void *)lines->of_keys.data;
    for (uint32_t key = 0; key < tp_view_key_count(run) && status == TP_OK; key++) {
        const char *layer = tp_view_key_at(run, key)->layer;
        if (of_keys[key] != UINT32_MAX && layer[0] != '\0') {
            uint32_t place;
            of_keys[key] = tp_map_get(&layers, layer, strlen(layer), &place) == TP_OK ? place : 0;
        }
    }
    for (uint32_t i = 0; i < kept; i++) {
        if (!tp_lines_at(lines, i)->is_layer) {
            of_keys[tp_lines_at(lines, i)->key] = i;
        }
    }
    tp_map_free(&layers);
    return status;
}

tp_status tp_lines_make(tp_lines *out, const tp_view_run *run, const tp_ask *ask)
{
    const uint32_t quantity = tp_ask_quantity(ask);
    const char *side = tp_ask_text(ask, "side", "output");
    const char *rows = tp_ask_text(ask, "rows", "");
    const uint64_t fit = tp_ask_number(ask, "h", 400);
    const char *unfolded = tp_ask_text(ask, "unfold", "");
    for (uint32_t key = 0; key < tp_view_key_count(run); key++) {
        const tp_view_key *one = tp_view_key_at(run, key);
        const bool has =
            tp_lines_has(one, quantity, side) && (rows[0] == '\0' || tp_view_is_meant(rows, one));
        tp_buf_put_u32(&out->of_keys, has ? 0 : UINT32_MAX);
        if (has) {
            const tp_line line = {
                .key = key, .count = 1, .order = one->order, .worst = tp_cell_none()};
            tp_buf_put(&out->lines, &line, sizeof line);
        }
    }
    if (out->lines.failed || out->of_keys.failed) {
        return TP_ERR_NOMEM;
    }
    uint32_t count = tp_lines_count(out);
    if (count > 0) {
        qsort(out->lines.data, count, sizeof(tp_line), by_order);
    }
    for (uint32_t i = 0; i < count; i++) {
        ((uint32_t *)(void *)out->of_keys.data)[tp_lines_at(out, i)->key] = i;
    }
    tp_status status = count > fit ? fold(out, run, unfolded) : TP_OK;
    count = tp_lines_count(out);
    for (uint32_t key = 0; count > MOST_LINES && key < tp_view_key_count(run); key++) {
        uint32_t *of = (uint32_t *)(void *)out->of_keys.data + key;
        *of = *of >= MOST_LINES ? UINT32_MAX : *of;
    }
    out->lines.size = (count < MOST_LINES ? count : MOST_LINES) * sizeof(tp_line);
    return status;
}
