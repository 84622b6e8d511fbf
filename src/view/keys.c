/* The series of a run: their names, and the rows that they have in the grids of ranks. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "view/run.h"

uint32_t tp_view_key_count(const tp_view_run *run)
{
    return (uint32_t)(run->keys.size / sizeof(tp_view_key));
}

const tp_view_key *tp_view_key_at(const tp_view_run *run, uint32_t key)
{
    return (const tp_view_key *)(const void *)run->keys.data + key;
}

uint32_t tp_view_row_of(const tp_view_rank *rank, uint32_t key)
{
    const uint32_t *places = (const uint32_t *)(const void *)rank->places.data;
    return key < rank->places.size / sizeof *places && places[key] > 0 ? places[key] - 1
                                                                       : UINT32_MAX;
}

/* The name up to its first part that is a number. */
static char *layer_of(const char *name)
{
    for (const char *part = name; part != NULL && *part != '\0';) {
        const char *end = strchr(part, '.');
        const size_t length = end != NULL ? (size_t)(end - part) : strlen(part);
        if (length > 0 && strspn(part, "0123456789") >= length) {
            char *layer = tp_strdup(name);
            if (layer != NULL) {
                layer[(size_t)(part - name) + length] = '\0';
            }
            return layer;
        }
        part = end != NULL ? end + 1 : NULL;
    }
    return tp_strdup("");
}

static size_t key_text(char *text, size_t size, uint32_t quantity, const char *row)
{
    const int length = snprintf(text, size, "%u/%s", quantity, row);
    return length < 0 ? 0 : (size_t)length < size ? (size_t)length : size - 1;
}

uint32_t tp_view_key_find(const tp_view_run *run, uint32_t quantity, const char *row)
{
    char text[1100];
    uint32_t key;
    const size_t length = key_text(text, sizeof text, quantity, row);
    return tp_map_get(&run->by_name, text, length, &key) == TP_OK ? key : TP_VIEW_NO_KEY;
}

static tp_status add_key(tp_view_run *run, const tp_key *key, uint64_t order, const char *row,
                         uint32_t *out)
{
    char text[1100];
    const size_t length = key_text(text, sizeof text, key->quantity, row);
    *out = tp_view_key_count(run);
    tp_view_key one = {.row = tp_strdup(row),
                       .name = tp_strdup(key->name),
                       .layer = layer_of(key->name),
                       .quantity = key->quantity < TP_VIEW_QUANTITIES ? key->quantity : 0,
                       .role = key->role,
                       .order = order};
    if (one.row == NULL || one.name == NULL || one.layer == NULL ||
        tp_map_set(&run->by_name, text, length, *out) != TP_OK) {
        run->keys.failed = true;
    }
    tp_buf_put(&run->keys, &one, sizeof one);
    if (run->keys.failed) {
        tp_free(one.row);
        tp_free(one.name);
        tp_free(one.layer);
        return TP_ERR_NOMEM;
    }
    return TP_OK;
}

tp_status tp_view_add_row(tp_view_rank *rank, uint32_t key, uint32_t *row)
{
    *row = tp_view_row_of(rank, key);
    if (*row != UINT32_MAX) {
        return TP_OK;
    }
    while (rank->places.size / sizeof(uint32_t) <= key && !rank->places.failed) {
        tp_buf_put_u32(&rank->places, 0);
    }
    *row = tp_grid_rows(rank->grid);
    tp_buf_put_u32(&rank->rows, key);
    if (rank->places.failed || rank->rows.failed) {
        return TP_ERR_NOMEM;
    }
    tp_grid_add_row(rank->grid);
    ((uint32_t *)(void *)rank->places.data)[key] = *row + 1;
    return TP_OK;
}

void tp_view_row_name(const tp_key *key, uint32_t call, char *text, size_t size)
{
    const size_t length = (size_t)tp_row_name(key, call, text, size - 32);
    if (key->vpp_stage > 0) {
        snprintf(text + length, size - length, "@%d", key->vpp_stage);
    }
}

uint32_t tp_view_key_of(const tp_view_run *run, const tp_key *key, uint32_t call)
{
    char text[1056];
    tp_view_row_name(key, call, text, sizeof text);
    return tp_view_key_find(run, key->quantity, text);
}

tp_status tp_view_series_of(tp_view_run *run, const tp_key *key, uint32_t call, uint64_t order,
                            uint32_t *out)
{
    char text[1056];
    tp_view_row_name(key, call, text, sizeof text);
    *out = tp_view_key_find(run, key->quantity, text);
    return *out == TP_VIEW_NO_KEY ? add_key(run, key, order, text, out) : TP_OK;
}
