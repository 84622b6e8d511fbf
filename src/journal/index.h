/* Where the frames of a segment are, at its end: a reader goes straight to what it wants. */
#ifndef TP_JOURNAL_INDEX_H
#define TP_JOURNAL_INDEX_H

#include <stdbool.h>

#include "base/buf.h"
#include "tensorprobe/status.h"

typedef struct tp_index_entry {
    uint64_t step;
    uint64_t offset;
    uint32_t type;  /* TP_FRAME_… */
    uint32_t level; /* of an overview; of a digest its part */
} tp_index_entry;

/* Zeroed is empty. */
typedef struct tp_index {
    tp_buf entries;
    uint64_t first_step; /* of batches; more than last_step when there is none */
    uint64_t last_step;
    uint64_t offset; /* of the frame that it was read from */
} tp_index;

uint64_t tp_index_count(const tp_index *index);
const tp_index_entry *tp_index_at(const tp_index *index, uint64_t place);

/* Remembers a frame; they come in order. A failed allocation shows in entries.failed. */
void tp_index_add(tp_index *index, uint32_t type, uint64_t step, uint64_t offset, uint32_t level);

/* The place of the first entry at this offset or behind it. */
uint64_t tp_index_find(const tp_index *index, uint64_t offset);

/* The level of overviews that has the widest spans of no more than so many steps; width 0: of any
 * number. TP_INDEX_NO_LEVEL: none has, or they are not wanted (is_good), and the records tell. Of a
 * segment that has lost its batches the narrowest there are. */
#define TP_INDEX_NO_LEVEL UINT32_MAX
uint32_t tp_index_choose(const tp_index *index, uint64_t width, bool is_good);

/* Appends the payload of a frame. */
void tp_index_put(tp_buf *out, const tp_index *index);

/* Reads such a payload, of a frame that lies at this offset: entries lie in front of it, in order.
 * TP_ERR_CORRUPT, TP_ERR_NOMEM; the index is empty then. */
tp_status tp_index_get(const tp_buf *payload, uint64_t offset, tp_index *index);

/* Reads the index of a segment that has ended. It stays empty when there is none, or none that is
 * whole: then the segment is read frame by frame. */
struct tp_segment;
void tp_index_load(tp_index *index, struct tp_segment *from);

/* Empties it, keeps the memory. */
void tp_index_clear(tp_index *index);

void tp_index_free(tp_index *index);

#endif
