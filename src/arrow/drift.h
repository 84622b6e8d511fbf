/* Where ranks that have the same parameters part. */
#ifndef TP_ARROW_DRIFT_H
#define TP_ARROW_DRIFT_H

#include <stdbool.h>

#include "tensorprobe/record.h"
#include "tensorprobe/status.h"

#define TP_DRIFT_NAME 512

typedef struct tp_drift_options {
    const char *const *directories; /* of ranks of one run */
    uint32_t directory_count;

    /* Whether this key's parameter is looked at; NULL: all are. */
    bool (*applies)(const void *context, const tp_key *key);
    const void *context;
} tp_drift_options;

typedef struct tp_drift {
    uint64_t step; /* the first in which a parameter isn't the same on all ranks that have it */
    uint32_t quantity;
    uint32_t rank;       /* that has other statistics of it */
    uint32_t other;      /* than this one */
    uint64_t parameters; /* that differ in that step */
    char name[TP_DRIFT_NAME];
} tp_drift;

/* Compares the statistics of parameters before and after each step, bit by bit. The name is that of
 * the first one in the order of execution. TP_END: they are the same everywhere. TP_ERR_NOMEM, and
 * what reading says. */
tp_status tp_drift_find(const tp_drift_options *options, tp_drift *out, tp_error *error);

#endif
