#include "cause/order.h"

#include <stdbool.h>

int32_t tp_stage_of(uint32_t quantity)
{
    switch (quantity) {
    case TP_ACTIVATION:
        return TP_STAGE_FORWARD;
    case TP_ACTIVATION_GRAD:
    case TP_GRAD_UNREDUCED:
    case TP_GRAD_REDUCED:
    case TP_COMM: /* most of them reduce gradients */
        return TP_STAGE_BACKWARD;
    case TP_EXP_AVG:
    case TP_EXP_AVG_SQ:
    case TP_MG_DIRECTION:
        return TP_STAGE_OPTIMIZER;
    case TP_PARAM_UPDATED:
    case TP_SCALAR:
    case TP_ADAM_UPDATE:
    case TP_ADAM_RATIO:
        return TP_STAGE_AFTER;
    default:
        return TP_STAGE_BEFORE;
    }
}

/* Gradients of parameters, moments and what the optimizer makes are there once a step, when its
 * last micro step has added to them; their records don't say so. */
static bool is_of_whole_step(uint32_t quantity)
{
    return quantity == TP_GRAD_UNREDUCED || quantity == TP_GRAD_REDUCED ||
           tp_stage_of(quantity) > TP_STAGE_BACKWARD;
}

tp_moment tp_moment_of(const tp_batch *batch, const tp_record *record, const tp_key *key)
{
    const uint32_t last = batch->micro_steps > 0 ? batch->micro_steps - 1 : 0;
    const int32_t pp_stage = batch->pp_stage;
    return (tp_moment){
        .step = batch->step,
        .micro_step = is_of_whole_step(key->quantity) ? last : record->micro_step,
        .stage = tp_stage_of(key->quantity),
        .vpp_stage = key->vpp_stage,
        .pp_stage = pp_stage > 0 ? pp_stage : 0,
        .order = (int64_t)record->order,
    };
}

static int compare(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

int tp_moment_compare(const tp_moment *a, const tp_moment *b)
{
    int result = (a->step > b->step) - (a->step < b->step);
    if (result == 0) {
        result = (a->micro_step > b->micro_step) - (a->micro_step < b->micro_step);
    }
    if (result == 0) {
        result = compare(a->stage, b->stage);
    }
    const int up = a->stage == TP_STAGE_FORWARD ? 1 : -1;
    if (result == 0) {
        result = up * compare(a->vpp_stage, b->vpp_stage);
    }
    if (result == 0) {
        result = up * compare(a->pp_stage, b->pp_stage);
    }
    return result != 0 ? result : compare(a->order, b->order);
}
