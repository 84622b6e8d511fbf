#include "journal/overview.h"

#include <math.h>
#include <string.h>

#include "journal/records.h"

#define LARGE_STEPS 256
#define LARGE_BYTES ((size_t)1 << 20)

#define FANOUT 16u
#define KEYS_MAX (1u << 24) /* an id above is of damage */
#define HEADER_SIZE 32u
#define ROW_SIZE 48u

_Static_assert(sizeof(tp_overview) == ROW_SIZE, "stored as it lies in memory");

uint64_t tp_overview_width(uint32_t level)
{
    uint64_t width = level == TP_OVERVIEW_WHOLE ? 0 : FANOUT;
    for (; level > 1; level--) {
        width *= FANOUT;
    }
    return width;
}

static uint64_t width_of(const tp_overviews *overviews, uint32_t level)
{
    return overviews->width != 0 ? overviews->width : tp_overview_width(level);
}

/* Room for `count` items of this size, the new ones zeroed. */
static bool make_room(tp_buf *buf, uint64_t count, size_t size)
{
    const size_t before = buf->size;
    if (count * size > before) {
        uint8_t *room = tp_buf_extend(buf, count * size - before);
        if (room == NULL) {
            return false;
        }
        memset(room, 0, count * size - before);
    }
    return true;
}

static tp_overview *open_rows(const tp_overviews *overviews, uint32_t level)
{
    return (tp_overview *)(void *)overviews->levels[level].open.data;
}

/* Adds what `part` counted behind what `into` did. */
static void merge(tp_overview *into, const tp_overview *part)
{
    if (into->count == 0) {
        *into = *part;
        return;
    }
    into->last_step = part->last_step;
    into->count += part->count;
    into->nan += part->nan;
    into->inf += part->inf;
    into->norm_min = fmin(into->norm_min, part->norm_min); /* NaN where there is none */
    into->norm_max = fmax(into->norm_max, part->norm_max);
}

/* Ends the spans of a level: rows are made, and the next level's spans grow. */
static void end_spans(tp_overviews *overviews, uint32_t level, uint32_t next)
{
    tp_overview_level *here = &overviews->levels[level];
    tp_overview *open = open_rows(overviews, level);
    const uint64_t count = here->open.size / ROW_SIZE;
    const bool grows = next != level;
    if (grows && !make_room(&overviews->levels[next].open, overviews->place_count, ROW_SIZE)) {
        overviews->failed = true;
        return;
    }
    for (uint64_t place = 0; place < count; place++) {
        if (open[place].count == 0) {
            continue;
        }
        tp_buf_put(&here->rows, &open[place], ROW_SIZE);
        if (grows) {
            merge(&open_rows(overviews, next)[place], &open[place]);
        }
        open[place].count = 0;
    }
    overviews->failed = overviews->failed || here->rows.failed;
}

/* Ends all spans that don't reach to this step. */
static void go_to_step(tp_overviews *overviews, uint64_t step)
{
    const uint32_t levels = overviews->width != 0 ? 1 : TP_OVERVIEW_LEVELS;
    for (uint32_t level = 1; overviews->steps > 0 && level <= levels && !overviews->failed;
         level++) {
        const uint64_t width = width_of(overviews, level);
        if (step / width == overviews->step / width) {
            break;
        }
        const uint32_t next = overviews->width != 0        ? level
                              : level < TP_OVERVIEW_LEVELS ? level + 1
                                                           : TP_OVERVIEW_WHOLE;
        end_spans(overviews, level, next);
    }
    overviews->step = step;
    overviews->steps++;
}

/* NULL: no memory, or no key that is followed. */
static tp_overview *find(tp_overviews *overviews, uint32_t key)
{
    if (key >= KEYS_MAX) {
        return NULL;
    }
    if (!make_room(&overviews->places, key + UINT64_C(1), sizeof(uint32_t))) {
        overviews->failed = true;
        return NULL;
    }
    uint32_t *place = (uint32_t *)(void *)overviews->places.data + key;
    if (*place == 0) {
        *place = ++overviews->place_count;
    }
    if (!make_room(&overviews->levels[1].open, overviews->place_count, ROW_SIZE)) {
        overviews->failed = true;
        return NULL;
    }
    return open_rows(overviews, 1) + *place - 1;
}

void tp_overviews_add(tp_overviews *overviews, const tp_batch *batch)
{
    go_to_step(overviews, batch->step);
    for (uint64_t i = 0; batch->records != NULL && i < batch->count && !overviews->failed; i++) {
        const tp_record *record = &batch->records[i];
        if (record->kind != TP_RECORD_STATS || record->state != TP_SLOT_DONE) {
            continue;
        }
        tp_overview *row = find(overviews, record->key);
        if (row == NULL) {
            continue;
        }
        const tp_stats *stats = &record->u.stats;
        const double norm = tp_stats_norm(stats);
        const bool is_nan = stats->nan > 0;
        const bool is_inf = !is_nan && stats->pos_inf + stats->neg_inf > 0;
        const double finite = isfinite(norm) ? norm : (double)NAN;
        const tp_overview one = {.first_step = batch->step,
                                 .last_step = batch->step,
                                 .key = record->key,
                                 .count = 1,
                                 .nan = is_nan,
                                 .inf = is_inf,
                                 .norm_min = finite,
                                 .norm_max = finite};
        merge(row, &one);
    }
}

void tp_overviews_add_rows(tp_overviews *overviews, uint32_t level, const tp_overview *rows,
                           uint64_t count)
{
    const uint64_t width = tp_overview_width(level);
    uint64_t span = UINT64_MAX;
    for (uint64_t i = 0; i < count && !overviews->failed; i++) {
        const uint64_t here = width == 0 ? 0 : rows[i].first_step / width;
        if (here != span) {
            go_to_step(overviews, rows[i].first_step);
            span = here;
        }
        tp_overview *row = rows[i].count > 0 ? find(overviews, rows[i].key) : NULL;
        if (row != NULL) {
            merge(row, &rows[i]);
        }
    }
}

void tp_overviews_finish(tp_overviews *overviews)
{
    if (overviews->width != 0) {
        end_spans(overviews, 1, 1);
        return;
    }
    uint32_t level = 1;
    for (; level < TP_OVERVIEW_LEVELS && overviews->levels[level].rows.size > 0; level++) {
        end_spans(overviews, level, level + 1);
    }
    /* The spans of this level and those above have not ended once: they are the whole so far. */
    end_spans(overviews, level, TP_OVERVIEW_WHOLE);
    end_spans(overviews, TP_OVERVIEW_WHOLE, TP_OVERVIEW_WHOLE);
}

const tp_overview *tp_overviews_rows(const tp_overviews *overviews, uint32_t level, uint64_t *count)
{
    const tp_buf *rows = &overviews->levels[level].rows;
    *count = overviews->failed ? 0 : rows->size / ROW_SIZE;
    return (const tp_overview *)(const void *)rows->data;
}

bool tp_overviews_keeps(const tp_overviews *overviews, uint32_t level)
{
    return !overviews->failed &&
           (level == TP_OVERVIEW_WHOLE || overviews->steps / 2 >= tp_overview_width(level));
}

void tp_overviews_put(tp_buf *out, const tp_overviews *overviews, uint32_t level)
{
    uint64_t count;
    const tp_overview *rows = tp_overviews_rows(overviews, level, &count);
    tp_buf_put_u32(out, HEADER_SIZE);
    tp_buf_put_u32(out, ROW_SIZE);
    tp_buf_put_u32(out, level);
    tp_buf_put_u32(out, 0);
    tp_buf_put_u64(out, tp_overview_width(level));
    tp_buf_put_u64(out, count);
    tp_planes_put(out, rows, ROW_SIZE, count);
}

tp_status tp_overviews_get(const tp_buf *payload, uint32_t *level, tp_buf *rows, uint64_t *count)
{
    const uint8_t *p = payload->data;
    if (payload->size < HEADER_SIZE) {
        return TP_ERR_CORRUPT;
    }
    const uint32_t header_size = tp_get_u32(p);
    if (header_size < HEADER_SIZE || header_size > payload->size) {
        return TP_ERR_CORRUPT;
    }
    *level = tp_get_u32(p + 8);
    *count = tp_get_u64(p + 24);
    return tp_planes_get(p + header_size, payload->size - header_size, tp_get_u32(p + 4), ROW_SIZE,
                         *count, rows);
}

void tp_overviews_clear(tp_overviews *overviews)
{
    tp_buf_clear(&overviews->places);
    for (uint32_t level = 0; level <= TP_OVERVIEW_LEVELS; level++) {
        tp_buf_clear(&overviews->levels[level].open);
        tp_buf_clear(&overviews->levels[level].rows);
    }
    overviews->place_count = 0;
    overviews->steps = 0;
    overviews->step = 0;
    overviews->failed = false;
}

bool tp_overviews_are_large(const tp_overviews *overviews)
{
    return overviews->steps >= LARGE_STEPS && overviews->levels[1].rows.size >= LARGE_BYTES;
}

void tp_overviews_free(tp_overviews *overviews)
{
    tp_buf_free(&overviews->places);
    for (uint32_t level = 0; level <= TP_OVERVIEW_LEVELS; level++) {
        tp_buf_free(&overviews->levels[level].open);
        tp_buf_free(&overviews->levels[level].rows);
    }
    *overviews = (tp_overviews){0};
}
