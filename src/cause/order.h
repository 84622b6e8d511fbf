/* The order in which a step computes: what comes earlier in it can be the reason for what comes
 * later, and not the other way round. */
#ifndef TP_CAUSE_ORDER_H
#define TP_CAUSE_ORDER_H

#include "tensorprobe/record.h"

/* Parts of a step. Weights as the optimizer's entry finds them are those of the forward. */
#define TP_STAGE_BEFORE (-1)
#define TP_STAGE_FORWARD 0
#define TP_STAGE_BACKWARD 1
#define TP_STAGE_OPTIMIZER 2
#define TP_STAGE_AFTER 3

int32_t tp_stage_of(uint32_t quantity);

/* Where something stands in a step of all ranks. */
typedef struct tp_moment {
    uint64_t step;
    uint64_t micro_step;
    int32_t stage;
    int32_t vpp_stage;
    int32_t pp_stage;
    int64_t order; /* in its rank */
} tp_moment;

/* The moment of a record of the batch. */
tp_moment tp_moment_of(const tp_batch *batch, const tp_record *record, const tp_key *key);

/* Less than, equal to or greater than 0 as a comes before b, with it, or after it: by step, micro
 * step and stage; then data goes up the virtual and the pipeline stages in the forward, and down
 * again afterwards; then by the order in the rank. */
int tp_moment_compare(const tp_moment *a, const tp_moment *b);

#endif
