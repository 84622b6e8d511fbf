/* The statistics of one rank as a grid: a row a series, a column a step. Sixteen columns make a
 * block; blocks that are full lie in a file without a name, so that memory stays small, with the
 * worst cell of each row in front, so that a long run is seen without reading it all. */
#ifndef TP_VIEW_GRID_H
#define TP_VIEW_GRID_H

#include "base/buf.h"
#include "base/error.h"
#include "tensorprobe/stats.h"

#define TP_GRID_NORM 0
#define TP_GRID_MAX_ABS 1
#define TP_GRID_MEAN 2
#define TP_GRID_STD 3
#define TP_GRID_MIN 4
#define TP_GRID_MAX 5
#define TP_GRID_ZEROS 6 /* share of elements */
#define TP_GRID_STATS 7

#define TP_GRID_WIDTH 16 /* columns of a block */

/* "norm", "max_abs" …; NULL: no such statistic. Static. */
const char *tp_grid_stat_name(uint32_t stat);
uint32_t tp_grid_stat_from_name(const char *name); /* TP_GRID_STATS: none */

/* A cell: the value (NaN, ±Inf as they are; finite ones are kept finite), and a code for how far
 * from normal it is. */
typedef struct tp_cell {
    float value;
    int8_t code;
} tp_cell;

#define TP_CODE_UNKNOWN (-128) /* too few earlier values, or no number */

int8_t tp_code_of_distance(float distance); /* in MADs; 16 log2(1 + |d|) with d's sign */
float tp_distance_of_code(int8_t code);

/* Nothing was recorded. */
tp_cell tp_cell_none(void);
bool tp_cell_is_none(tp_cell cell);

/* The statistic as it is in a grid: a tensor with a NaN, or ±Inf, shows it in each of them. */
float tp_grid_value(const tp_stats *stats, uint32_t stat);

/* Whether a is worse than b: NaN, then ±Inf, then what is farther from normal, then the larger. */
bool tp_cell_is_worse(tp_cell a, tp_cell b);

typedef struct tp_grid tp_grid;

tp_status tp_grid_new(tp_grid **out, tp_error *error);
void tp_grid_free(tp_grid *grid); /* accepts NULL */

/* TP_ERR_NOMEM. Rows are counted from 0. */
tp_status tp_grid_add_row(tp_grid *grid);
uint32_t tp_grid_rows(const tp_grid *grid);
uint64_t tp_grid_columns(const tp_grid *grid);

/* Of the column that is open. */
void tp_grid_set(tp_grid *grid, uint32_t row, uint32_t stat, tp_cell cell);

/* Ends the column. Where a block can't be written it is lost, and seen as not recorded. */
tp_status tp_grid_end_column(tp_grid *grid, tp_error *error);

/* Cells of one statistic, rows first … first + count - 1. */
typedef struct tp_grid_view {
    tp_buf bytes;
    const float *values; /* [row][column of the block]; of a summary [row] */
    const int8_t *codes;
    uint32_t count; /* rows that are there; less than asked for in blocks of an earlier time */
} tp_grid_view;

/* Reads a block, or with `summary` the worst cell of each row of it; not of the block that isn't
 * full: TP_ERR_NOTFOUND. `view` is zeroed at first, used again and freed with tp_grid_view_free. */
tp_status tp_grid_read(const tp_grid *grid, uint64_t block, uint32_t stat, uint32_t first,
                       uint32_t count, bool summary, tp_grid_view *view, tp_error *error);
void tp_grid_view_free(tp_grid_view *view);

#endif
