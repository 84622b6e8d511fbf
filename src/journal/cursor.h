/* How far a follower has come: one small checksummed file, replaced in one step after the data it
 * speaks of has been written. */
#ifndef TP_JOURNAL_CURSOR_H
#define TP_JOURNAL_CURSOR_H

#include <stdbool.h>

#include "base/buf.h"
#include "tensorprobe/reader.h"

typedef struct tp_cursor {
    bool any;             /* false: the follower has written nothing yet; the rest is 0 */
    uint64_t step;        /* the last step it has written */
    uint32_t attempt;     /* of that step */
    tp_position position; /* in the journal, behind that step's batch */
} tp_cursor;

static inline bool tp_position_is_before(tp_position a, tp_position b)
{
    return a.segment < b.segment || (a.segment == b.segment && a.offset < b.offset);
}

/* Reads path. A missing file is an empty cursor and an empty blob. blob: bytes of the follower's
 * own (file offsets …). TP_ERR_CORRUPT when the checksum is wrong. */
tp_status tp_cursor_load(const char *path, tp_cursor *cursor, tp_buf *blob, tp_error *error);

tp_status tp_cursor_store(const char *path, const tp_cursor *cursor, const tp_buf *blob,
                          tp_error *error);

#endif
