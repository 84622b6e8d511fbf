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

/* A quiet NaN of our own. */
#define NONE_BITS UINT32_C(0x7fc0dead)

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
    uint64_t offset; /* LOST: it couldn't be written */
    uint32_t rows;
} block;

struct tp_grid {
    int writes;
    int reads;
    char path[TP_PATH_MAX]; /* that the file had, for messages */
    uint64_t size;
    uint64_t columns;
    tp_buf rows;   /* open_row */
    tp_buf blocks; /* block */
    tp_buf scratch;
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
    const uint32_t bits = NONE_BITS;
    tp_cell none = {.code = TP_CODE_UNKNOWN};
    memcpy(&none.value, &bits, sizeof bits);
    return none;
}

bool tp_cell_is_none(tp_cell cell)
{
    uint32_t bits;
    memcpy(&bits, &cell.value, sizeof bits);
    return bits == NONE_BITS;
}

/* Rounds to f32; what is finite stays finite, and what isn't zero doesn't become zero. */
static float narrow(double value)
{
    const float near = (float)value;
    if (!isfinite(value)) {
        return isnan(value) ? (float)NAN : near;
    }
    if (isinf(near)) {
        return value > 0 ? FLT_MAX : -FLT_MAX;
    }
    return near == 0.0F && value != 0.0 ? (value > 0 ? FLT_MIN : -FLT_MIN) : near;
}

float tp_grid_value(const tp_stats *stats, uint32_t stat)
{
    if (stats->nan > 0) {
        return (float)NAN;
    }
    if (stats->pos_inf + stats->neg_inf > 0) {
        const bool negative = stats->pos_inf == 0 && stat != TP_GRID_NORM &&
                              stat != TP_GRID_MAX_ABS && stat != TP_GRID_STD;
        return negative ? -(float)INFINITY : (float)INFINITY;
    }
    switch (stat) {
    case TP_GRID_NORM:
        return narrow(tp_stats_norm(stats));
    case TP_GRID_MAX_ABS:
        return narrow(stats->abs_max);
    case TP_GRID_MEAN:
        return narrow(tp_stats_mean(stats));
    case TP_GRID_STD:
        return narrow(tp_stats_std(stats));
    case TP_GRID_MIN:
        return narrow(stats->finite_min);
    case TP_GRID_MAX:
        return narrow(stats->finite_max);
    default:
        return stats->count > 0 ? (float)((double)stats->zeros / (double)stats->count) : 0.0F;
    }
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
    tp_buf_free(&grid->scratch);
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

tp_status tp_grid_add_row(tp_grid *grid)
{
    open_row *row = tp_buf_extend(&grid->rows, sizeof *row);
    if (row == NULL) {
        return TP_ERR_NOMEM;
    }
    clear(row);
    return TP_OK;
}

uint32_t tp_grid_rows(const tp_grid *grid)
{
    return (uint32_t)(grid->rows.size / sizeof(open_row));
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
    to->values[stat][grid->columns % TP_GRID_WIDTH] = cell.value;
    to->codes[stat][grid->columns % TP_GRID_WIDTH] = cell.code;
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
    block one = {grid->size, tp_grid_rows(grid)};
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
    for (uint32_t i = 0; i < tp_grid_rows(grid); i++) {
        clear(row_at(grid, i));
    }
    return status;
}

tp_status tp_grid_end_column(tp_grid *grid, tp_error *error)
{
    grid->columns++;
    return grid->columns % TP_GRID_WIDTH == 0 ? end_block(grid, error) : TP_OK;
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

tp_status tp_grid_read(const tp_grid *grid, uint64_t at, uint32_t stat, uint32_t first,
                       uint32_t count, bool summary, tp_grid_view *view, tp_error *error)
{
    const uint64_t full = grid->columns / TP_GRID_WIDTH;
    const block *one = (const block *)(const void *)grid->blocks.data + at;
    const bool is_open = at == full;
    const uint32_t rows = at > full ? 0 : is_open ? tp_grid_rows(grid) : one->rows;
    tp_buf part = TP_BUF_INIT;
    tp_status status = TP_OK;
    tp_buf_clear(&view->bytes);
    view->count = first >= rows ? 0 : count < rows - first ? count : rows - first;
    if (at > full || (is_open && summary) || (!is_open && one->offset == LOST)) {
        view->count = 0;
        return TP_ERR_NOTFOUND;
    }
    if (is_open) {
        status = read_open(grid, stat, first, view->count, view, error);
    } else if (view->count > 0) {
        const uint64_t base = one->offset + (uint64_t)stat * rows * BLOCK_BYTES +
                              (summary ? 0 : (uint64_t)rows * SUMMARY_BYTES);
        const uint64_t width = summary ? 1 : TP_GRID_WIDTH;
        status =
            read_part(grid, base + first * width * sizeof(float),
                      (size_t)(view->count * width * sizeof(float)), &part, &view->bytes, error);
        if (status == TP_OK) {
            status = read_part(grid, base + rows * width * sizeof(float) + first * width,
                               (size_t)(view->count * width), &part, &view->bytes, error);
        }
    }
    tp_buf_free(&part);
    if (status != TP_OK) {
        view->count = 0;
        return status;
    }
    const size_t cells = (size_t)view->count * (summary ? 1 : TP_GRID_WIDTH);
    view->values = (const float *)(const void *)view->bytes.data;
    view->codes =
        view->count == 0 ? NULL : (const int8_t *)(view->bytes.data + cells * sizeof(float));
    return TP_OK;
}

void tp_grid_view_free(tp_grid_view *view)
{
    tp_buf_free(&view->bytes);
}
