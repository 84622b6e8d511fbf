/* What brief.c and spans.c share: nobody else reads it. */
#ifndef TP_VIEW_BRIEF_PARTS_H
#define TP_VIEW_BRIEF_PARTS_H

#include "journal/segment.h"
#include "view/brief.h"

#define TP_BRIEF_PARTS (TP_DIGEST_OF_STAT + TP_DIGEST_STATS)
#define TP_BRIEF_NO_STAT UINT32_MAX

/* Which row of the grid the rows of a digest are. */
typedef struct tp_vocabulary {
    tp_buf rows;  /* uint32_t by row of the digest; UINT32_MAX: its name is lost */
    tp_buf known; /* uint32_t by key: row of the grid of call 0, + 1 */
    tp_map calls; /* later calls, likewise, by key and call */
} tp_vocabulary;

typedef struct tp_brief_segment {
    uint64_t number;
    uint64_t offsets[TP_BRIEF_PARTS];
    uint64_t column; /* the first one */
    uint64_t block;  /* likewise */
    uint32_t spans;
    uint32_t rows; /* of the digest */
    uint32_t vocabulary;
    bool is_made;       /* it has no digest that is good, but was read */
    tp_buf made_spans;  /* tp_digest_span */
    tp_buf made_values; /* tp_digest_value [span][statistic][row] */
} tp_brief_segment;

struct tp_brief {
    char folder[TP_PATH_MAX];
    tp_buf segments;     /* tp_brief_segment */
    tp_buf vocabularies; /* tp_vocabulary */
    tp_segment file;
    tp_index index;
    tp_digest digest;
    tp_buf values;
    tp_definitions definitions;
    uint32_t attempt;
    size_t made;       /* bytes of values that were made */
    uint32_t rows_crc; /* of the last vocabulary */
    uint32_t hurry;    /* bits of statistics that somebody waits for */
    uint32_t done;     /* bits of statistics */
    uint32_t stat;     /* that is being taken in */
    uint32_t next;     /* segment of it */
    tp_buf baselines;  /* of it, by row of the grid */
    tp_buf cells;      /* of a block of it: lows, highs, codes */
    tp_buf far;        /* bits [block][row]: far from normal in the norm */
};

static inline tp_brief_segment *tp_brief_segment_at(const tp_brief *brief, uint32_t index)
{
    return (tp_brief_segment *)(void *)brief->segments.data + index;
}

static inline uint32_t tp_brief_segment_count(const tp_brief *brief)
{
    return (uint32_t)(brief->segments.size / sizeof(tp_brief_segment));
}

static inline tp_vocabulary *tp_vocabulary_at(const tp_brief *brief, uint32_t index)
{
    return (tp_vocabulary *)(void *)brief->vocabularies.data + index;
}

/* A vocabulary more, which is empty at first. */
tp_status tp_brief_begin_vocabulary(tp_brief *brief);

/* A row of the last vocabulary; key NULL: its name is lost. */
tp_status tp_brief_add_row(tp_view_run *run, tp_view_rank *rank, const tp_digest_row *row,
                           const tp_key *key);

tp_status tp_brief_add_step(tp_view_rank *rank, uint64_t segment, const tp_digest_step *step);

/* A segment whose steps, spans and scalars are these; its vocabulary is there. */
tp_status tp_brief_add_segment(tp_view_rank *rank, tp_brief_segment *one, const tp_buf *spans,
                               const tp_buf *scalars);

/* Makes the digest of a segment of its records, and takes it in if there is any step. rank->reader
 * is somewhere else then. */
tp_status tp_brief_make(tp_view_run *run, tp_view_rank *rank, tp_brief_segment *one);

#endif
