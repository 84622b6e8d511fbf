#include "journal/index.h"

#include "journal/frame.h"
#include "journal/overview.h"
#include "journal/records.h"
#include "journal/segment.h"

#define HEADER_SIZE 32u
#define ENTRY_SIZE 24u

_Static_assert(sizeof(tp_index_entry) == ENTRY_SIZE, "stored as it lies in memory");

uint64_t tp_index_count(const tp_index *index)
{
    return index->entries.size / ENTRY_SIZE;
}

const tp_index_entry *tp_index_at(const tp_index *index, uint64_t place)
{
    return (const tp_index_entry *)(const void *)index->entries.data + place;
}

void tp_index_add(tp_index *index, uint32_t type, uint64_t step, uint64_t offset, uint32_t level)
{
    const tp_index_entry entry = {step, offset, type, level};
    if (tp_index_count(index) == 0) {
        index->first_step = UINT64_MAX;
        index->last_step = 0;
    }
    if (type == TP_FRAME_BATCH) {
        index->first_step = step < index->first_step ? step : index->first_step;
        index->last_step = step > index->last_step ? step : index->last_step;
    }
    tp_buf_put(&index->entries, &entry, sizeof entry);
}

uint64_t tp_index_find(const tp_index *index, uint64_t offset)
{
    uint64_t low = 0;
    for (uint64_t high = tp_index_count(index); low < high;) {
        const uint64_t middle = low + (high - low) / 2;
        if (tp_index_at(index, middle)->offset < offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static uint32_t choose_widest(const tp_index *index, uint64_t width)
{
    const uint64_t most = width == 0 ? UINT64_MAX : width;
    uint32_t best = TP_INDEX_NO_LEVEL;
    uint64_t best_width = 0;
    for (uint64_t i = 0; i < tp_index_count(index); i++) {
        const tp_index_entry *entry = tp_index_at(index, i);
        if (entry->type != TP_FRAME_OVERVIEW || entry->level > TP_OVERVIEW_LEVELS) {
            continue;
        }
        const uint64_t here = entry->level == TP_OVERVIEW_WHOLE
                                  ? index->last_step - index->first_step + 1
                                  : tp_overview_width(entry->level);
        /* As wide as the whole: then the whole, which has fewer rows. */
        if (here <= most && (best == TP_INDEX_NO_LEVEL || here > best_width) &&
            best != TP_OVERVIEW_WHOLE) {
            best = entry->level;
            best_width = here;
        }
    }
    return best;
}

static uint32_t choose_narrowest(const tp_index *index)
{
    uint32_t best = TP_INDEX_NO_LEVEL;
    for (uint64_t i = 0; i < tp_index_count(index); i++) {
        const tp_index_entry *entry = tp_index_at(index, i);
        if (entry->type == TP_FRAME_OVERVIEW &&
            (best == TP_INDEX_NO_LEVEL || best == TP_OVERVIEW_WHOLE ||
             (entry->level < best && entry->level != TP_OVERVIEW_WHOLE))) {
            best = entry->level;
        }
    }
    return best;
}

static bool has(const tp_index *index, uint32_t type)
{
    bool found = false;
    for (uint64_t i = 0; i < tp_index_count(index) && !found; i++) {
        found = tp_index_at(index, i)->type == type;
    }
    return found;
}

uint32_t tp_index_choose(const tp_index *index, uint64_t width, bool is_good)
{
    const uint32_t level = is_good ? choose_widest(index, width) : TP_INDEX_NO_LEVEL;
    return level == TP_INDEX_NO_LEVEL && has(index, TP_FRAME_REMOVED) ? choose_narrowest(index)
                                                                      : level;
}

void tp_index_put(tp_buf *out, const tp_index *index)
{
    const uint64_t count = tp_index_count(index);
    tp_buf_put_u32(out, HEADER_SIZE);
    tp_buf_put_u32(out, ENTRY_SIZE);
    tp_buf_put_u64(out, index->first_step);
    tp_buf_put_u64(out, index->last_step);
    tp_buf_put_u64(out, count);
    tp_planes_put(out, index->entries.data, ENTRY_SIZE, count);
}

tp_status tp_index_get(const tp_buf *payload, uint64_t offset, tp_index *index)
{
    const uint8_t *p = payload->data;
    tp_index_clear(index);
    if (payload->size < HEADER_SIZE) {
        return TP_ERR_CORRUPT;
    }
    const uint32_t header_size = tp_get_u32(p);
    if (header_size < HEADER_SIZE || header_size > payload->size) {
        return TP_ERR_CORRUPT;
    }
    index->first_step = tp_get_u64(p + 8);
    index->last_step = tp_get_u64(p + 16);
    index->offset = offset;
    tp_status status =
        tp_planes_get(p + header_size, payload->size - header_size, tp_get_u32(p + 4), ENTRY_SIZE,
                      tp_get_u64(p + 24), &index->entries);
    uint64_t behind = 1; /* the segment's header lies at 0 */
    for (uint64_t i = 0; status == TP_OK && i < tp_index_count(index); i++) {
        const tp_index_entry *entry = tp_index_at(index, i);
        if (entry->offset < behind || entry->offset >= offset) {
            status = TP_ERR_CORRUPT;
        }
        behind = entry->offset + 1;
    }
    if (status != TP_OK) {
        tp_index_clear(index);
    }
    return status;
}

void tp_index_load(tp_index *index, struct tp_segment *from)
{
    const uint64_t trailer = TP_FRAME_HEADER_SIZE + TP_FRAME_TRAILER_SIZE;
    tp_index_clear(index);
    if (from->size < TP_SEGMENT_HEADER_SIZE + trailer) {
        return;
    }
    const uint64_t end = from->size - trailer;
    if ((tp_segment_read(from, end, TP_FRAME_CONTINUED) ||
         tp_segment_read(from, end, TP_FRAME_CLOSE)) &&
        from->payload.size == TP_FRAME_TRAILER_SIZE) {
        const uint64_t offset = tp_get_u64(from->payload.data);
        if (offset < end && tp_segment_read(from, offset, TP_FRAME_INDEX)) {
            (void)tp_index_get(&from->payload, offset, index);
        }
    }
}

void tp_index_clear(tp_index *index)
{
    tp_buf_clear(&index->entries);
    index->first_step = 0;
    index->last_step = 0;
}

void tp_index_free(tp_index *index)
{
    tp_buf_free(&index->entries);
}
