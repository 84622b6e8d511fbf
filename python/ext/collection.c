#include "collection.h"

#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "quick_hooks.h"

#define MOST_LINES 20u /* about what is left out */

static void free_collection(collection *own)
{
    if (own != NULL) {
        tp_selection_free(&own->named);
        tp_free(own);
    }
}

void collection_free(monitor_object *monitor)
{
    free_collection(monitor->collection);
    monitor->collection = NULL;
}

/* Copies: the writer's thread uses the patterns of the rules themselves. */
static tp_status name_targets(tp_selection *named, const tp_config *config)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < config->rule_count; i++) {
        count += config->rules[i].selection.targets.count;
    }
    if (count == 0) {
        return TP_OK;
    }
    named->targets.items = tp_calloc(count, sizeof(*named->targets.items));
    named->patterns = tp_calloc(count, sizeof(tp_pattern *));
    tp_status status =
        named->targets.items == NULL || named->patterns == NULL ? TP_ERR_NOMEM : TP_OK;
    for (uint32_t i = 0; i < config->rule_count; i++) {
        const tp_texts *targets = &config->rules[i].selection.targets;
        for (uint32_t k = 0; status == TP_OK && k < targets->count; k++) {
            char message[256];
            char *text = tp_strdup(targets->items[k]);
            if (text == NULL) {
                return TP_ERR_NOMEM;
            }
            const uint32_t place = named->targets.count++;
            named->targets.items[place] = text;
            status = tp_pattern_new(&named->patterns[place], text, message, sizeof(message));
        }
    }
    return status;
}

bool collection_take_config(monitor_object *monitor)
{
    const tp_config *config = tp_monitor_config(monitor->monitor);
    collection *own = NULL;
    if (config->budget.share > 0 || config->budget.ns > 0) {
        own = tp_calloc(1, sizeof(*own));
        if (own == NULL || name_targets(&own->named, config) != TP_OK) {
            free_collection(own);
            PyErr_NoMemory();
            return false;
        }
        tp_budget_init(&own->budget, &config->budget, tp_budget_groups(config));
        own->begin = monitor_now(monitor);
    }
    collection_free(monitor);
    monitor->collection = own;
    monitor->configured = config;
    monitor->config = config;
    tp_monitor_set_left_out(monitor->monitor, 0);
    return true;
}

bool collection_is_named(const monitor_object *monitor, const char *name)
{
    const collection *own = monitor->collection;
    return own != NULL && own->named.targets.count > 0 && tp_selection_has(&own->named, name);
}

/* What each group took, as far as that can be told: of the modules' hooks a gradient takes more
 * than an activation, whose graph is walked; around the optimizer's step each tensor counts. */
static void share_cost(const collection *own, double cost[TP_GROUP_COUNT], double modules_ns,
                       double optimizer_ns)
{
    static const double weights[TP_GROUP_COUNT] = {
        [TP_GROUP_ACTIVATIONS] = 2, [TP_GROUP_ACTIVATION_GRADS] = 3, [TP_GROUP_GRADIENTS] = 1,
        [TP_GROUP_PARAMETERS] = 2,  [TP_GROUP_MOMENTS] = 2,          [TP_GROUP_UPDATES] = 4,
    };
    double sums[2] = {0, 0};
    for (uint32_t group = 0; group < TP_GROUP_COUNT; group++) {
        const bool of_optimizer = group > TP_GROUP_ACTIVATION_GRADS;
        sums[of_optimizer] += (own->budget.groups >> group & 1) != 0 ? weights[group] : 0;
    }
    for (uint32_t group = 0; group < TP_GROUP_COUNT; group++) {
        const bool of_optimizer = group > TP_GROUP_ACTIVATION_GRADS;
        const double whole = of_optimizer ? optimizer_ns : modules_ns;
        const bool counts = (own->budget.groups >> group & 1) != 0;
        cost[group] = counts ? whole * weights[group] / sums[of_optimizer] : 0;
    }
}

static void tell(collection *own, uint64_t step)
{
    const tp_budget *budget = &own->budget;
    const double taken = budget->whole_ns / 1e6;
    const double allowed = tp_budget_allowed_ns(budget) / 1e6;
    char names[TP_QUANTITIES_TEXT];
    if (own->told++ >= MOST_LINES) {
        return;
    }
    tp_quantities_describe(tp_budget_quantities(budget->thinned), names, sizeof(names));
    if (budget->is_too_small) {
        tp_log(TP_LOG_WARNING,
               "step %" PRIu64 ": the budget of %.3g ms a step isn't kept: %.3g ms remain when %s "
               "is left out; the hooks themselves take that, and what rules' targets and "
               "self_check need",
               step, allowed, (budget->thinned == 0 ? budget->whole_ns : budget->lean_ns) / 1e6,
               budget->thinned == 0 ? "nothing" : names);
    } else if (budget->thinned == 0) {
        tp_log(TP_LOG_INFO,
               "step %" PRIu64 ": everything is recorded in every step again: watching takes "
               "%.3g ms of %.3g ms a step, the budget allows %.3g ms",
               step, taken, budget->step_ns / 1e6, allowed);
    } else {
        tp_log(TP_LOG_INFO,
               "step %" PRIu64 ": recorded in one of %" PRIu32 " steps, to keep the budget: %s; "
               "watching everything takes %.3g ms of %.3g ms a step, %.3g ms are allowed",
               step, budget->interval, names, taken, budget->step_ns / 1e6, allowed);
    }
}

/* Which of the steps that are collected the open one is: the same in all processes. */
static uint64_t number_of(const monitor_object *monitor)
{
    const uint64_t step = tp_monitor_step_number(monitor->monitor);
    const uint64_t first = monitor->configured->start_step;
    return step > first ? (step - first) / monitor->configured->step_interval : 0;
}

void collection_end_step(monitor_object *monitor, bool collected, uint64_t own_ns,
                         uint64_t optimizer_ns)
{
    collection *own = monitor->collection;
    const uint64_t now = monitor_now(monitor);
    tp_monitor_counters counters;
    tp_monitor_get_counters(monitor->monitor, &counters);
    const double waited = (double)(counters.wait_ns - own->wait_ns);
    tp_budget_step step = {.left_out = own->left_out,
                           .own_ns = (double)own_ns + waited,
                           .step_ns = (double)(now - own->begin)};
    share_cost(own, step.cost, (double)(own_ns - optimizer_ns), (double)optimizer_ns);
    own->begin = now;
    own->wait_ns = counters.wait_ns;
    if (collected && tp_budget_take(&own->budget, &step)) {
        tell(own, tp_monitor_step_number(monitor->monitor));
    }
    own->left_out = tp_budget_left_out(&own->budget, number_of(monitor));
    own->lean = tp_budget_config_without(monitor->configured, own->left_out);
    monitor->config = own->left_out == 0 ? monitor->configured : &own->lean;
    monitor->quick = quick_is_allowed(monitor);
    tp_monitor_set_left_out(monitor->monitor, tp_budget_quantities(own->left_out));
}
