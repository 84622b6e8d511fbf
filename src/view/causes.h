/* The incidents of a run: what its ranks' journals tell, put together. */
#ifndef TP_VIEW_CAUSES_H
#define TP_VIEW_CAUSES_H

#include "cause/ranks.h"
#include "view/run.h"

/* An incident of a rank, as it is now. */
typedef struct tp_view_incident {
    uint32_t rank;
    uint32_t journal; /* of the rank's */
    uint32_t attempt;
    uint32_t key;     /* series of the producer */
    uint32_t witness; /* TP_VIEW_NO_KEY: none */
    tp_moment moment;
    tp_record record; /* the last one of it */
    uint64_t alerts;  /* that were read */
    uint64_t in_first;
    uint64_t steps;
    uint64_t last_step;
    tp_buf series; /* bits of those that have an alert */
    char *text;    /* as the console has it */
} tp_view_incident;

/* Takes in alerts and incidents behind the last batch of the rank. A journal without incidents (as
 * older ones are) gets them from its alerts. */
tp_status tp_view_take_alerts(tp_view_run *run, tp_view_rank *rank, const tp_batch *batch);
void tp_view_incidents_free(tp_view_rank *rank);

/* Kinds of causes, as pages call them. */
#define TP_VIEW_NONFINITE 0
#define TP_VIEW_RANGE 1
#define TP_VIEW_STILL 2
#define TP_VIEW_STALLED 3

/* What went wrong in a run: the incidents of its ranks that have one cause. */
typedef struct tp_view_cause {
    uint32_t kind;
    uint32_t first_part; /* of the parts; the first one has the producer */
    uint32_t part_count;
    uint64_t last_step;
    uint64_t steps; /* of the rank that has most */
    uint64_t alerts;
    uint64_t in_first; /* alerts in the first step of each rank */
    uint64_t series;
    bool open;
} tp_view_cause;

typedef struct tp_view_causes {
    tp_buf causes; /* tp_view_cause, in the order of their beginnings */
    tp_buf parts;  /* const tp_view_incident *, by their causes */
} tp_view_causes;

/* With the lock held. TP_ERR_NOMEM. End with tp_view_causes_free in any case. */
tp_status tp_view_causes_find(const tp_view_run *run, tp_view_causes *out);
void tp_view_causes_free(tp_view_causes *causes);

uint32_t tp_view_cause_count(const tp_view_causes *causes);
const tp_view_cause *tp_view_cause_at(const tp_view_causes *causes, uint32_t index);
const tp_view_incident *tp_view_part_at(const tp_view_causes *causes, uint32_t index);

#endif
