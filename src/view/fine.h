/* Cells of brief blocks that were read from the journal: as many as there is room for. */
#ifndef TP_VIEW_FINE_H
#define TP_VIEW_FINE_H

#include "view/grid.h"

typedef struct tp_fine tp_fine;

tp_fine *tp_fine_new(size_t bytes); /* that it keeps; NULL: no memory */
void tp_fine_free(tp_fine *fine);   /* accepts NULL */

/* Any thread: */

/* What can't be kept for lack of memory isn't. */
void tp_fine_put(tp_fine *fine, uint64_t block, uint32_t stat, uint32_t first, uint32_t count,
                 uint32_t width, const float *values, const int8_t *codes);

/* Copies values and codes of rows first … to the view's bytes, and says how wide they are; view
 * NULL: only whether they are there. */
bool tp_fine_read(tp_fine *fine, uint64_t block, uint32_t stat, uint32_t first, uint32_t count,
                  tp_grid_view *view);

#endif
