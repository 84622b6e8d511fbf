/* What a segment says of each key in spans of steps: built while records pass by, stored in spans
 * of 16, 256, … steps and as a whole. docs/journal.md describes the bytes. */
#ifndef TP_JOURNAL_OVERVIEW_H
#define TP_JOURNAL_OVERVIEW_H

#include "base/buf.h"
#include "tensorprobe/reader.h"

#define TP_OVERVIEW_WHOLE 0  /* the level that has one span: all steps of the segment */
#define TP_OVERVIEW_LEVELS 5 /* besides it: level n has spans of 16^n steps */

/* Steps in a span of this level; 0: all. */
uint64_t tp_overview_width(uint32_t level);

typedef struct tp_overview_level {
    tp_buf open; /* tp_overview of each place: of the span that the last step lies in */
    tp_buf rows; /* tp_overview of spans that are over */
} tp_overview_level;

/* Zeroed is empty. */
typedef struct tp_overviews {
    tp_buf places; /* uint32_t by key id: place + 1; 0 is none */
    uint32_t place_count;
    uint64_t
        width; /* 0: all levels; else spans of this many steps in level 1 alone, UINT64_MAX: one
                        span */
    uint64_t steps; /* batches */
    uint64_t step;  /* the last one */
    bool failed;    /* no memory: there is no overview of this segment */
    tp_overview_level levels[TP_OVERVIEW_LEVELS + 1];
} tp_overviews;

/* Takes in the records of a batch whose keys are below 2^24, as a writer's are. */
void tp_overviews_add(tp_overviews *overviews, const tp_batch *batch);

/* Takes in the rows of a level of another segment, whose steps come behind those that are in
 * already. What levels below it hold then is senseless. */
void tp_overviews_add_rows(tp_overviews *overviews, uint32_t level, const tp_overview *rows,
                           uint64_t count);

/* Ends every span. Nothing may be added before tp_overviews_clear. */
void tp_overviews_finish(tp_overviews *overviews);

/* The rows of a level after tp_overviews_finish. */
const tp_overview *tp_overviews_rows(const tp_overviews *overviews, uint32_t level,
                                     uint64_t *count);

/* Whether a segment keeps this level: it has two spans at least. */
bool tp_overviews_keeps(const tp_overviews *overviews, uint32_t level);

/* Appends the payload of a frame. */
void tp_overviews_put(tp_buf *out, const tp_overviews *overviews, uint32_t level);

/* Reads such a payload into rows (of tp_overview). TP_ERR_CORRUPT, TP_ERR_NOMEM. */
tp_status tp_overviews_get(const tp_buf *payload, uint32_t *level, tp_buf *rows, uint64_t *count);

/* Whether they are worth a segment's end before it has reached its size: they lie in memory until
 * then, and of many small steps they are a good part of what is recorded. */
bool tp_overviews_are_large(const tp_overviews *overviews);

/* Empties all, keeps the memory. */
void tp_overviews_clear(tp_overviews *overviews);

void tp_overviews_free(tp_overviews *overviews);

#endif
