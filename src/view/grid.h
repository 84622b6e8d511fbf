/* The statistics of one rank as a grid: a row a series, a column a step. Up to sixteen columns make
 * a block; blocks that are full lie in a file without a name, so that memory stays small, with the
 * worst cell of each row in front, so that a long run is seen without reading it all.
 *
 * Of a large journal's digests there are brief blocks: of each row the smallest and the largest
 * value. Their cells are all the worst one, until somebody puts finer ones there. */
#ifndef TP_VIEW_GRID_H
#define TP_VIEW_GRID_H

#include "base/buf.h"
#include "base/error.h"
#include "journal/digest.h"

#define TP_GRID_NORM TP_DIGEST_NORM
#define TP_GRID_MAX_ABS TP_DIGEST_MAX_ABS
#define TP_GRID_MEAN TP_DIGEST_MEAN
#define TP_GRID_STD TP_DIGEST_STD
#define TP_GRID_MIN TP_DIGEST_MIN
#define TP_GRID_MAX TP_DIGEST_MAX
#define TP_GRID_ZEROS TP_DIGEST_ZEROS /* share of elements */
#define TP_GRID_STATS TP_DIGEST_STATS

#define TP_GRID_WIDTH 16 /* columns of a block at most */

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

/* The statistic as it is in a grid: as tp_digest_values has it. */
float tp_grid_value(const tp_stats *stats, uint32_t stat);

/* Whether a is worse than b: NaN, then ±Inf, then what is farther from normal, then the larger. */
bool tp_cell_is_worse(tp_cell a, tp_cell b);

typedef struct tp_grid tp_grid;

tp_status tp_grid_new(tp_grid **out, tp_error *error);
void tp_grid_free(tp_grid *grid); /* accepts NULL */

/* A row more, counted from 0. */
void tp_grid_add_row(tp_grid *grid);
uint32_t tp_grid_rows(const tp_grid *grid);
uint64_t tp_grid_columns(const tp_grid *grid);

/* Room for all rows in the column that is open: before cells are set. TP_ERR_NOMEM. */
tp_status tp_grid_begin_column(tp_grid *grid);

/* Of the column that is open. */
void tp_grid_set(tp_grid *grid, uint32_t row, uint32_t stat, tp_cell cell);

/* Ends the column. Where a block can't be written it is lost, and seen as not recorded. */
tp_status tp_grid_end_column(tp_grid *grid, tp_error *error);

/* The block that a column lies in. */
typedef struct tp_grid_place {
    uint64_t block;
    uint64_t first; /* its first column */
    uint32_t width; /* its columns; of the one that isn't full, as many as it can have */
    uint32_t rows;  /* that it has */
    bool is_full;
    bool is_brief;
} tp_grid_place;
tp_grid_place tp_grid_find(const tp_grid *grid, uint64_t column);
tp_grid_place tp_grid_block(const tp_grid *grid, uint64_t block); /* that is full */

/* Cells of one statistic, rows first … first + count - 1. */
typedef struct tp_grid_view {
    tp_buf bytes;
    const float *values; /* [row][column of the block]; of a summary [row] */
    const int8_t *codes;
    const float *lows; /* of a brief summary, with the largest in values */
    uint32_t width;    /* columns of it */
    uint32_t count;    /* rows that are there; less than asked for in blocks of an earlier time */
    bool is_coarse;    /* each cell of a row is the worst of all */
} tp_grid_view;

/* Reads a block, or with `summary` the worst cell of each row of it; not of the block that isn't
 * full: TP_ERR_NOTFOUND, as also when it isn't there (yet). `view` is zeroed at first, used again
 * and freed with tp_grid_view_free. */
tp_status tp_grid_read(const tp_grid *grid, uint64_t block, uint32_t stat, uint32_t first,
                       uint32_t count, bool summary, tp_grid_view *view, tp_error *error);
void tp_grid_view_free(tp_grid_view *view);

/* The cells of one row and statistic, one after the other: zeroed at first, its view is freed. */
typedef struct tp_grid_walk {
    tp_grid_place place;
    tp_grid_view view;
} tp_grid_walk;
tp_cell tp_grid_cell(const tp_grid *grid, tp_grid_walk *walk, uint32_t stat, uint32_t row,
                     uint64_t column);

/* A brief block of so many columns, and rows as there are now; only before any column was ended.
 * TP_ERR_NOMEM. */
tp_status tp_grid_add_brief(tp_grid *grid, uint32_t width);

/* What a statistic of it is: of each row smallest and largest value, and the code of the worst. */
tp_status tp_grid_fill_brief(tp_grid *grid, uint64_t block, uint32_t stat, const float *lows,
                             const float *highs, const int8_t *codes, tp_error *error);

/* Lows, and highs as values, with the codes of the worst. */
tp_status tp_grid_read_brief(const tp_grid *grid, uint64_t block, uint32_t stat, uint32_t first,
                             uint32_t count, tp_grid_view *view, tp_error *error);

/* The worst cell of a row, of both and their code. */
tp_cell tp_grid_worst(float low, float high, int8_t code);

/* The cells of a brief block, rows first … first + count - 1: [row][column]. They are kept as long
 * as there is room for them, and forgotten in the order in which they were used. Any thread. */
void tp_grid_put_fine(tp_grid *grid, uint64_t block, uint32_t stat, uint32_t first, uint32_t count,
                      const float *values, const int8_t *codes);
bool tp_grid_has_fine(const tp_grid *grid, uint64_t block, uint32_t stat, uint32_t first,
                      uint32_t count);
#define TP_GRID_FINE_BYTES ((size_t)32 << 20) /* that are kept */

#endif
