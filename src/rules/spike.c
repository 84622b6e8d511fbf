/* Exploding, Vanishing, LossSpike: the norm of a tensor, or a logged number, leaves the range of
 * its last values. Judged by their median, and by the median of the distances from it (MAD, which
 * 1.4826 turns into a standard deviation where values are normal: Rousseeuw and Croux 1993), so
 * that a few odd values among them change nothing. Values that alarm stay out, until so many of
 * them came in a row as the window holds: then they are the new normal. */
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

static bool judge_exploding(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    return judgement->quantity != TP_SCALAR &&
           judge_bound(judgement->options, memory, tp_stats_norm(judgement->stats), 1, highest,
                       alert);
}

static bool judge_vanishing(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    return judgement->quantity != TP_SCALAR &&
           judge_bound(judgement->options, memory, tp_stats_norm(judgement->stats), -1, lowest,
                       alert);
}

/* A number may be negative: it is its value that counts, not its size. */
static bool judge_loss(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    if (judgement->quantity != TP_SCALAR ||
        !judge_bound(judgement->options, memory, tp_stats_mean(judgement->stats), 1, highest,
                     alert)) {
        return false;
    }
    alert->op = TP_OP_ID;
    return true;
}

const tp_rule tp_rule_exploding = {
    .rule = TP_RULE_EXPLODING, .memory = memory, .judge = judge_exploding};
const tp_rule tp_rule_vanishing = {
    .rule = TP_RULE_VANISHING, .memory = memory, .judge = judge_vanishing};
const tp_rule tp_rule_loss_spike = {
    .rule = TP_RULE_LOSS_SPIKE, .memory = memory, .judge = judge_loss};
