/* Single steps of a large journal, where somebody looks closer than its digests do. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "journal/segment.h"
#include "view/brief.h"

#define MOST_RECORDS (UINT64_C(6) << 20)        /* read for one wish */
#define MOST_CELLS (TP_GRID_FINE_BYTES / 2 / 5) /* likewise, so that they stay */
#define WISHES 16                               /* others are made again */
#define WORD(n) (UINT32_C(1) << (n))            /* of a record: bytes 8 n … */
#define ALWAYS (WORD(0) | WORD(2) | WORD(3) | WORD(4) | WORD(7) | WORD(8) | WORD(9) | WORD(10))

struct tp_wishes {
    pthread_mutex_t mutex;
    tp_buf items; /* tp_wish */
};

tp_wishes *tp_wishes_new(void)
{
    tp_wishes *wishes = tp_calloc(1, sizeof *wishes);
    if (wishes != NULL) {
        pthread_mutex_init(&wishes->mutex, NULL);
    }
    return wishes;
}

void tp_wishes_free(tp_wishes *wishes)
{
    if (wishes != NULL) {
        tp_buf_free(&wishes->items);
        pthread_mutex_destroy(&wishes->mutex);
        tp_free(wishes);
    }
}

/* The words of a record that a statistic is made of; some are stored as differences from others. */
static uint32_t words_of(uint32_t stat)
{
    switch (stat) {
    case TP_GRID_NORM:
        return ALWAYS | WORD(21) | WORD(23);
    case TP_GRID_MAX_ABS:
        return ALWAYS | WORD(13) | WORD(14) | WORD(15) | WORD(16) | WORD(17);
    case TP_GRID_MEAN:
        return ALWAYS | WORD(19);
    case TP_GRID_STD:
        return ALWAYS | WORD(19) | WORD(21) | WORD(22) | WORD(23);
    case TP_GRID_MIN:
        return ALWAYS | WORD(13) | WORD(15);
    case TP_GRID_MAX:
        return ALWAYS | WORD(14) | WORD(16);
    default:
        return ALWAYS | WORD(11);
    }
}

/* What is read at a time: a block's values of the rows that are wanted. */
typedef struct reading {
    const tp_view_rank *rank;
    const tp_wish *wish;
    tp_segment file;
    uint64_t number; /* of the segment that is open */
    tp_buf records;
    tp_buf lows;   /* float [column][row] */
    tp_buf highs;  /* likewise */
    tp_buf counts; /* uint32_t, likewise: values */
    tp_buf values; /* float [row][column], then codes */
    tp_buf baselines;
} reading;

static bool read_column(reading *in, uint64_t column, uint32_t place)
{
    const tp_view_column *at = tp_view_column_at(in->rank, column);
    const tp_brief *brief = in->rank->brief;
    const tp_wish *wish = in->wish;
    const uint32_t segment = tp_brief_segment_of(brief, column);
    uint64_t count = 0;
    if (in->file.fd < 0 || in->number != at->position.segment) {
        in->number = at->position.segment;
        if (tp_segment_open(&in->file, tp_brief_folder(brief), in->number) != TP_OK) {
            return false;
        }
    }
    if (!tp_segment_read_words(&in->file, at->position.offset, words_of(wish->stat), &in->records,
                               &count)) {
        return false;
    }
    float *lows = (float *)(void *)in->lows.data + (size_t)place * wish->count;
    float *highs = (float *)(void *)in->highs.data + (size_t)place * wish->count;
    uint32_t *counts = (uint32_t *)(void *)in->counts.data + (size_t)place * wish->count;
    memset(counts, 0, wish->count * sizeof *counts);
    for (uint64_t i = 0; i < count; i++) {
        const tp_record *record = (const tp_record *)(const void *)in->records.data + i;
        if (record->kind != TP_RECORD_STATS || record->state != TP_SLOT_DONE) {
            continue;
        }
        const uint32_t row = tp_brief_row_of(brief, segment, record) - wish->first;
        if (row < wish->count) {
            const float value = tp_grid_value(&record->u.stats, wish->stat);
            const bool first = counts[row]++ == 0;
            /* NaN is worse than anything, and stays. */
            lows[row] = first || isnan(value) || value < lows[row] ? value : lows[row];
            highs[row] = first || isnan(value) || value > highs[row] ? value : highs[row];
        }
    }
    return true;
}

static bool read_block(reading *in, tp_grid_place place)
{
    const tp_wish *wish = in->wish;
    const size_t cells = (size_t)wish->count * place.width;
    tp_baseline *baselines = (tp_baseline *)(void *)in->baselines.data;
    tp_buf *const bufs[] = {&in->lows, &in->highs, &in->counts};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) {
        tp_buf_clear(bufs[i]);
        if (tp_buf_extend(bufs[i], cells * sizeof(float)) == NULL) {
            return false;
        }
    }
    tp_buf_clear(&in->values);
    float *values = tp_buf_extend(&in->values, cells * (sizeof *values + 1));
    if (values == NULL) {
        return false;
    }
    for (uint32_t k = 0; k < place.width; k++) {
        if (!read_column(in, place.first + k, k)) {
            return false;
        }
    }
    int8_t *codes = (int8_t *)(values + cells);
    for (uint32_t k = 0; k < place.width; k++) {
        for (uint32_t row = 0; row < wish->count; row++) {
            const size_t from = (size_t)k * wish->count + row;
            const size_t to = (size_t)row * place.width + k;
            const uint32_t count = ((const uint32_t *)(const void *)in->counts.data)[from];
            const tp_cell cell =
                count > 0
                    ? tp_view_settle(&baselines[row], wish->stat,
                                     ((const float *)(const void *)in->lows.data)[from],
                                     ((const float *)(const void *)in->highs.data)[from], count)
                    : tp_cell_none();
            values[to] = cell.value;
            codes[to] = cell.code;
        }
    }
    tp_grid_put_fine(in->rank->grid, place.block, wish->stat, wish->first, wish->count, values,
                     codes);
    return true;
}

/* Walks the brief blocks of a wish; all: whether all of them are there. *records: of the steps in
 * those that aren't; *cells: of all that are wanted. */
static bool all_there(const tp_view_rank *rank, const tp_wish *wish, uint64_t *records,
                      uint64_t *cells)
{
    bool all = true;
    *records = 0;
    *cells = 0;
    for (uint64_t i = wish->from; i <= wish->to;) {
        const tp_grid_place place = tp_grid_find(rank->grid, i);
        if (place.is_brief) {
            *cells += (uint64_t)place.width * wish->count;
        }
        if (place.is_brief &&
            !tp_grid_has_fine(rank->grid, place.block, wish->stat, wish->first, wish->count)) {
            all = false;
            for (uint32_t k = 0; k < place.width; k++) {
                *records += tp_view_column_at(rank, place.first + k)->records;
            }
        }
        i = place.first + place.width;
    }
    return all;
}

bool tp_wishes_read(const tp_view_run *run, const tp_wish *wish)
{
    uint64_t records;
    uint64_t cells;
    const tp_view_rank *rank = tp_view_rank_find(run, wish->rank);
    reading in = {.rank = rank, .wish = wish, .file = {.fd = -1}};
    if (rank->brief == NULL || all_there(rank, wish, &records, &cells)) {
        return true;
    }
    tp_baseline *baselines = tp_buf_extend(&in.baselines, wish->count * sizeof *baselines);
    bool good = baselines != NULL;
    if (good) {
        memset(baselines, 0, wish->count * sizeof *baselines);
        tp_brief_seed(rank, wish->from, wish->stat, wish->first, wish->count, baselines, 1);
    }
    for (uint64_t i = wish->from; i <= wish->to && good;) {
        const tp_grid_place place = tp_grid_find(rank->grid, i);
        good = !place.is_brief || read_block(&in, place);
        i = place.first + place.width;
    }
    tp_segment_close(&in.file);
    tp_buf *const bufs[] = {&in.records, &in.lows,   &in.highs,
                            &in.counts,  &in.values, &in.baselines};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) {
        tp_buf_free(bufs[i]);
    }
    return good;
}

static bool is_same(const tp_wish *a, const tp_wish *b)
{
    return a->rank == b->rank && a->stat == b->stat && a->first == b->first &&
           a->count == b->count && a->from == b->from && a->to == b->to;
}

bool tp_wishes_add(const tp_view_run *run, const tp_wish *wish)
{
    uint64_t records;
    uint64_t cells;
    const tp_view_rank *rank = tp_view_rank_find(run, wish->rank);
    if (rank->brief == NULL || all_there(rank, wish, &records, &cells) || records > MOST_RECORDS ||
        cells > MOST_CELLS) {
        return false;
    }
    pthread_mutex_lock(&run->wishes->mutex);
    tp_buf *items = &run->wishes->items;
    bool known = items->size / sizeof *wish >= WISHES;
    for (size_t i = 0; i < items->size / sizeof *wish; i++) {
        known = known || is_same((const tp_wish *)(const void *)items->data + i, wish);
    }
    if (!known) {
        tp_buf_put(items, wish, sizeof *wish);
    }
    pthread_mutex_unlock(&run->wishes->mutex);
    return true;
}

bool tp_wishes_grant(tp_view_run *run)
{
    tp_wish wish;
    pthread_mutex_lock(&run->wishes->mutex);
    tp_buf *items = &run->wishes->items;
    const bool has = !items->failed && items->size > 0;
    if (has) {
        memcpy(&wish, items->data, sizeof wish);
        memmove(items->data, items->data + sizeof wish, items->size - sizeof wish);
        items->size -= sizeof wish;
    } else if (items->failed) {
        tp_buf_clear(items);
    }
    pthread_mutex_unlock(&run->wishes->mutex);
    if (has && tp_wishes_read(run, &wish)) {
        pthread_rwlock_wrlock(&run->lock);
        run->version++;
        pthread_rwlock_unlock(&run->lock);
    }
    return has;
}
