/* Several records of a step as one: the calls of a collective have one row, and one tag. */
#ifndef TP_SINKS_MERGED_H
#define TP_SINKS_MERGED_H

#include "base/buf.h"
#include "base/error.h"
#include "base/map.h"
#include "tensorprobe/record.h"

typedef struct tp_merged {
    tp_map index;   /* name → number of its record */
    tp_buf records; /* tp_record each, in the order in which names came first */
    uint32_t count;
} tp_merged;

void tp_merged_clear(tp_merged *merged);

/* Joins a record of statistics with those of the same name (any bytes). What it has beside the
 * statistics is that of the first one, but call, micro step and flags are 0. */
tp_status tp_merged_add(tp_merged *merged, const void *name, size_t size, const tp_record *record,
                        tp_error *error);

/* Valid until the next tp_merged_add. */
const tp_record *tp_merged_record(const tp_merged *merged, uint32_t number);

void tp_merged_free(tp_merged *merged);

#endif
