/* Exploding, Vanishing, LossSpike, VarianceBounds, GradNormSpike: a norm, a logged number or a
 * standard deviation leaves the range of its last values. Judged by their median, and by the median
 * of the distances from it (MAD, which 1.4826 turns into a standard deviation where values are
 * normal: Rousseeuw and Croux 1993), so that a few odd values among them change nothing. Values
 * that alarm stay out, until so many of them came in a row as the window holds: then they are the
 * new normal. */
#include <math.h>
#include <string.h>

#include "rules/rule.h"
#include "rules/window.h"

#define DEVIATION_OF_MAD 1.4826
/* A series that hardly moves is not alarmed by what is small beside its own size. */
#define LEAST_DEVIATION 0.05

static size_t memory(const tp_rule_options *options, uint32_t op_count)
{
    (void)op_count;
    return tp_window_memory(options->window);
}

/* Returns where the range ends. */
typedef double (*bound_of)(const tp_window *window, const tp_rule_options *options);

static double highest(const tp_window *window, const tp_rule_options *options)
{
    double median = tp_window_median(window, options->window);
    double deviation = DEVIATION_OF_MAD * tp_window_deviation(window, options->window);
    double least = LEAST_DEVIATION * fabs(median);
    return median + options->threshold * (deviation > least ? deviation : least);
}

static double by_factor(const tp_window *window, const tp_rule_options *options)
{
    return tp_window_median(window, options->window) * options->threshold;
}

static double lowest(const tp_window *window, const tp_rule_options *options)
{
    return tp_window_median(window, options->window) / options->threshold;
}

static bool judge_bound(const tp_rule_options *options, tp_window *window, double value, int side,
                        bound_of bound, tp_alert *alert)
{
    if (!isfinite(value)) {
        return false; /* AnomalyNan's affair */
    }
    bool fires = window->count > 0 && window->count >= options->min_samples &&
                 (value - bound(window, options)) * side > 0;
    if (fires) {
        alert->op = TP_OP_NORM;
        alert->value = value;
        alert->baseline = tp_window_median(window, options->window);
        alert->threshold = options->threshold;
        alert->samples = window->count;
        window->refused++;
        if (window->refused < options->window) {
            return true;
        }
        memset(window, 0, sizeof *window);
    }
    window->refused = 0;
    tp_window_add(window, options->window, value);
    return fires;
}

/* Nothing has happened: an expert without tokens, a parameter that isn't used. It says nothing of
 * the size that the tensor has otherwise; that it lasts is AllZero's affair. */
static bool is_idle(const tp_judgement *judgement)
{
    return judgement->norm == 0;
}

static bool judge_exploding(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    return !is_idle(judgement) &&
           judge_bound(judgement->options, memory, judgement->norm, 1, highest, alert);
}

static bool judge_vanishing(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    return !is_idle(judgement) &&
           judge_bound(judgement->options, memory, judgement->norm, -1, lowest, alert);
}

/* A number may be negative: it is its value that counts, not its size. */
static bool judge_loss(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    if (!judge_bound(judgement->options, memory, tp_stats_mean(judgement->stats), 1, highest,
                     alert)) {
        return false;
    }
    alert->op = TP_OP_ID;
    return true;
}

/* The standard deviation, on both sides: a tensor that becomes constant keeps its norm. Not of
 * gradients: that of an expert goes up and down with its tokens by more than any factor. */
static bool judge_variance(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    const tp_stats *stats = judgement->stats;
    const double value = tp_stats_std(stats);
    tp_window *window = memory;
    const double usual =
        window->count > 0 ? tp_window_median(window, judgement->options->window) : 0;
    if (stats->count < 2 || !isfinite(value) || (value == 0 && usual == 0)) {
        return false; /* constant as ever, as a norm's weight begins */
    }
    const bool is_low = value < usual;
    return judge_bound(judgement->options, memory, value, is_low ? -1 : 1,
                       is_low ? lowest : by_factor, alert);
}

/* Of a step: the norm of all gradients, and which of them has grown most. */
typedef struct gradient_norm {
    double sum_sq;
    double growth; /* of the square of a norm since the step before */
    uint64_t number;
    uint64_t count;
    tp_window window; /* of the norms: it has the rest of the memory */
} gradient_norm;

static size_t gradient_shared(const tp_rule_options *options)
{
    return sizeof(gradient_norm) + tp_window_memory(options->window);
}

static size_t gradient_memory(const tp_rule_options *options, uint32_t op_count)
{
    (void)options;
    (void)op_count;
    return sizeof(double);
}

static bool add_gradient(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    gradient_norm *all = judgement->shared;
    double *before = memory;
    const double square = judgement->norm * judgement->norm;
    (void)alert;
    if (all->count == 0 || square - *before > all->growth) {
        all->growth = square - *before;
        all->number = judgement->number;
    }
    all->count++;
    all->sum_sq += square;
    *before = isfinite(square) ? square : 0;
    return false;
}

static bool judge_gradients(const tp_rule_options *options, void *shared, tp_alert *alert,
                            uint64_t *number)
{
    gradient_norm *all = shared;
    const double norm = sqrt(all->sum_sq);
    const bool any = all->count > 0;
    *number = all->number;
    all->sum_sq = 0;
    all->count = 0;
    return any && judge_bound(options, &all->window, norm, 1, highest, alert);
}

#define TENSORS (~TP_QUANTITY(TP_SCALAR) & ~TP_QUANTITY(TP_MG_DIRECTION))

const tp_rule tp_rule_exploding = {.rule = TP_RULE_EXPLODING,
                                   .quantities = TENSORS,
                                   .needs_samples = true,
                                   .memory = memory,
                                   .judge = judge_exploding};
const tp_rule tp_rule_vanishing = {.rule = TP_RULE_VANISHING,
                                   .quantities = TENSORS,
                                   .needs_samples = true,
                                   .memory = memory,
                                   .judge = judge_vanishing};
const tp_rule tp_rule_loss_spike = {.rule = TP_RULE_LOSS_SPIKE,
                                    .quantities = TP_QUANTITY(TP_SCALAR),
                                    .needs_samples = true,
                                    .memory = memory,
                                    .judge = judge_loss};
const tp_rule tp_rule_variance = {.rule = TP_RULE_VARIANCE_BOUNDS,
                                  .quantities =
                                      TP_QUANTITY(TP_ACTIVATION) | TP_QUANTITY(TP_PARAM_ORIGIN),
                                  .needs_samples = true,
                                  .memory = memory,
                                  .judge = judge_variance};
const tp_rule tp_rule_gradient_norm = {.rule = TP_RULE_GRAD_NORM_SPIKE,
                                       .quantities = TP_QUANTITY(TP_GRAD_REDUCED),
                                       .needs_samples = true,
                                       .memory = gradient_memory,
                                       .shared = gradient_shared,
                                       .judge = add_gradient,
                                       .finish = judge_gradients};
