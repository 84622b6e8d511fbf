#include "compiled_hooks.h"

#include "frames.h"
#include "recording.h"
#include "torch_calls.h"

/* No memo: compiled code reuses memory without a new version. */
static bool record(module_hook *hook, PyObject *tensor, uint32_t quantity, uint32_t role,
                   int32_t slot, uint32_t micro_step, uint32_t call)
{
    const tp_config *config = hook->named ? hook->monitor->configured : hook->monitor->config;
    tensor_view view;
    if (quantity == TP_ACTIVATION ? config->backward_only : config->forward_only) {
        return true; /* this step leaves it out */
    }
    if (!tensor_view_open_any(hook->monitor->state, tensor, &view)) {
        return true;
    }
    reading values;
    const int result = reading_take(hook->monitor, &view, false, quantity, hook->name, &values);
    bool ok = result != READ_FAILED;
    if (result == READ_OK) {
        site *place = module_hook_site(hook, quantity, role, slot);
        ok = place != NULL && reading_record(hook->monitor, &values, place, micro_step, call);
    }
    tensor_view_close(&view);
    return ok;
}

/* Is this the name of a tensor's argument? names: NULL: there are none. */
static bool has_keyword(PyObject *names, Py_ssize_t i, PyObject *keyword)
{
    return i >= 0 && i < PyList_Size(names) &&
           PyUnicode_Compare(PyList_GetItem(names, i), keyword) == 0;
}

static bool slot_of(module_hook *hook, PyObject *names, Py_ssize_t i, Py_ssize_t count,
                    int32_t *slot)
{
    PyObject *keyword = names == NULL || i >= PyList_Size(names) ? NULL : PyList_GetItem(names, i);
    if (keyword == NULL || PyUnicode_GetLength(keyword) <= 0) {
        *slot = count == 1 ? -1 : (int32_t)i;
        return true;
    }
    Py_ssize_t first = i;
    while (has_keyword(names, first - 1, keyword)) {
        first--;
    }
    const bool is_only = first == i && !has_keyword(names, i + 1, keyword);
    return module_hook_keyword_slot(hook, keyword, is_only ? -1 : (int32_t)(i - first), slot);
}

static bool record_list(module_hook *hook, PyObject *tensors, PyObject *names, uint32_t role,
                        const frame *running)
{
    const Py_ssize_t count = PyList_Size(tensors);
    for (Py_ssize_t i = 0; i < count; i++) {
        int32_t slot;
        if (!slot_of(hook, names, i, count, &slot) ||
            !record(hook, PyList_GetItem(tensors, i), TP_ACTIVATION, role, slot,
                    running->micro_step, running->call)) {
            return false;
        }
    }
    return count >= 0;
}

#define UNKNOWN_CALL UINT32_MAX

static PyObject *ticket(const module_hook *hook, uint32_t micro_step, uint32_t call)
{
    return Py_BuildValue("KII", (unsigned long long)hook->monitor->steps_ended, micro_step, call);
}

static PyObject *no_ticket(void)
{
    return Py_BuildValue("KII", 0ULL, 0U, UNKNOWN_CALL);
}

static void note_call(module_hook *hook, const frame *running)
{
    compiled_calls *calls = &hook->compiled;
    if (calls->step != hook->monitor->steps_ended) {
        calls->step = hook->monitor->steps_ended;
        calls->outstanding = 0;
    }
    calls->known = calls->outstanding == 0;
    calls->outstanding += running->graph_task == -1;
    calls->micro_step = running->micro_step;
    calls->call = running->call;
}

static PyObject *begin(module_hook *hook, PyObject *tensors, PyObject *names, int64_t task)
{
    monitor_object *monitor = hook->monitor;
    bool ok = true;
    if (hook->root && task == -1) {
        /* An exception in the graph ended the one before. */
        for (frame *old = NULL; (old = monitor_pop_frame(monitor, hook)) != NULL;) {
            monitor_free_frame(monitor, old);
        }
        PyObject *module = Py_NewRef(PyWeakref_GetObject(hook->module));
        ok = module_hook_begin_root(hook, module, FORWARD_WHOLE, -1);
        Py_DECREF(module);
    }
    frame *running = monitor_new_frame(monitor, hook, hook->vpp_stage,
                                       hook->root ? NULL : monitor_newest_frame(monitor));
    if (running == NULL) {
        return NULL;
    }
    module_hook_number_call(hook, running);
    running->training = true;
    running->graph_task = task;
    note_call(hook, running);
    running->values = ok && record_list(hook, tensors, names, TP_ROLE_INPUT, running);
    PyObject *made = running->values ? ticket(hook, running->micro_step, running->call) : NULL;
    /* Pushed whatever happened: the end takes the newest frame of its module. */
    if (!monitor_push_frame(monitor, running)) {
        Py_CLEAR(made);
    }
    return made;
}

static PyObject *end(module_hook *hook, PyObject *tensors, frame *running)
{
    const bool ok = !running->values || record_list(hook, tensors, NULL, TP_ROLE_OUTPUT, running);
    PyObject *made = ok ? ticket(hook, running->micro_step, running->call) : NULL;
    monitor_free_frame(hook->monitor, running);
    return made;
}

/* In a backward a part that is checkpointed around the graph is computed again. What it records is
 * there already, unless its first forward made no graph. The gradients that follow belong to the
 * call that is computed again, where it is known which that is. */
static PyObject *run_again(module_hook *hook, PyObject *tensors, PyObject *names, int64_t task)
{
    compiled_calls *calls = &hook->compiled;
    if (*module_hook_calls(hook, hook->monitor->forward) == 0) {
        return begin(hook, tensors, names, task);
    }
    calls->known = calls->known && calls->outstanding == 1;
    calls->outstanding = 0;
    return calls->known ? ticket(hook, calls->micro_step, calls->call) : no_ticket();
}

/* Of a part that is checkpointed within the graph, when its outputs are computed: once, in the
 * forward or, as a rule, in the backward. */
static PyObject *take_outputs(module_hook *hook, PyObject *tensors)
{
    frame *running = monitor_new_frame(hook->monitor, hook, hook->vpp_stage,
                                       hook->root ? NULL : monitor_newest_frame(hook->monitor));
    if (running == NULL) {
        return NULL;
    }
    module_hook_number_call(hook, running);
    PyObject *made = record_list(hook, tensors, NULL, TP_ROLE_OUTPUT, running)
                         ? ticket(hook, running->micro_step, running->call)
                         : NULL;
    monitor_free_frame(hook->monitor, running);
    return made;
}

static PyObject *take_side(module_hook *hook, PyObject *const *args)
{
    const long side = PyLong_AsLong(args[1]);
    const int64_t task = PyErr_Occurred() ? -1 : torch_graph_task(hook->monitor->state);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (side == 0) {
        return task == -1 ? begin(hook, args[0], args[2], task)
                          : run_again(hook, args[0], args[2], task);
    }
    if (side == 2) {
        return take_outputs(hook, args[0]);
    }
    frame *running = monitor_pop_frame(hook->monitor, hook);
    if (running != NULL) {
        return end(hook, args[0], running);
    }
    const compiled_calls *calls = &hook->compiled;
    return task != -1 && calls->known ? ticket(hook, calls->micro_step, calls->call) : no_ticket();
}

PyObject *compiled_forward(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    module_hook *hook = (module_hook *)self;
    monitor_object *monitor = hook->monitor;
    if (count != 3 || monitor == NULL || !monitor_is_collecting(monitor)) {
        return no_ticket();
    }
    const uint64_t start = monitor_now(monitor);
    PyObject *made = take_side(hook, args);
    if (made == NULL) {
        PyObject *done = monitor_trouble(monitor, hook->name);
        made = done == NULL ? NULL : no_ticket();
        Py_XDECREF(done);
    }
    monitor_add_time(monitor, start);
    return made;
}

static bool take_gradient(module_hook *hook, PyObject *const *args)
{
    const long side = PyLong_AsLong(args[1]);
    const long which = PyLong_AsLong(args[2]);
    const unsigned long long step = PyLong_AsUnsignedLongLong(args[4]);
    const unsigned long micro_step = PyLong_AsUnsignedLong(args[5]);
    const unsigned long call = PyLong_AsUnsignedLong(args[6]);
    int32_t slot = (int32_t)which;
    if (PyErr_Occurred() || (PyUnicode_GetLength(args[3]) != 0 &&
                             !module_hook_keyword_slot(hook, args[3], (int32_t)which, &slot))) {
        return false;
    }
    /* A leaf keeps the hook that an earlier step's forward has left on it. */
    const bool left_over = side == 0 && step != hook->monitor->steps_ended;
    return left_over || call == UNKNOWN_CALL ||
           record(hook, args[0], TP_ACTIVATION_GRAD, side == 0 ? TP_ROLE_INPUT : TP_ROLE_OUTPUT,
                  slot, (uint32_t)micro_step, (uint32_t)call);
}

PyObject *compiled_backward(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    module_hook *hook = (module_hook *)self;
    monitor_object *monitor = hook->monitor;
    if (count != 7 || monitor == NULL || !monitor_is_collecting(monitor)) {
        Py_RETURN_NONE;
    }
    const uint64_t start = monitor_now(monitor);
    PyObject *result =
        take_gradient(hook, args) ? Py_NewRef(Py_None) : monitor_trouble(monitor, hook->name);
    monitor_add_time(monitor, start);
    return result;
}

PyObject *compiled_sides(PyObject *self, void *Py_UNUSED(closure))
{
    const module_hook *hook = (const module_hook *)self;
    const bool active = hook->monitor != NULL && monitor_is_active(hook->monitor) && hook->recorded;
    PyObject *sides = PyTuple_New(SIDES + 1);
    for (int side = 0; sides != NULL && side < SIDES; side++) {
        const tp_side_spec *spec = &hook->filter.specs[side];
        const bool gradient = side == SIDE_INPUT_GRAD || side == SIDE_OUTPUT_GRAD;
        const bool wanted = active && (gradient ? !hook->monitor->configured->forward_only
                                                : !hook->monitor->configured->backward_only);
        PyObject *one = !wanted                 ? Py_NewRef(Py_None)
                        : !hook->filter.by_spec ? PyTuple_New(0)
                        : !spec->given          ? Py_NewRef(Py_None)
                        : spec->keyword != NULL ? PyUnicode_FromString(spec->keyword)
                        : !spec->tuple          ? Py_BuildValue("(II)", 0U, 0U)
                                                : Py_BuildValue("(II)", spec->length, spec->index);
        if (one == NULL || PyTuple_SetItem(sides, side, one) != 0) {
            Py_CLEAR(sides);
        }
    }
    if (sides != NULL) {
        PyTuple_SetItem(sides, SIDES, PyBool_FromLong(hook->filter.integers));
    }
    return sides;
}

bool compiled_is_exporting(monitor_object *monitor)
{
    PyObject *asked = monitor->state->is_exporting;
    PyObject *answer = asked == NULL ? NULL : PyObject_CallFunctionObjArgs(asked, NULL);
    monitor->exporting = answer == Py_True;
    Py_XDECREF(answer);
    core_clear_error();
    if (monitor->exporting && !monitor->warned_export) {
        monitor->warned_export = true;
        core_warn("tensorprobe: torch.export runs the model without values: nothing of it is "
                  "recorded, nor by what is exported");
    }
    return monitor->exporting;
}
