/* Keeping a journal small: old segments lose their batches and keep names, alerts and overviews. */
#ifndef TP_JOURNAL_RETENTION_H
#define TP_JOURNAL_RETENTION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "tensorprobe/record.h"

/* 0: no limit. */
typedef struct tp_retention {
    uint64_t bytes;   /* of all segments; those that have lost their batches are the last to go */
    uint64_t seconds; /* since the last append to a segment */
} tp_retention;

/* Takes their batches from the oldest segments of the journal in a folder, up to (not including)
 * `end`, until the limits hold or none is left that has some. Segments that the cursor of a
 * follower has not passed stay, up to twice the bytes. */
tp_status tp_retention_apply(const tp_retention *limits, const char *folder, uint64_t end,
                             tp_error *error);

/* Rewrites a segment, which has ended, without its batches, in one step. TP_END: it has none. */
tp_status tp_segment_thin(const char *folder, uint64_t segment, tp_error *error);

/* Reads what stands in the place of batches: batch's step and count are those of the first one and
 * how many there were. TP_ERR_CORRUPT. */
tp_status tp_removed_get(const tp_buf *payload, tp_batch *batch, uint64_t *last);

/* Whether that has been done. */
bool tp_segment_is_thin(const char *folder, uint64_t segment);

#endif
