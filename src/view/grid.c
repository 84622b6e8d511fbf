#include "view/grid.h"

#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "view/fine.h"

#define LOST UINT64_MAX
#define SUMMARY_BYTES 5                                 /* of a row and statistic */
#define BLOCK_BYTES (SUMMARY_BYTES + 5 * TP_GRID_WIDTH) /* likewise, with its summary */

static const char *const names[TP_GRID_STATS] = {"norm", "max_abs", "mean", "std",
                                                 "min",  "max",     "zeros"};

/* A row of the block that isn't full. */
typedef struct open_row {
    float values[TP_GRID_STATS][TP_GRID_WIDTH];
    int8_t codes[TP_GRID_STATS][TP_GRID_WIDTH];
} open_row;

typedef struct block {
    uint64_t first;  /* column */
    uint64_t offset; /* LOST: it couldn't be written; of a brief one: of its offsets */
    uint32_t rows;
    uint32_t width;
    bool is_brief;
} block;

struct tp_grid {
    int writes;
    int reads;
    char path[TP_PATH_MAX]; /* that the file had, for messages */
    uint64_t size;
    uint64_t columns;
    uint64_t open_first; /* column of the block that isn't full */
    uint32_t row_count;
    tp_buf rows;    /* open_row */
    tp_buf blocks;  /* block */
    tp_buf offsets; /* uint64_t [TP_GRID_STATS] of each brief block; LOST: not there */
    tp_buf scratch;
    tp_fine *fine; /* made with the first brief block */
};

const char *tp_grid_stat_name(uint32_t stat)
{
    return stat < TP_GRID_STATS ? names[stat] : NULL;
}

uint32_t tp_grid_stat_from_name(const char *name)
{
    uint32_t stat = 0;
    while (stat < TP_GRID_STATS && strcmp(names[stat], name) != 0) {
        stat++;
    }
    return stat;
}

int8_t tp_code_of_distance(float distance)
{
    if (isnan(distance)) {
        return TP_CODE_UNKNOWN;
    }
    const float code = fminf(126.0F, roundf(16.0F * log2f(1.0F + fabsf(distance))));
    return (int8_t)(distance < 0 ? -code : code);
}

float tp_distance_of_code(int8_t code)
{
    if (code == TP_CODE_UNKNOWN) {
        return (float)NAN;
    }
    const float distance = exp2f(fabsf((float)code) / 16.0F) - 1.0F;
    return code < 0 ? -distance : distance;
}

tp_cell tp_cell_none(void)
{
    return (tp_cell){tp_digest_none().low, TP_CODE_UNKNOWN};
}

bool tp_cell_is_none(tp_cell cell)
{
    return tp_digest_is_none((tp_digest_value){cell.value, cell.value});
}

float tp_grid_value(const tp_stats *stats, uint32_t stat)
{
    float values[8];
    tp_digest_values(stats, values);
    return values[stat];
}

static int class_of(tp_cell cell)
{
    return tp_cell_is_none(cell) ? 0 : isnan(cell.value) ? 3 : isinf(cell.value) ? 2 : 1;
}

bool tp_cell_is_worse(tp_cell a, tp_cell b)
{
    const int of_a = class_of(a);
    const int of_b = class_of(b);
    if (of_a != of_b || of_a != 1) {
        return of_a > of_b;
    }
    const int far_a = a.code == TP_CODE_UNKNOWN ? 0 : abs(a.code);
    const int far_b = b.code == TP_CODE_UNKNOWN ? 0 : abs(b.code);
    return far_a != far_b ? far_a > far_b : fabsf(a.value) > fabsf(b.value);
}

/* A file of ours alone, which nobody else finds: its name is taken away at once. */
static tp_status open_file(tp_grid *grid, tp_error *error)
{
    const char *temporary = getenv("TMPDIR");
    char folder[TP_PATH_MAX];
    bool made;
    snprintf(folder, sizeof folder, "%s/tensorprobe-view-%ld-%llx",
             temporary != NULL && temporary[0] == '/' ? temporary : "/var/tmp", (long)getpid(),
             (unsigned long long)tp_clock_monotonic());
    tp_status status = tp_dir_make_private(folder, &made, error);
    if (status != TP_OK) {
        return status;
    }
    status = tp_path_join(grid->path, folder, "cells");
    if (status == TP_OK) {
        status = tp_file_append(grid->path, &grid->writes, &grid->size, error);
    }
    if (status == TP_OK) {
        grid->reads = open(grid->path, O_RDONLY | O_CLOEXEC);
        if (grid->reads < 0) {
            status = tp_fail(error, TP_ERR_IO, "can't open %s", grid->path);
        }
    }
    tp_dir_remove(folder, "cells");
    return status;
}

tp_status tp_grid_new(tp_grid **out, tp_error *error)
{
    tp_grid *grid = tp_calloc(1, sizeof *grid);
    if (grid == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for a run");
    }
    grid->writes = -1;
    grid->reads = -1;
    const tp_status status = open_file(grid, error);
    if (status != TP_OK) {
        tp_grid_free(grid);
        return status;
    }
    *out = grid;
    return TP_OK;
}

void tp_grid_free(tp_grid *grid)
{
    if (grid == NULL) {
        return;
    }
    tp_file_close(grid->writes);
    tp_file_close(grid->reads);
    tp_buf_free(&grid->rows);
    tp_buf_free(&grid->blocks);
    tp_buf_free(&grid->offsets);
    tp_buf_free(&grid->scratch);
    tp_fine_free(grid->fine);
    tp_free(grid);
}

static void clear(open_row *row)
{
    const tp_cell none = tp_cell_none();
    for (uint32_t stat = 0; stat < TP_GRID_STATS; stat++) {
        for (uint32_t k = 0; k < TP_GRID_WIDTH; k++) {
            row->values[stat][k] = none.value;
            row->codes[stat][k] = none.code;
        }
    }
}

void tp_grid_add_row(tp_grid *grid)
{
    grid->row_count++;
}

uint32_t tp_grid_rows(const tp_grid *grid)
{
    return grid->row_count;
}

tp_status tp_grid_begin_column(tp_grid *grid)
{
    while (grid->rows.size / sizeof(open_row) < grid->row_count) {
        open_row *row = tp_buf_extend(&grid->rows, sizeof *row);
        if (row == NULL) {
            return TP_ERR_NOMEM;
        }
        clear(row);
    }
    return TP_OK;
}

uint64_t tp_grid_columns(const tp_grid *grid)
{
    return grid->columns;
}

static open_row *row_at(const tp_grid *grid, uint32_t row)
{
    return (open_row *)(void *)grid->rows.data + row;
}

void tp_grid_set(tp_grid *grid, uint32_t row, uint32_t stat, tp_cell cell)
{
    open_row *to = row_at(grid, row);
    to->values[stat][grid->columns - grid->open_first] = cell.value;
    to->codes[stat][grid->columns - grid->open_first] = cell.code;
}

static tp_cell worst_of(const float *values, const int8_t *codes)
{
    tp_cell worst = tp_cell_none();
    for (uint32_t k = 0; k < TP_GRID_WIDTH; k++) {
        const tp_cell cell = {values[k], codes[k]};
        worst = tp_cell_is_worse(cell, worst) ? cell : worst;
    }
    return worst;
}

/* The block as it lies in the file: statistic by statistic, the worst values and their codes, then
 * all values and codes. */
static bool pack(tp_grid *grid, uint32_t stat)
{
    const uint32_t rows = tp_grid_rows(grid);
    tp_buf_clear(&grid->scratch);
    uint8_t *to = tp_buf_extend(&grid->scratch, (size_t)rows * BLOCK_BYTES);
    if (to == NULL) {
        return false;
    }
    uint8_t *codes = to + (size_t)rows * sizeof(float);
    uint8_t *all = codes + rows;
    uint8_t *all_codes = all + (size_t)rows * TP_GRID_WIDTH * sizeof(float);
    for (uint32_t i = 0; i < rows; i++) {
        const open_row *row = row_at(grid, i);
        const tp_cell worst = worst_of(row->values[stat], row->codes[stat]);
        memcpy(to + i * sizeof(float), &worst.value, sizeof(float));
        codes[i] = (uint8_t)worst.code;
        memcpy(all + (size_t)i * sizeof row->values[stat], row->values[stat],
               sizeof row->values[stat]);
        memcpy(all_codes + (size_t)i * TP_GRID_WIDTH, row->codes[stat], TP_GRID_WIDTH);
    }
    return true;
}

static tp_status end_block(tp_grid *grid, tp_error *error)
{
    block one = {grid->open_first, grid->size, tp_grid_rows(grid), TP_GRID_WIDTH, false};
    tp_status status = TP_OK;
    for (uint32_t stat = 0; stat < TP_GRID_STATS && status == TP_OK && one.rows > 0; stat++) {
        status = pack(grid, stat) ? tp_file_write(grid->writes, grid->path, grid->scratch.data,
                                                  grid->scratch.size, error)
                                  : tp_fail(error, TP_ERR_NOMEM, "no memory for a block of steps");
        grid->size += status == TP_OK ? grid->scratch.size : 0;
    }
    if (status != TP_OK) {
        tp_file_truncate(grid->writes, grid->path, one.offset, NULL);
        grid->size = one.offset;
        one.offset = LOST;
    }
    tp_buf_put(&grid->blocks, &one, sizeof one);
    grid->open_first = grid->columns;
    for (uint32_t i = 0; i < tp_grid_rows(grid); i++) {
        clear(row_at(grid, i));
    }
    return status;
}

tp_status tp_grid_end_column(tp_grid *grid, tp_error *error)
{
    grid->columns++;
    return grid->columns - grid->open_first == TP_GRID_WIDTH ? end_block(grid, error) : TP_OK;
}

/* Copies a part of the file to the end of the view's bytes. */
static tp_status read_part(const tp_grid *grid, uint64_t offset, size_t size, tp_buf *part,
                           tp_buf *out, tp_error *error)
{
    const tp_status status = tp_file_read_at(grid->reads, grid->path, offset, size, part, error);
    if (status == TP_OK && part->size < size) {
        return tp_fail(error, TP_ERR_IO, "%s is too short", grid->path);
    }
    if (status == TP_OK) {
        tp_buf_put_buf(out, part);
    }
    return status != TP_OK ? status
           : out->failed   ? tp_fail(error, TP_ERR_NOMEM, "no memory for a map")
                           : TP_OK;
}

static tp_status read_open(const tp_grid *grid, uint32_t stat, uint32_t first, uint32_t count,
                           tp_grid_view *view, tp_error *error)
{
    for (uint32_t i = 0; i < count; i++) {
        tp_buf_put(&view->bytes, row_at(grid, first + i)->values[stat],
                   TP_GRID_WIDTH * sizeof(float));
    }
    for (uint32_t i = 0; i < count; i++) {
        tp_buf_put(&view->bytes, row_at(grid, first + i)->codes[stat], TP_GRID_WIDTH);
    }
    return view->bytes.failed ? tp_fail(error, TP_ERR_NOMEM, "no memory for a map") : TP_OK;
}

static const block *block_at(const tp_grid *grid, uint64_t index)
{
    return (const block *)(const void *)grid->blocks.data + index;
}

tp_grid_place tp_grid_find(const tp_grid *grid, uint64_t column)
{
    const uint64_t count = grid->blocks.size / sizeof(block);
    if (column >= grid->open_first + TP_GRID_WIDTH) { /* it isn't there yet */
        return (tp_grid_place){UINT64_MAX, column, 1, 0, false, false};
    }
    if (column >= grid->open_first) {
        return (tp_grid_place){count, grid->open_first, TP_GRID_WIDTH, grid->row_count, false,
                               false};
    }
    uint64_t low = 0;
    for (uint64_t high = count - 1; low < high;) {
        const uint64_t middle = low + (high - low + 1) / 2;
        if (block_at(grid, middle)->first <= column) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return tp_grid_block(grid, low);
}

tp_grid_place tp_grid_block(const tp_grid *grid, uint64_t at)
{
    const block *one = block_at(grid, at);
    return (tp_grid_place){at, one->first, one->width, one->rows, true, one->is_brief};
}

/* Makes the view point into its bytes: values, then codes. */
static void point(tp_grid_view *view)
{
    const size_t cells = (size_t)view->count * view->width;
    view->values = (const float *)(const void *)view->bytes.data;
    view->codes =
        view->count == 0 ? NULL : (const int8_t *)(view->bytes.data + cells * sizeof(float));
}

static tp_status read_full(const tp_grid *grid, const block *one, uint32_t stat, uint32_t first,
                           bool summary, tp_grid_view *view, tp_error *error)
{
    tp_buf part = TP_BUF_INIT;
    const uint64_t rows = one->rows;
    const uint64_t width = summary ? 1 : TP_GRID_WIDTH;
    const uint64_t base = one->offset + (uint64_t)stat * rows * BLOCK_BYTES +
                          (summary ? 0 : (uint64_t)rows * SUMMARY_BYTES);
    tp_status status =
        read_part(grid, base + first * width * sizeof(float),
                  (size_t)(view->count * width * sizeof(float)), &part, &view->bytes, error);
    if (status == TP_OK) {
        status = read_part(grid, base + rows * width * sizeof(float) + first * width,
                           (size_t)(view->count * width), &part, &view->bytes, error);
    }
    tp_buf_free(&part);
    return status;
}

tp_status tp_grid_read_brief(const tp_grid *grid, uint64_t at, uint32_t stat, uint32_t first,
                             uint32_t count, tp_grid_view *view, tp_error *error)
{
    const block *one = block_at(grid, at);
    const uint64_t rows = one->rows;
    const uint64_t offset =
        ((const uint64_t *)(const void *)grid->offsets.data)[one->offset + stat];
    tp_buf part = TP_BUF_INIT;
    tp_status status = offset == LOST ? TP_ERR_NOTFOUND : TP_OK;
    tp_buf_clear(&view->bytes);
    view->width = 1;
    view->count = first >= rows ? 0 : count < rows - first ? count : one->rows - first;
    for (uint64_t i = 0; i < 2 && view->count > 0 && status == TP_OK; i++) {
        status = read_part(grid, offset + (i * rows + first) * sizeof(float),
                           view->count * sizeof(float), &part, &view->bytes, error);
    }
    if (status == TP_OK && view->count > 0) {
        status = read_part(grid, offset + 2 * rows * sizeof(float) + first, view->count, &part,
                           &view->bytes, error);
    }
    tp_buf_free(&part);
    view->count = status == TP_OK ? view->count : 0;
    view->lows = (const float *)(const void *)view->bytes.data;
    view->values = view->count > 0 ? view->lows + view->count : NULL;
    view->codes = view->count > 0 ? (const int8_t *)(view->values + view->count) : NULL;
    view->is_coarse = true;
    return status;
}

tp_cell tp_grid_worst(float low, float high, int8_t code)
{
    const tp_cell of_low = {low, code};
    const tp_cell of_high = {high, code};
    if (!isfinite(low) || !isfinite(high) || code == TP_CODE_UNKNOWN) {
        return tp_cell_is_worse(of_low, of_high) ? of_low : of_high;
    }
    return code < 0 ? of_low : of_high;
}

/* The worst cell of each row, in each column. */
static void spread(tp_grid_view *view, uint32_t width)
{
    tp_buf made = TP_BUF_INIT;
    const size_t cells = (size_t)view->count * width;
    float *values = tp_buf_extend(&made, cells * (sizeof(float) + 1));
    for (uint32_t i = 0; values != NULL && i < view->count; i++) {
        int8_t *codes = (int8_t *)(values + cells);
        const tp_cell worst = tp_grid_worst(view->lows[i], view->values[i], view->codes[i]);
        for (size_t k = (size_t)i * width; k < (size_t)(i + 1) * width; k++) {
            values[k] = worst.value;
            codes[k] = worst.code;
        }
    }
    tp_buf_free(&view->bytes);
    view->bytes = made;
    view->width = width;
    view->count = values != NULL ? view->count : 0;
    view->lows = NULL;
    point(view);
}

tp_status tp_grid_read(const tp_grid *grid, uint64_t at, uint32_t stat, uint32_t first,
                       uint32_t count, bool summary, tp_grid_view *view, tp_error *error)
{
    const uint64_t full = grid->blocks.size / sizeof(block);
    const block *one = at < full ? block_at(grid, at) : NULL;
    const uint32_t rows = at > full     ? 0
                          : one == NULL ? (uint32_t)(grid->rows.size / sizeof(open_row))
                                        : one->rows;
    tp_status status = TP_OK;
    tp_buf_clear(&view->bytes);
    view->is_coarse = false;
    view->lows = NULL;
    view->width = summary ? 1 : TP_GRID_WIDTH;
    view->count = first >= rows ? 0 : count < rows - first ? count : rows - first;
    if (at > full || (one == NULL && summary) ||
        (one != NULL && !one->is_brief && one->offset == LOST)) {
        view->count = 0;
        return TP_ERR_NOTFOUND;
    }
    if (one != NULL && one->is_brief) {
        if (!summary && tp_fine_read(grid->fine, at, stat, first, view->count, view)) {
            point(view);
            return TP_OK;
        }
        status = tp_grid_read_brief(grid, at, stat, first, count, view, error);
        if (status == TP_OK) {
            spread(view, summary ? 1 : one->width);
        }
        return status;
    }
    if (one == NULL) {
        status = read_open(grid, stat, first, view->count, view, error);
    } else if (view->count > 0) {
        status = read_full(grid, one, stat, first, summary, view, error);
    }
    view->count = status == TP_OK ? view->count : 0;
    point(view);
    return status;
}

tp_cell tp_grid_cell(const tp_grid *grid, tp_grid_walk *walk, uint32_t stat, uint32_t row,
                     uint64_t column)
{
    if (column < walk->place.first || column >= walk->place.first + walk->place.width) {
        walk->place = tp_grid_find(grid, column);
        if (tp_grid_read(grid, walk->place.block, stat, row, 1, false, &walk->view, NULL) !=
            TP_OK) {
            walk->view.count = 0;
        }
    }
    const uint64_t at = column - walk->place.first;
    return walk->view.count > 0 ? (tp_cell){walk->view.values[at], walk->view.codes[at]}
                                : tp_cell_none();
}

tp_status tp_grid_add_brief(tp_grid *grid, uint32_t width)
{
    const block one = {grid->columns, grid->offsets.size / sizeof(uint64_t), grid->row_count, width,
                       true};
    if (grid->fine == NULL) {
        grid->fine = tp_fine_new(TP_GRID_FINE_BYTES);
    }
    for (uint32_t stat = 0; stat < TP_GRID_STATS; stat++) {
        tp_buf_put_u64(&grid->offsets, LOST);
    }
    tp_buf_put(&grid->blocks, &one, sizeof one);
    if (grid->fine == NULL || grid->offsets.failed || grid->blocks.failed) {
        return TP_ERR_NOMEM;
    }
    grid->columns += width;
    grid->open_first = grid->columns;
    return TP_OK;
}

tp_status tp_grid_fill_brief(tp_grid *grid, uint64_t at, uint32_t stat, const float *lows,
                             const float *highs, const int8_t *codes, tp_error *error)
{
    block *one = (block *)(void *)grid->blocks.data + at;
    const uint64_t offset = grid->size;
    tp_buf_clear(&grid->scratch);
    tp_buf_put(&grid->scratch, lows, one->rows * sizeof *lows);
    tp_buf_put(&grid->scratch, highs, one->rows * sizeof *highs);
    tp_buf_put(&grid->scratch, codes, one->rows);
    if (grid->scratch.failed) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for a block of steps");
    }
    const tp_status status =
        tp_file_write(grid->writes, grid->path, grid->scratch.data, grid->scratch.size, error);
    if (status != TP_OK) {
        tp_file_truncate(grid->writes, grid->path, offset, NULL);
        return status;
    }
    grid->size += grid->scratch.size;
    ((uint64_t *)(void *)grid->offsets.data)[one->offset + stat] = offset;
    return TP_OK;
}

void tp_grid_put_fine(tp_grid *grid, uint64_t at, uint32_t stat, uint32_t first, uint32_t count,
                      const float *values, const int8_t *codes)
{
    tp_fine_put(grid->fine, at, stat, first, count, block_at(grid, at)->width, values, codes);
}

bool tp_grid_has_fine(const tp_grid *grid, uint64_t at, uint32_t stat, uint32_t first,
                      uint32_t count)
{
    return tp_fine_read(grid->fine, at, stat, first, count, NULL);
}

void tp_grid_view_free(tp_grid_view *view)
{
    tp_buf_free(&view->bytes);
}
