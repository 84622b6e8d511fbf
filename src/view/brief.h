/* A large journal as its digests show it: its steps and series at once, then statistic by statistic
 * the smallest and the largest value of each series in spans of up to 16 steps, and how far from
 * normal these are. Cells of single steps are read from the journal where somebody looks closer. */
#ifndef TP_VIEW_BRIEF_H
#define TP_VIEW_BRIEF_H

#include "view/run.h"

/* A smaller journal is read as a whole: then all of it is there in single steps. */
#define TP_BRIEF_LEAST_BYTES (UINT64_C(64) << 20)

typedef struct tp_brief tp_brief;

/* Takes in steps, series and alerts of the segments that the rank's first journal begins with, as
 * far as these have digests, and leaves its reader behind them. rank->brief stays NULL where there
 * are none, or the journal is small. */
tp_status tp_brief_open(tp_view_run *run, tp_view_rank *rank);

/* Takes in a statistic of a segment more; false: there is none. */
bool tp_brief_advance(tp_view_run *run, tp_view_rank *rank);

void tp_brief_free(tp_brief *brief); /* accepts NULL */

/* The baselines of rows first … first + count - 1 (each `stride` behind the one before it) before a
 * column, as the spans in front of it tell. */
void tp_brief_seed(const tp_view_rank *rank, uint64_t column, uint32_t stat, uint32_t first,
                   uint32_t count, tp_baseline *baselines, size_t stride);

/* What one brief block does to them. */
void tp_brief_seed_block(const tp_view_rank *rank, uint64_t block, uint32_t stat, uint32_t first,
                         uint32_t count, tp_baseline *baselines, size_t stride);

/* Any thread, with the run's lock held: this statistic goes before others. */
void tp_brief_hurry(const tp_view_rank *rank, uint32_t stat);

/* For those who read its records: the segment that a column lies in. */
uint32_t tp_brief_segment_of(const tp_brief *brief, uint64_t column);
const char *tp_brief_folder(const tp_brief *brief);
/* The row of the grid that a record in that segment has; UINT32_MAX: it has none. */
uint32_t tp_brief_row_of(const tp_brief *brief, uint32_t segment, const tp_record *record);

/* Wishes for single steps: */
typedef struct tp_wishes tp_wishes;
tp_wishes *tp_wishes_new(void);
void tp_wishes_free(tp_wishes *wishes); /* accepts NULL */

typedef struct tp_wish {
    uint32_t rank;
    uint32_t stat;
    uint32_t first; /* rows of the grid */
    uint32_t count;
    uint64_t from; /* columns, the last one included */
    uint64_t to;
} tp_wish;

/* With the run's lock held: asks for cells that aren't there, unless these are too many. Whether
 * they will come, so that what is coarse now will be finer. */
bool tp_wishes_add(const tp_view_run *run, const tp_wish *wish);

/* Reads what the oldest wish is for; false: there is none. */
bool tp_wishes_grant(tp_view_run *run);

/* Reads it now, and returns whether all of it is there. With the lock held for reading, or by the
 * thread that takes in. */
bool tp_wishes_read(const tp_view_run *run, const tp_wish *wish);

#endif
