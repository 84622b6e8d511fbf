/* Histograms over steps as a picture: a column for a step (or for several, in long runs), a row for
 * each bin, the lowest on top. */
#ifndef TP_SINKS_HEATMAP_H
#define TP_SINKS_HEATMAP_H

#include "base/buf.h"
#include "tensorprobe/record.h"

#define TP_HEATMAP_WIDTH 640u
#define TP_HEATMAP_HEIGHT 480u
#define TP_HEATMAP_COLUMNS 280u /* at most: then two become one */
#define TP_HEATMAP_BINS 60u     /* at most, as many as the plot has rows for */

typedef struct tp_heatmap tp_heatmap;

/* NULL without memory. */
tp_heatmap *tp_heatmap_new(const tp_histogram *like);

/* Adds the histogram of a step; one that has other bins is left out. */
void tp_heatmap_add(tp_heatmap *map, uint64_t step, const tp_histogram *histogram);

/* How many have been added. */
uint64_t tp_heatmap_steps(const tp_heatmap *map);

/* Writes it as PNG (emptied first); a failed allocation shows in png->failed. */
void tp_heatmap_draw(const tp_heatmap *map, tp_buf *png);

void tp_heatmap_free(tp_heatmap *map);

#endif
