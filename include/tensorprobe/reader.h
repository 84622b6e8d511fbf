/* Reading a journal: from the beginning, or on from a cursor, while it may still be growing. */
#ifndef TENSORPROBE_READER_H
#define TENSORPROBE_READER_H

#include <stdint.h>

#include "tensorprobe/record.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tp_reader tp_reader;

/* What the next frame of the journal was. Definitions of keys and shapes are taken in silently. */
#define TP_ITEM_BATCH 1    /* a step: item.batch */
#define TP_ITEM_ALERTS 2   /* alerts of the step in item.batch.step: item.batch.records */
#define TP_ITEM_CLOSE 3    /* the monitor closed the journal cleanly here */
#define TP_ITEM_OVERVIEW 4 /* what tp_reader_overview asks for: item.overviews */
#define TP_ITEM_REMOVED                                                                            \
    5 /* steps of which only alerts and overviews are left: item.batch.step to
                              item.removed_last, item.batch.count of them */

/* The records of one key in a span of steps. Stored in journals as is: fields are never moved. */
typedef struct tp_overview {
    uint64_t first_step; /* of those that have records */
    uint64_t last_step;
    uint32_t key;
    uint32_t count;  /* records */
    uint32_t nan;    /* records of tensors with a NaN */
    uint32_t inf;    /* records of tensors with an infinity and no NaN */
    double norm_min; /* of the norms that are finite; NaN when none is */
    double norm_max;
} tp_overview;

/* Where a reader stands: everything before it has been handed out. */
typedef struct tp_position {
    uint64_t segment;
    uint64_t offset;
} tp_position;

typedef struct tp_item {
    uint32_t type; /* TP_ITEM_… */
    uint32_t reserved;
    tp_batch batch;               /* valid until the next call on the reader */
    tp_position position;         /* after this frame */
    const tp_overview *overviews; /* valid until the next call on the reader */
    uint64_t overview_count;
    uint64_t removed_last;
} tp_item;

typedef struct tp_run_info {
    char run_id[64];
    uint32_t rank;
    uint32_t attempt;
    int64_t start_wall_ns; /* Unix time at which the journal was opened for writing */
} tp_run_info;

/* Opens the journal below directory (the folder of one rank, or its journal folder itself).
 * error may be NULL. TP_ERR_NOTFOUND when there is no journal. On success the caller owns *out
 * and ends it with tp_reader_close. One thread at a time. */
TP_API tp_status tp_reader_open(tp_reader **out, const char *directory, tp_error *error);

/* Goes on at a position that an item gave, or at offset 0 of a segment. TP_ERR_ARGUMENT when the
 * journal has no such place. After a failure the reader stands somewhere else: seek again. */
TP_API tp_status tp_reader_seek(tp_reader *reader, tp_position position, tp_error *error);

/* What tp_reader_next hands out from now on: batches and alerts of the steps first … last alone.
 * Others are passed over without being read. With headers_only, batches and alerts have no more
 * than step, rank and attempt (count 0, records NULL), and only their frames' headers are read:
 * enough to see how far a journal goes, and to learn its keys. */
TP_API void tp_reader_limit(tp_reader *reader, uint64_t first, uint64_t last,
                            uint32_t headers_only);

/* A run that was started again from a checkpoint may have recorded steps twice. Of these the reader
 * hands out what the latest attempt has: nothing of an attempt from the first step of a later one
 * on, as far as there were attempts when the reader was opened. (Who follows a growing journal
 * meets a new attempt by tp_batch.attempt.) From this call on it hands out everything. */
TP_API void tp_reader_all_attempts(tp_reader *reader);

/* From now on tp_reader_next hands out overviews instead of batches and alerts: spans of at most so
 * many steps (0: of all steps of a segment), each within one segment. Segments that have ended keep
 * some for every 16, 256 … steps, and one for all; where these don't do, they are made from the
 * records. Spans of a stored overview may reach beyond the limit of steps. */
TP_API void tp_reader_overview(tp_reader *reader, uint64_t width);

/* The next frame. TP_END: nothing more at present (a torn tail counts as nothing); calling again
 * later goes on when the writer has gone on. TP_ERR_CORRUPT: a damaged frame in the middle; the
 * error names file and offset, and the next call goes on behind the damage. */
TP_API tp_status tp_reader_next(tp_reader *reader, tp_item *item, tp_error *error);

TP_API const tp_run_info *tp_reader_run(const tp_reader *reader);

/* NULL when the id has not been defined up to here. Owned by the reader, valid until close. An id
 * belongs to the segment in which the reader stands: when a run is started again in the same
 * journal, an id may get another key (and shape). */
TP_API const tp_key *tp_reader_key(const tp_reader *reader, uint32_t key);

/* Number of keys defined up to here: their ids are 0 … count - 1. */
TP_API uint32_t tp_reader_key_count(const tp_reader *reader);

/* The defined keys one after the other, also where damage has left holes among the ids: *place is 0
 * at first, and NULL is the end. */
TP_API const tp_key *tp_reader_next_key(const tp_reader *reader, uint64_t *place, uint32_t *key);

/* Dimensions of a shape: *ndim of them, owned by the reader. NULL when it has not been defined. */
TP_API const int64_t *tp_reader_shape(const tp_reader *reader, uint32_t shape, uint32_t *ndim);

/* Accepts NULL; sets *reader to NULL. */
TP_API void tp_reader_close(tp_reader **reader);

#ifdef __cplusplus
}
#endif

#endif
