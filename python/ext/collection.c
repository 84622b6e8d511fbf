#include "collection.h"

#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "quick_hooks.h"

#define MOST_LINES 20u /* about what is left out */
#define MOST_ZOOMS 16u /* of a monitor: a run that never gets well would fill the disk */
#define STEPS_BETWEEN_ZOOMS 100u

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
    if (config->budget.share > 0 || config->budget.ns > 0 || config->zoom.steps > 0) {
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
    monitor->eps = config->eps;
    monitor->quick = quick_is_allowed(monitor);
    tp_monitor_set_left_out(monitor->monitor, 0);
    tp_monitor_set_zoom(monitor->monitor, 0);
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

/* Leaves out of the open step what the budget doesn't allow. */
static void use_budget(monitor_object *monitor, collection *own)
{
    own->left_out = tp_budget_left_out(&own->budget, number_of(monitor));
    own->lean = tp_budget_config_without(monitor->configured, own->left_out);
    monitor->config = own->left_out == 0 ? monitor->configured : &own->lean;
    tp_monitor_set_left_out(monitor->monitor, tp_budget_quantities(own->left_out));
}

/* ---- More than is configured ---- */

static PyObject *describe_key(const monitor_object *monitor, uint32_t id)
{
    const tp_key *key = tp_registry_key(tp_monitor_registry(monitor->monitor), id);
    return key == NULL ? Py_NewRef(Py_None)
                       : Py_BuildValue("(sIIii)", key->name, key->quantity, key->role, key->slot,
                                       key->vpp_stage);
}

static PyObject *describe_incident(const monitor_object *monitor, const tp_record *record)
{
    const tp_incident *incident = &record->u.incident;
    PyObject *producer = describe_key(monitor, record->key);
    PyObject *witness = describe_key(monitor, incident->witness);
    if (producer == NULL || witness == NULL) {
        Py_XDECREF(producer);
        Py_XDECREF(witness);
        return NULL;
    }
    return Py_BuildValue("{s:I,s:K,s:(NN)}", "number", incident->number, "step",
                         (unsigned long long)incident->first_step, "tensors", producer, witness);
}

/* Steals what. An error may be set afterwards. */
static void tell_session(const monitor_object *monitor, PyObject *what)
{
    if (what != NULL && monitor->on_zoom != NULL && !PyErr_Occurred()) {
        PyObject *callable = Py_NewRef(monitor->on_zoom);
        Py_XDECREF(PyObject_CallFunctionObjArgs(callable, what, NULL));
        Py_DECREF(callable);
    }
    Py_XDECREF(what);
}

static void begin_zoom(monitor_object *monitor, collection *own, const tp_record *record,
                       uint64_t records)
{
    const tp_config *config = tp_monitor_config(monitor->monitor);
    const uint64_t step = tp_monitor_step_number(monitor->monitor);
    own->incident = record->u.incident.number;
    own->zooms++;
    own->steps_left = config->zoom.steps;
    own->records = records;
    own->spent = 0;
    own->left_out = 0;
    own->wide = tp_config_with_everything(config);
    own->follows_inputs = monitor->follows_inputs;
    monitor->configured = monitor->config = &own->wide;
    tp_monitor_set_left_out(monitor->monitor, 0);
    tp_monitor_set_zoom(monitor->monitor, own->incident);
    tp_log(TP_LOG_INFO,
           "step %" PRIu64 ": because of incident %" PRIu32 " every module and parameter is "
           "recorded for %" PRIu64 " step%s",
           step, own->incident, own->steps_left, own->steps_left > 1 ? "s" : "");
    tell_session(monitor, describe_incident(monitor, record));
}

static void end_zoom(monitor_object *monitor, collection *own, bool is_full)
{
    monitor->configured = monitor->config = tp_monitor_config(monitor->monitor);
    monitor->follows_inputs = own->follows_inputs;
    tp_monitor_set_zoom(monitor->monitor, 0);
    tp_log(TP_LOG_INFO, "step %" PRIu64 ": what is configured is recorded again%s",
           tp_monitor_step_number(monitor->monitor), is_full ? ": zoom.bytes are used up" : "");
    own->incident = 0;
    own->steps_quiet = STEPS_BETWEEN_ZOOMS;
    tell_session(monitor, Py_NewRef(Py_None));
}

static uint64_t used_bytes(const collection *own, uint64_t records)
{
    return own->spent + (records - own->records) * sizeof(tp_record);
}

/* A step has ended in which more was collected. */
static void go_on(monitor_object *monitor, collection *own, uint64_t records)
{
    const uint64_t step = tp_monitor_step_number(monitor->monitor);
    tell_session(monitor, PyLong_FromUnsignedLongLong(step - 1));
    if (monitor->collection != own || own->incident == 0) {
        return; /* the configuration was changed */
    }
    const bool is_full = used_bytes(own, records) >= monitor->configured->zoom.bytes;
    own->steps_left--;
    if (own->steps_left == 0 || is_full) {
        end_zoom(monitor, own, is_full && own->steps_left > 0);
    }
}

/* True: more than is configured is collected in the step that is open now. */
static bool zoom(monitor_object *monitor, collection *own, uint64_t records)
{
    tp_record incident;
    if (own->incident != 0) {
        go_on(monitor, own, records);
        return monitor->collection == own && own->incident != 0;
    }
    own->steps_quiet -= own->steps_quiet > 0;
    if (monitor->configured->zoom.steps == 0 ||
        !tp_monitor_take_incident(monitor->monitor, &incident) || own->steps_quiet > 0 ||
        own->zooms >= MOST_ZOOMS || tp_monitor_is_done(monitor->monitor)) {
        return false;
    }
    begin_zoom(monitor, own, &incident, records);
    return monitor->collection == own && own->incident != 0;
}

PyObject *collection_get_on_zoom(PyObject *monitor, void *Py_UNUSED(closure))
{
    PyObject *callable = ((monitor_object *)monitor)->on_zoom;
    return Py_NewRef(callable == NULL ? Py_None : callable);
}

int collection_set_on_zoom(PyObject *monitor, PyObject *callable, void *Py_UNUSED(closure))
{
    PyObject **place = &((monitor_object *)monitor)->on_zoom;
    PyObject *earlier = *place;
    *place = callable == NULL || callable == Py_None ? NULL : Py_NewRef(callable);
    Py_XDECREF(earlier);
    return 0;
}

PyObject *collection_spend(PyObject *object, PyObject *bytes)
{
    const monitor_object *monitor = (monitor_object *)object;
    collection *own = monitor->collection;
    const unsigned long long wanted = PyLong_AsUnsignedLongLong(bytes);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (own == NULL || own->incident == 0 || !monitor_is_active(monitor)) {
        Py_RETURN_FALSE;
    }
    tp_monitor_counters counters;
    tp_monitor_get_counters(monitor->monitor, &counters);
    const uint64_t used = used_bytes(own, counters.records);
    const uint64_t most = monitor->configured->zoom.bytes;
    if (used > most || wanted > most - used) {
        Py_RETURN_FALSE;
    }
    own->spent += wanted;
    Py_RETURN_TRUE;
}

void collection_end_step(monitor_object *monitor, bool collected, uint64_t own_ns,
                         uint64_t optimizer_ns)
{
    collection *own = monitor->collection;
    const uint64_t now = monitor_now(monitor);
    const bool was_wide = own->incident != 0;
    tp_monitor_counters counters;
    tp_monitor_get_counters(monitor->monitor, &counters);
    const double waited = (double)(counters.wait_ns - own->wait_ns);
    tp_budget_step step = {.left_out = own->left_out,
                           .own_ns = (double)own_ns + waited,
                           .step_ns = (double)(now - own->begin)};
    const bool has_budget = own->budget.limit.share > 0 || own->budget.limit.ns > 0;
    share_cost(own, step.cost, (double)(own_ns - optimizer_ns), (double)optimizer_ns);
    own->begin = now;
    own->wait_ns = counters.wait_ns;
    if (has_budget && collected && !was_wide && tp_budget_take(&own->budget, &step)) {
        tell(own, tp_monitor_step_number(monitor->monitor));
    }
    if (!zoom(monitor, own, counters.records) && monitor->collection == own && has_budget) {
        use_budget(monitor, own);
    }
    if (monitor_is_active(monitor)) {
        monitor->quick = quick_is_allowed(monitor);
    }
}
