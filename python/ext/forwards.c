#include "forwards.h"

#include <string.h>

#include "base/mem.h"
#include "frames.h"
#include "module_hooks.h"
#include "torch_calls.h"

/* The forward of an autograd function runs without grad mode and without forward-mode gradients;
 * no_grad leaves the latter, and inference mode says itself that it is on. */
static int in_autograd_function(core_state *state)
{
    const int forward_mode = torch_is_true(state->is_fwd_grad_enabled);
    if (forward_mode != 0) {
        return forward_mode < 0 ? -1 : 0;
    }
    const int inference = torch_is_true(state->is_inference_mode);
    return inference < 0 ? -1 : !inference;
}

/* Does a training forward run around this one? Where nobody watches it is taken to. */
static bool is_inside_training(const monitor_object *monitor)
{
    const frame *around = monitor_newest_frame(monitor);
    return around == NULL || around->training;
}

static owed_calls *owed_by(module_hook *hook)
{
    owed_calls *owed = &hook->owed;
    if (owed->step != hook->monitor->steps_ended) {
        owed->count = 0;
        owed->step = hook->monitor->steps_ended;
    }
    return owed;
}

/* The sequence number of the node whose backward is running. -1: none, or an error is set. */
static int64_t running_node(core_state *state)
{
    PyObject *node = PyObject_CallFunctionObjArgs(state->current_node, NULL);
    PyObject *number = node == NULL || node == Py_None
                           ? NULL
                           : PyObject_CallMethodObjArgs(node, state->name_sequence_nr, NULL);
    const int64_t sequence_nr = number == NULL ? -1 : PyLong_AsLongLong(number);
    Py_XDECREF(number);
    Py_XDECREF(node);
    return sequence_nr;
}

/* Is this the recomputation of a checkpoint that is not reentrant? Nobody goes back through its
 * graph. Its saved tensors go to a hook of its own, which has no other name to be known by. */
static bool is_without_use(core_state *state)
{
    if (state->top_saved_tensors_hooks == NULL) {
        return false;
    }
    PyObject *hooks = PyObject_CallFunctionObjArgs(state->top_saved_tensors_hooks, Py_True, NULL);
    PyObject *pack = hooks == NULL || !PyTuple_Check(hooks) ? NULL : PyTuple_GetItem(hooks, 0);
    PyObject *name = pack == NULL ? NULL : PyObject_GetAttrString(pack, "__qualname__");
    const char *text = name == NULL ? NULL : PyUnicode_AsUTF8AndSize(name, NULL);
    const bool yes = text != NULL && strstr(text, "recomputation_hook") != NULL;
    Py_XDECREF(name);
    Py_XDECREF(hooks);
    core_clear_error();
    return yes;
}

/* A checkpoint's node was made just before what it ran, so what is run again under it is the first
 * call behind it. Numbers grow, in whatever order parts are run again. */
static owed_call *find_owed(owed_calls *owed, int64_t node)
{
    owed_call *found = NULL;
    for (uint32_t i = 0; i < owed->count; i++) {
        owed_call *call = &owed->calls[i];
        if (call->sequence_nr > node && (found == NULL || call->sequence_nr < found->sequence_nr)) {
            found = call;
        }
    }
    return found;
}

/* A forward within a backward, with a graph or, in a part within a part, still without one: then
 * that has got a new node, and will be run once more under it. */
static enum forward_kind run_again(module_hook *hook, bool with_graph, owed_call *paid)
{
    core_state *state = hook->monitor->state;
    owed_calls *owed = owed_by(hook);
    if (owed->count == 0 || is_without_use(state)) {
        return FORWARD_IGNORED;
    }
    const int64_t node = running_node(state);
    if (node < 0) {
        return PyErr_Occurred() ? FORWARD_FAILED : FORWARD_IGNORED;
    }
    owed_call *found = find_owed(owed, node);
    if (found == NULL) {
        return FORWARD_IGNORED;
    }
    if (with_graph) {
        *paid = *found;
        owed->count--;
        const size_t behind = (size_t)(&owed->calls[owed->count] - found);
        memmove(found, found + 1, behind * sizeof(*found));
        return FORWARD_GRADIENTS;
    }
    found->sequence_nr = torch_sequence_nr(state);
    return PyErr_Occurred() ? FORWARD_FAILED : FORWARD_IGNORED;
}

enum forward_kind forward_kind_of(module_hook *hook, PyObject *module, owed_call *paid,
                                  int64_t *task)
{
    core_state *state = hook->monitor->state;
    *task = -1;
    const int in_training = torch_is_training(state, module, Py_TYPE(module) == hook->plain_type);
    if (in_training <= 0) {
        return in_training < 0 ? FORWARD_FAILED : FORWARD_IGNORED;
    }
    const int with_graph = torch_grad_enabled(state);
    const int counts = with_graph != 0 ? with_graph : in_autograd_function(state);
    if (counts <= 0) {
        return counts < 0 ? FORWARD_FAILED : FORWARD_IGNORED;
    }
    *task = torch_graph_task(state);
    if (*task < 0 && PyErr_Occurred()) {
        return FORWARD_FAILED;
    }
    if (*task != -1) {
        return run_again(hook, with_graph, paid);
    }
    monitor_forget_backward_frames(hook->monitor);
    if (with_graph) {
        return FORWARD_WHOLE;
    }
    return is_inside_training(hook->monitor) ? FORWARD_VALUES : FORWARD_IGNORED;
}

bool forward_owes(module_hook *hook, uint32_t micro_step, uint32_t call)
{
    owed_calls *owed = owed_by(hook);
    if (owed->count == owed->capacity) {
        const uint32_t capacity = owed->capacity == 0 ? 4 : owed->capacity * 2;
        owed_call *calls = tp_realloc(owed->calls, capacity * sizeof(*calls));
        if (calls == NULL) {
            PyErr_NoMemory();
            return false;
        }
        owed->calls = calls;
        owed->capacity = capacity;
    }
    const int64_t sequence_nr = torch_sequence_nr(hook->monitor->state);
    if (PyErr_Occurred()) {
        return false;
    }
    owed->calls[owed->count++] = (owed_call){sequence_nr, micro_step, call};
    return true;
}
