#include "monitor/budget.h"

#include <string.h>

#define UNTYPICAL 3u    /* first steps: they make what later ones find */
#define ENOUGH 4u       /* steps of a kind, before they are believed */
#define WEIGHT 0.25     /* of a new value in a moving mean */
#define LONGEST 4.0     /* times the mean that a step counts for at most */
#define LAST_RESORT 64u /* a larger interval leaves out the gradients, too */

static const uint32_t quantities[TP_GROUP_COUNT] = {
    [TP_GROUP_ACTIVATIONS] = 1u << TP_ACTIVATION,
    [TP_GROUP_ACTIVATION_GRADS] = 1u << TP_ACTIVATION_GRAD,
    [TP_GROUP_GRADIENTS] = 1u << TP_GRAD_UNREDUCED | 1u << TP_GRAD_REDUCED,
    [TP_GROUP_PARAMETERS] = 1u << TP_PARAM_ORIGIN | 1u << TP_PARAM_UPDATED,
    [TP_GROUP_MOMENTS] = 1u << TP_EXP_AVG | 1u << TP_EXP_AVG_SQ,
    [TP_GROUP_UPDATES] = 1u << TP_ADAM_UPDATE | 1u << TP_ADAM_RATIO | 1u << TP_MG_DIRECTION,
};

static bool has(uint32_t groups, uint32_t group)
{
    return (groups >> group & 1) != 0;
}

uint32_t tp_budget_quantities(uint32_t groups)
{
    uint32_t bits = 0;
    for (uint32_t group = 0; group < TP_GROUP_COUNT; group++) {
        bits |= has(groups, group) ? quantities[group] : 0;
    }
    return bits;
}

tp_config tp_budget_config_without(const tp_config *config, uint32_t groups)
{
    tp_config lean = *config;
    lean.backward_only |= has(groups, TP_GROUP_ACTIVATIONS);
    lean.forward_only |= has(groups, TP_GROUP_ACTIVATION_GRADS);
    lean.wg_distribution &= !has(groups, TP_GROUP_GRADIENTS);
    lean.param_distribution &= !has(groups, TP_GROUP_PARAMETERS);
    lean.mv_distribution &= !has(groups, TP_GROUP_MOMENTS);
    lean.ur_distribution &= !has(groups, TP_GROUP_UPDATES);
    lean.mg_direction &= !has(groups, TP_GROUP_UPDATES);
    return lean;
}

uint32_t tp_budget_groups(const tp_config *config)
{
    const bool recorded[TP_GROUP_COUNT] = {
        [TP_GROUP_ACTIVATIONS] = config->xy_distribution && !config->backward_only,
        [TP_GROUP_ACTIVATION_GRADS] = config->xy_distribution && !config->forward_only,
        [TP_GROUP_GRADIENTS] = config->wg_distribution && !config->self_check,
        [TP_GROUP_PARAMETERS] = config->param_distribution,
        [TP_GROUP_MOMENTS] = config->mv_distribution,
        [TP_GROUP_UPDATES] = config->ur_distribution || config->mg_direction,
    };
    uint32_t groups = 0;
    for (uint32_t group = 0; group < TP_GROUP_COUNT; group++) {
        groups |= recorded[group] ? 1u << group : 0;
    }
    return groups;
}

void tp_budget_init(tp_budget *budget, const tp_budget_config *limit, uint32_t groups)
{
    memset(budget, 0, sizeof *budget);
    budget->limit = *limit;
    budget->groups = groups;
    budget->interval = 1;
}

double tp_budget_allowed_ns(const tp_budget *budget)
{
    return budget->limit.share > 0 ? budget->limit.share * budget->step_ns : budget->limit.ns;
}

uint32_t tp_budget_left_out(const tp_budget *budget, uint64_t number)
{
    return number % budget->interval == 0 ? 0 : budget->thinned;
}

static void mean_of(double *mean, double value, bool is_first)
{
    *mean = is_first ? value : *mean + WEIGHT * (value - *mean);
}

/* The costliest group that isn't thinned yet, the gradients last; TP_GROUP_COUNT: there is none. */
static uint32_t next_group(const tp_budget *budget, bool gradients)
{
    uint32_t best = TP_GROUP_COUNT;
    for (uint32_t group = 0; group < TP_GROUP_COUNT; group++) {
        const bool candidate =
            has(budget->groups & ~budget->thinned, group) && group != TP_GROUP_GRADIENTS;
        if (candidate && (best == TP_GROUP_COUNT || budget->cost[group] > budget->cost[best])) {
            best = group;
        }
    }
    if (best == TP_GROUP_COUNT && gradients &&
        has(budget->groups & ~budget->thinned, TP_GROUP_GRADIENTS)) {
        best = TP_GROUP_GRADIENTS;
    }
    return best;
}

/* Leaves groups out until the rest is a half of what is allowed, so that there is room for steps
 * that record everything. False: there is no other group. */
static bool thin(tp_budget *budget, double rest, double allowed, bool gradients)
{
    const uint32_t before = budget->thinned;
    uint32_t group;
    while (rest > allowed / 2 && (group = next_group(budget, gradients)) != TP_GROUP_COUNT) {
        budget->thinned |= 1u << group;
        rest -= budget->cost[group];
    }
    if (budget->thinned == before) {
        return false;
    }
    budget->lean_seen = 0;
    return true;
}

/* One of how many steps may record everything. */
static uint32_t interval_for(const tp_budget *budget, double allowed)
{
    const double room = allowed - budget->lean_ns;
    const double more = budget->whole_ns - budget->lean_ns;
    uint32_t interval = 2;
    if (!(room > 0)) {
        return TP_BUDGET_MAX_INTERVAL;
    }
    while (interval < TP_BUDGET_MAX_INTERVAL && more > room * interval) {
        interval *= 2;
    }
    return interval;
}

static bool decide(tp_budget *budget)
{
    const double allowed = tp_budget_allowed_ns(budget);
    const uint32_t earlier = budget->interval;
    if (budget->thinned == 0) {
        const bool only_gradients = budget->groups == 1u << TP_GROUP_GRADIENTS;
        if (budget->whole_ns <= allowed ||
            !thin(budget, budget->whole_ns, allowed, only_gradients)) {
            const bool told = budget->is_too_small;
            budget->is_too_small = budget->whole_ns > allowed && budget->groups == 0;
            return budget->is_too_small && !told;
        }
        budget->interval = 4; /* until lean steps have been seen */
        return true;
    }
    if (budget->whole_ns <= 0.7 * allowed) {
        budget->thinned = 0;
        budget->interval = 1;
        budget->is_too_small = false;
        return true;
    }
    if (budget->lean_seen < ENOUGH) {
        return false;
    }
    const uint32_t interval = interval_for(budget, allowed);
    const bool nothing_else = next_group(budget, false) == TP_GROUP_COUNT;
    if (thin(budget, budget->lean_ns, allowed, nothing_else && interval > LAST_RESORT)) {
        return true;
    }
    const bool is_too_small = budget->lean_ns >= allowed;
    const bool told = budget->is_too_small;
    budget->is_too_small = is_too_small;
    if (interval > earlier || interval * 4 <= earlier) {
        budget->interval = interval;
    }
    return budget->interval != earlier || (is_too_small && !told);
}

bool tp_budget_take(tp_budget *budget, const tp_budget_step *step)
{
    if (++budget->seen <= UNTYPICAL) {
        return false;
    }
    /* A pause between two steps, as for a checkpoint, is no reason to record more. */
    const double most = LONGEST * budget->step_ns;
    const bool is_first = budget->seen == UNTYPICAL + 1;
    mean_of(&budget->step_ns, is_first || step->step_ns < most ? step->step_ns : most, is_first);
    if (step->left_out == 0) {
        for (uint32_t group = 0; group < TP_GROUP_COUNT; group++) {
            mean_of(&budget->cost[group], step->cost[group], budget->whole_seen == 0);
        }
        mean_of(&budget->whole_ns, step->own_ns, budget->whole_seen++ == 0);
    } else if (step->left_out == budget->thinned) {
        mean_of(&budget->lean_ns, step->own_ns, budget->lean_seen++ == 0);
    }
    return budget->whole_seen >= ENOUGH && decide(budget);
}
