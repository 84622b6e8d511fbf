/* Rules about a share that a tensor has reached: DeadUnits, Saturated, UnderflowShare,
 * OverflowShare, MomentumAgainstGradient, and WeightUpdateRatio. */
#include <math.h>
#include <string.h>

#include "rules/rule.h"
#include "rules/window.h"
#include "tensor/dtype.h"

/* What has always been so is how the model is made: a mask, a one-hot input, a gate. */
#define SEEN_OTHERWISE 16U
/* An update is large when it is so many times the usual one, too. */
#define TIMES_USUAL 10
#define LONG_VECTOR 65536

typedef struct lasting {
    uint64_t steps;     /* in a row */
    uint64_t otherwise; /* steps that were different */
} lasting;

static size_t lasting_memory(const tp_rule_options *options, uint32_t op_count)
{
    (void)options;
    (void)op_count;
    return sizeof(lasting);
}

/* A share that is reached, lasts, and was not there before. */
static bool has_become(const tp_judgement *judgement, lasting *last, double share, tp_alert *alert)
{
    const bool reached = share >= judgement->options->threshold;
    last->otherwise += !reached;
    alert->op = TP_OP_ZEROS;
    alert->value = share;
    return tp_rule_lasts(judgement->options, reached && last->otherwise >= SEEN_OTHERWISE,
                         &last->steps, alert);
}

static bool judge_dead(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    const tp_stats *stats = judgement->stats;
    if (stats->count == 0 || judgement->role != TP_ROLE_OUTPUT) {
        return false;
    }
    return has_become(judgement, memory, (double)stats->zeros / (double)stats->count, alert);
}

/* How far the values of a tensor within [0, 1], or within [-1, 1], stand at its ends: 1 when each
 * of them does. From the mean and the mean of squares; of others 0. */
static double saturation_of(const tp_stats *stats)
{
    const double count = (double)stats->count;
    const double squares = ldexp(stats->sum_sq, (int)(2 * stats->sq_exp)) / count;
    if (stats->finite_min >= 0 && stats->finite_max <= 1) {
        return 1 - 4 * (stats->sum / count - squares);
    }
    return stats->finite_min >= -1 && stats->finite_max <= 1 ? squares : 0;
}

static bool judge_saturated(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    const tp_stats *stats = judgement->stats;
    if (stats->count < 2 || judgement->role != TP_ROLE_OUTPUT || !isfinite(judgement->norm)) {
        return false;
    }
    /* All of them 0 is AllZero's affair. */
    const double share = judgement->norm > 0 ? saturation_of(stats) : 0;
    const bool fires = has_become(judgement, memory, share, alert);
    alert->op = TP_OP_NORM;
    return fires;
}

static uint32_t range_of(const tp_judgement *judgement)
{
    return judgement->options->dtype != 0 ? judgement->options->dtype : judgement->dtype;
}

/* Elements whose exponent is below the first one, or from it on. */
static uint64_t elements_beyond(const tp_histogram *exponents, int first, bool below)
{
    uint64_t elements = 0;
    for (uint32_t k = 0; k < exponents->bin_count; k++) {
        const bool is_below = (int)exponents->low + (int)k < first;
        elements += is_below == below ? exponents->bins[k] : 0;
    }
    return elements;
}

/* Of a tensor's own dtype they are counted anyway: they are its subnormal numbers. */
static bool judge_underflow(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    const tp_stats *stats = judgement->stats;
    const uint32_t dtype = range_of(judgement);
    const bool is_own = dtype == judgement->dtype;
    int smallest;
    int largest;
    if (stats->count == 0 || (!is_own && (judgement->exponents == NULL ||
                                          !tp_dtype_exponents(dtype, &smallest, &largest)))) {
        return false;
    }
    const uint64_t below =
        is_own ? stats->subnormal : elements_beyond(judgement->exponents, smallest, true);
    alert->dtype = dtype;
    return has_become(judgement, memory, (double)below / (double)stats->count, alert);
}

/* Finite elements of more than half of the largest number that the dtype has. Where they weren't
 * counted it is known whether there is one. */
static bool judge_overflow(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    const tp_stats *stats = judgement->stats;
    const uint32_t dtype = range_of(judgement);
    int smallest;
    int largest;
    if (stats->count == 0 || !tp_dtype_exponents(dtype, &smallest, &largest)) {
        return false;
    }
    const double extreme = fmax(fabs(stats->finite_min), fabs(stats->finite_max));
    uint64_t above = extreme >= ldexp(1, largest);
    if (above > 0 && judgement->exponents != NULL && largest < -TP_EXPONENT_FIRST) {
        above = elements_beyond(judgement->exponents, largest, false);
    }
    alert->dtype = dtype;
    return has_become(judgement, memory, (double)above / (double)stats->count, alert);
}

static bool judge_momentum(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    lasting *last = memory;
    const double agreement = tp_stats_mean(judgement->stats);
    alert->op = TP_OP_ID;
    alert->value = agreement;
    return tp_rule_lasts(judgement->options, agreement < judgement->options->threshold,
                         &last->steps, alert);
}

typedef struct update_ratio {
    double norm; /* after the step before; 0: there was none, or it was 0 */
    tp_window window;
} update_ratio;

static size_t update_memory(const tp_rule_options *options, uint32_t op_count)
{
    (void)op_count;
    return sizeof(update_ratio) + tp_window_memory(options->window);
}

/* What the norm has changed by is at most what the weights have changed by: a lower bound of the
 * ratio of the update to the weights, from two numbers that are there anyway. */
static bool judge_update(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    const tp_rule_options *options = judgement->options;
    update_ratio *last = memory;
    tp_window *window = &last->window;
    const double before = last->norm;
    const double now = judgement->norm;
    last->norm = isfinite(now) ? now : 0;
    /* A bias, or the like of it, may wander around 0: its norm says little. A long vector is the
     * shard of a matrix. */
    const bool is_bias = judgement->ndim < 2 && judgement->stats->count < LONG_VECTOR;
    if (is_bias || judgement->is_after_gap || !(before > 0) || !isfinite(now)) {
        return false; /* what many steps have changed is no step */
    }
    const double ratio = fabs(now - before) / before;
    const double usual = window->count > 0 ? tp_window_median(window, options->window) : 0;
    const bool fires = window->count >= options->min_samples && window->count > 0 &&
                       ratio > options->threshold && ratio > TIMES_USUAL * usual;
    if (fires) {
        alert->op = TP_OP_NORM;
        alert->value = ratio;
        alert->baseline = usual;
        alert->threshold = options->threshold;
        alert->samples = window->count;
        window->refused++; /* what alarms stays out, until it is the new normal */
        if (window->refused < options->window) {
            return true;
        }
        memset(window, 0, sizeof *window);
    }
    window->refused = 0;
    tp_window_add(window, options->window, ratio);
    return fires;
}

#define ACTIVATIONS TP_QUANTITY(TP_ACTIVATION)
#define GRADIENTS                                                                                  \
    (TP_QUANTITY(TP_ACTIVATION_GRAD) | TP_QUANTITY(TP_GRAD_UNREDUCED) |                            \
     TP_QUANTITY(TP_GRAD_REDUCED))

const tp_rule tp_rule_dead_units = {.rule = TP_RULE_DEAD_UNITS,
                                    .quantities = ACTIVATIONS,
                                    .needs_steps = SEEN_OTHERWISE,
                                    .memory = lasting_memory,
                                    .judge = judge_dead};
const tp_rule tp_rule_saturated = {.rule = TP_RULE_SATURATED,
                                   .quantities = ACTIVATIONS,
                                   .needs_steps = SEEN_OTHERWISE,
                                   .memory = lasting_memory,
                                   .judge = judge_saturated};
const tp_rule tp_rule_underflow = {.rule = TP_RULE_UNDERFLOW_SHARE,
                                   .quantities = ACTIVATIONS | GRADIENTS,
                                   .needs_steps = SEEN_OTHERWISE,
                                   .memory = lasting_memory,
                                   .judge = judge_underflow};
const tp_rule tp_rule_overflow = {.rule = TP_RULE_OVERFLOW_SHARE,
                                  .quantities = ACTIVATIONS | GRADIENTS,
                                  .needs_steps = SEEN_OTHERWISE,
                                  .memory = lasting_memory,
                                  .judge = judge_overflow};
const tp_rule tp_rule_momentum = {.rule = TP_RULE_MOMENTUM_AGAINST_GRADIENT,
                                  .quantities = TP_QUANTITY(TP_MG_DIRECTION),
                                  .memory = lasting_memory,
                                  .judge = judge_momentum};
const tp_rule tp_rule_update_ratio = {.rule = TP_RULE_WEIGHT_UPDATE_RATIO,
                                      .quantities = TP_QUANTITY(TP_PARAM_UPDATED),
                                      .needs_samples = true,
                                      .memory = update_memory,
                                      .judge = judge_update};
