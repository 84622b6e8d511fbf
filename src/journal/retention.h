/* Keeping a journal small: old segments lose their batches and keep names, alerts and overviews. */
#ifndef TP_JOURNAL_RETENTION_H
#define TP_JOURNAL_RETENTION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* 0: no limit. */
typedef struct tp_retention {
    uint64_t bytes;   /* of all segments */
    uint64_t seconds; /* since the last append to a segment */
} tp_retention;

/* Who has not come so far yet. */
typedef struct tp_waiting {
    uint64_t segment;  /* the first one that is still needed; UINT64_MAX: none */
    char cursor[256];  /* whose cursor says so: followers/csv.cursor */
    uint64_t segments; /* that were needed and have lost their batches nevertheless */
} tp_waiting;

/* Takes their batches from the oldest segments of the journal in a folder, up to (not including)
 * `end`, until the limits hold or none is left that has some. Segments that a cursor in followers/
 * or ship/ has not passed stay, up to twice the bytes and twice the age. What is left of the others
 * is put together, with wider spans, until it takes no more than a quarter of the bytes; so steps
 * have at least half of them. */
tp_status tp_retention_apply(const tp_retention *limits, const char *folder, uint64_t end,
                             tp_waiting *waiting, tp_error *error);

#endif
