/* The collectives of all ranks of a run, out of their journals. */
#ifndef TP_VIEW_CALLS_H
#define TP_VIEW_CALLS_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/map.h"
#include "journal/find.h"
#include "tensorprobe/record.h"

/* One call of one rank. Texts are numbers, for tp_calls_text. */
#define TP_CALL_DIMS 4
typedef struct tp_call {
    uint32_t rank;
    uint32_t name;
    uint32_t group; /* "<name>:<ranks>" */
    uint32_t location;
    bool has_location;
    uint32_t dtype;
    uint32_t ndim;
    int64_t dims[TP_CALL_DIMS]; /* the first of them */
    uint64_t step;              /* in which it was issued */
    tp_collective call;
} tp_call;

/* How far a rank came. */
typedef struct tp_call_rank {
    uint32_t rank;
    uint32_t attempt; /* the last one: others are left out */
    bool has_last;
    bool partial;  /* the last step has not ended */
    bool closed;   /* the monitor was closed */
    bool has_box;  /* a black box has not been brought in */
    uint32_t last; /* row of the last record, and where it stands */
    uint64_t last_step;
    uint32_t micro_step;
} tp_call_rank;

typedef struct tp_calls {
    tp_buf
        calls; /* tp_call each: by group, sequence and rank; of send and recv behind the others */
    uint64_t count;
    tp_buf ranks; /* tp_call_rank each, ascending */
    uint32_t rank_count;
    uint64_t damaged; /* frames that could not be read */
    tp_map text_index;
    tp_buf texts;   /* with their ends */
    tp_buf offsets; /* u32 of each in texts */
} tp_calls;

/* Of these steps. TP_ERR_ARGUMENT: two journals of one rank, or of several runs. End with
 * tp_calls_free in any case. */
tp_status tp_calls_load(tp_calls *out, const tp_journals *journals, uint64_t first_step,
                        uint64_t last_step, tp_error *error);
void tp_calls_free(tp_calls *calls);

const tp_call *tp_calls_at(const tp_calls *calls, uint64_t number);
const tp_call_rank *tp_calls_rank(const tp_calls *calls, uint32_t number);
const char *tp_calls_text(const tp_calls *calls, uint32_t text);

/* From one to another. */
bool tp_call_is_pair(const tp_call *call);

/* Whether a rank is among those of a group's text. */
bool tp_group_has(const char *group, uint32_t rank);

#endif
