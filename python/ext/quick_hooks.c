#include "quick_hooks.h"

#include "frames.h"
#include "recording.h"
#include "stats/kernels.h"
#include "tensor/walk.h"
#include "tensor_layout.h"
#include "torch_calls.h"

_Static_assert(sizeof(tp_stats) == sizeof(((tp_record *)0)->u), "a slot holds nothing else");

bool quick_is_allowed(const monitor_object *monitor)
{
    const tp_config *config = monitor->config;
    return config->forward_only && !config->backward_only &&
           config->device_path != TP_DEVICE_PATH_TORCH &&
           !reading_wants_exponents(monitor, TP_ACTIVATION);
}

bool quick_is_possible(const module_hook *hook)
{
    const core_state *state = hook->monitor->state;
    return hook->recorded && !hook->root && !hook->filter.by_spec && hook->plain_type != NULL &&
           state->layout.known && state->calls.grad_enabled != NULL &&
           state->calls.graph_task != NULL;
}

/* A tensor whose elements lie side by side: how many there are. 0: it isn't one, or not small. */
static inline size_t small_tensor(const core_state *state, PyObject *value, tp_tensor *data)
{
    if (Py_TYPE(value) != state->tensor_type || !tensor_layout_read(&state->layout, value, data) ||
        data->dtype > TP_BF16) {
        return 0;
    }
    const size_t count = tp_walk_plain(data, READ_AGAIN_BYTES);
    const size_t size = data->dtype == TP_F64 ? 8 : data->dtype == TP_F32 ? 4 : 2;
    return count * size <= READ_AGAIN_BYTES ? count : 0;
}

/* The statistics go straight to where they are to be. */
static inline bool record(module_hook *hook, const frame *running, const tp_tensor *data,
                          size_t count, uint32_t role)
{
    monitor_object *monitor = hook->monitor;
    const site_list *known = &hook->activations[role - TP_ROLE_INPUT];
    site *place = known->count > 0 && known->sites[0].has_key
                      ? &known->sites[0]
                      : module_hook_site(hook, TP_ACTIVATION, role, -1);
    if (place == NULL || (!site_has_shape(place, data->ndim, data->shape) &&
                          !site_define_shape(monitor, place, data->ndim, data->shape))) {
        return false;
    }
    tp_record *slot = tp_step_take(monitor->step, place->key, monitor->clock.last);
    if (slot == NULL) {
        return false;
    }
    slot->micro_step = running->micro_step;
    slot->call = running->call;
    slot->kind = TP_RECORD_STATS;
    slot->dtype = data->dtype;
    slot->shape = place->shape;
    tp_stats *stats = &slot->u.stats;
    tp_stats_small(data->data, data->dtype, count, monitor->eps, stats);
    if ((stats->nan | stats->pos_inf | stats->neg_inf) != 0) {
        tp_step_add_element(monitor->step, slot, data);
    }
    tp_step_give(slot);
    return true;
}

int quick_before(module_hook *hook, PyObject *const *args)
{
    monitor_object *monitor = hook->monitor;
    const core_state *state = monitor->state;
    const Py_ssize_t inputs = PyTuple_Size(args[1]);
    tp_tensor data;
    size_t count = 0;
    if (!monitor->quick || !hook->quick || monitor->step == NULL || inputs > 1 ||
        PyDict_Size(args[2]) > 0 || Py_TYPE(args[0]) != hook->plain_type ||
        (inputs == 1 && (count = small_tensor(state, PyTuple_GetItem(args[1], 0), &data)) == 0)) {
        return 0;
    }
    const frame *around = monitor_newest_frame(monitor);
    if ((around != NULL && around->graph_task >= 0) || !state->calls.grad_enabled() ||
        state->calls.graph_task() != -1) {
        return 0;
    }
    const int training = torch_is_training(state, args[0], true);
    if (training != 1) {
        core_clear_error();
        return 0;
    }
    const stopwatch watch = stopwatch_start(monitor, true, STOPWATCH_BEFORE, inputs == 1);
    frame *running = monitor_new_frame(monitor, hook, hook->vpp_stage, around);
    if (running == NULL) {
        return -1;
    }
    running->module = args[0];
    running->training = true;
    running->values = true;
    module_hook_number_call(hook, running);
    const bool ok = inputs == 0 || record(hook, running, &data, count, TP_ROLE_INPUT);
    running->values = ok;
    if (!monitor_push_frame(monitor, running)) {
        return -1;
    }
    stopwatch_stop(monitor, &watch);
    return ok ? 1 : -1;
}

int quick_after(module_hook *hook, const frame *running, PyObject *output)
{
    monitor_object *monitor = hook->monitor;
    tp_tensor data;
    size_t count;
    if (!monitor->quick || !hook->quick || monitor->step == NULL || !running->values ||
        running->gradients || (count = small_tensor(monitor->state, output, &data)) == 0) {
        return 0;
    }
    const stopwatch watch = stopwatch_start(monitor, true, STOPWATCH_AFTER, true);
    const bool ok = record(hook, running, &data, count, TP_ROLE_OUTPUT);
    stopwatch_stop(monitor, &watch);
    return ok ? 1 : -1;
}
