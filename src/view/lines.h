/* The rows of a map: series of one quantity in execution order, or layers of them where they are
 * too many. */
#ifndef TP_VIEW_LINES_H
#define TP_VIEW_LINES_H

#include "view/ask.h"

typedef struct tp_line {
    uint32_t key;   /* the first series of it */
    uint32_t count; /* series */
    bool is_layer;  /* several, folded */
    uint64_t order; /* of execution */
    tp_cell worst;  /* of its cells in the map */
} tp_line;

typedef struct tp_lines {
    tp_buf lines;   /* tp_line */
    tp_buf of_keys; /* uint32_t by key: line; UINT32_MAX: none */
} tp_lines;

/* By the parameters q, side, rows, h (how many fit) and unfold (layers, by commas).
 * TP_ERR_NOMEM. */
tp_status tp_lines_make(tp_lines *out, const tp_view_run *run, const tp_ask *ask);
void tp_lines_free(tp_lines *lines);

uint32_t tp_lines_count(const tp_lines *lines);
tp_line *tp_lines_at(const tp_lines *lines, uint32_t index);
uint32_t tp_lines_of(const tp_lines *lines, uint32_t key);

/* The rows of a rank's grid that lines have, from the first to the last; false: there are none. */
bool tp_lines_rows(const tp_lines *lines, const tp_view_rank *rank, uint32_t *first,
                   uint32_t *count);

/* Whether the series belongs to quantity and side that are asked for. */
bool tp_lines_has(const tp_view_key *key, uint32_t quantity, const char *side);

#endif
