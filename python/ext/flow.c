/* What the hooks share: trouble, running forwards, and the ends of forwards, backwards and
 * steps. */
#include "monitor_object.h"

#include <string.h>

#include "base/mem.h"
#include "collection.h"
#include "collectives.h"
#include "frames.h"
#include "gradient_hooks.h"
#include "module_hooks.h"
#include "passages.h"
#include "torch_calls.h"

#define MAX_CHUNKS 4096

/* ---- Trouble ---- */

static bool is_strict(const monitor_object *monitor)
{
    return monitor->monitor != NULL && monitor->config->strict;
}

void monitor_clear_error(void)
{
    if (PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
    }
}

PyObject *monitor_trouble(monitor_object *monitor, const char *where)
{
    if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_RuntimeError, "the monitor ran out of memory");
    }
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return NULL; /* the program's own: Ctrl-C while a hook ran Python code of torch */
    }
    if (monitor->monitor != NULL) {
        tp_monitor_count_error(monitor->monitor);
    }
    if (is_strict(monitor)) {
        return NULL;
    }
    PyObject *type = NULL;
    PyObject *value = NULL;
    PyObject *traceback = NULL;
    PyErr_Fetch(&type, &value, &traceback);
    if (!monitor->warned) {
        monitor->warned = true;
        PyObject *text = PyObject_Str(value == NULL ? type : value);
        const char *why = text == NULL ? NULL : PyUnicode_AsUTF8AndSize(text, NULL);
        PyErr_Clear();
        core_warn(
            "tensorprobe: a hook of '%s' failed and recorded nothing: %s (further failures are "
            "only counted)",
            where, why == NULL ? "" : why);
        Py_XDECREF(text);
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

bool monitor_unreadable(monitor_object *monitor, const tensor_view *view, const char *name)
{
    monitor->unreadable++;
    monitor->is_busy = true;
    tp_monitor_count_error(monitor->monitor);
    if (is_strict(monitor)) {
        PyErr_Format(PyExc_RuntimeError, "a tensor of '%s' is not recorded: %s", name, view->why);
        return false;
    }
    PyObject *reason = PyUnicode_FromString(view->why);
    const int known = reason == NULL ? -1 : PySet_Contains(monitor->warned_reasons, reason);
    if (known == 0 && PySet_Add(monitor->warned_reasons, reason) == 0) {
        core_warn(
            "tensorprobe: a tensor of '%s' is not recorded: %s (further ones of this kind are only "
            "counted)",
            name, view->why);
    }
    Py_XDECREF(reason);
    if (PyErr_Occurred()) {
        monitor_clear_error();
    }
    return !PyErr_Occurred();
}

void monitor_add_time(monitor_object *monitor, uint64_t begin)
{
    monitor->hook_ns += monitor_now(monitor) - begin;
}

void monitor_hand_over_time(monitor_object *monitor)
{
    tp_monitor_add_hook_time(monitor->monitor, monitor->hook_ns);
    monitor->hook_ns = 0;
}

/* ---- Frames ---- */

frame *monitor_make_frame(void)
{
    frame *new = tp_calloc(1, sizeof(*new));
    if (new == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    new->graph_task = -1;
    new->edges = new->inline_edges;
    new->edge_capacity = FRAME_INLINE_EDGES;
    return new;
}

void monitor_empty_frame(frame *old)
{
    for (uint32_t i = 0; i < old->edge_count; i++) {
        Py_DECREF(old->edges[i].node);
    }
    if (old->edges != old->inline_edges) {
        tp_free(old->edges);
    }
    if (old->within != NULL) {
        passages_free(old->within);
    }
    old->edge_count = 0;
    old->edges = old->inline_edges;
    old->edge_capacity = FRAME_INLINE_EDGES;
    old->within = NULL;
}

bool monitor_grow_frames(monitor_object *monitor)
{
    const uint32_t capacity = monitor->frame_capacity == 0 ? 32 : monitor->frame_capacity * 2;
    frame **frames = tp_realloc(monitor->frames, capacity * sizeof(*frames));
    if (frames == NULL) {
        PyErr_NoMemory();
        return false;
    }
    monitor->frames = frames;
    monitor->frame_capacity = capacity;
    return true;
}

static frame *take_frame(monitor_object *monitor, uint32_t i)
{
    frame *taken = monitor->frames[i];
    monitor->frame_count--;
    memmove(&monitor->frames[i], &monitor->frames[i + 1],
            (monitor->frame_count - i) * sizeof(frame *));
    return taken;
}

frame *monitor_find_frame(monitor_object *monitor, const struct module_hook *hook)
{
    const unsigned long thread = monitor_thread();
    for (uint32_t i = monitor->frame_count; i-- > 0;) {
        if (monitor->frames[i]->hook == hook && monitor->frames[i]->thread == thread) {
            return take_frame(monitor, i);
        }
    }
    return NULL;
}

void monitor_forget_backward_frames(monitor_object *monitor)
{
    for (const frame *newest = NULL;
         (newest = monitor_newest_frame(monitor)) != NULL && newest->graph_task >= 0;) {
        monitor_free_frame(monitor, monitor_pop_frame(monitor, newest->hook));
    }
}

bool monitor_is_running(const monitor_object *monitor, const struct module_hook *hook)
{
    const unsigned long thread = monitor_thread();
    for (uint32_t i = 0; i < monitor->frame_count; i++) {
        if (monitor->frames[i]->hook == hook && monitor->frames[i]->thread == thread) {
            return true;
        }
    }
    return false;
}

bool frame_add_edge(frame *owner, const input_edge *edge)
{
    if (owner->edge_count == owner->edge_capacity) {
        const bool was_inline = owner->edges == owner->inline_edges;
        const uint32_t capacity = owner->edge_capacity * 2;
        input_edge *edges = tp_realloc(was_inline ? NULL : owner->edges, capacity * sizeof(*edges));
        if (edges == NULL) {
            return false;
        }
        if (was_inline) {
            memcpy(edges, owner->inline_edges, sizeof(owner->inline_edges));
        }
        owner->edges = edges;
        owner->edge_capacity = capacity;
    }
    Py_INCREF(edge->node);
    owner->edges[owner->edge_count++] = *edge;
    return true;
}

/* ---- Ends: of a forward, of a backward, of a step ---- */

static void forget_pending(monitor_object *monitor)
{
    while (monitor->pending_count > 0) {
        Py_DECREF((PyObject *)(void *)monitor->pending[--monitor->pending_count].grad);
    }
}

void monitor_forget_forward(monitor_object *monitor)
{
    const unsigned long thread = monitor_thread();
    memo_clear(&monitor->memo);
    for (uint32_t i = monitor->frame_count; i-- > 0;) {
        if (monitor->frames[i]->thread == thread) {
            monitor_free_frame(monitor, take_frame(monitor, i));
        }
    }
}

/* Called by the autograd engine. self is the tuple (monitor, number of the graph task). */
static PyObject *end_of_backward(PyObject *self, PyObject *Py_UNUSED(unused))
{
    monitor_object *monitor = (monitor_object *)(void *)PyTuple_GetItem(self, 0);
    const int64_t task = PyLong_AsLongLong(PyTuple_GetItem(self, 1));
    const uint64_t begin = monitor_now(monitor);
    bool ok = true;
    for (uint32_t i = 0; i < monitor->pending_count;) {
        if (monitor->pending[i].graph_task != task) {
            i++;
            continue;
        }
        struct input_grad *grad = monitor->pending[i].grad;
        monitor->pending_count--;
        memmove(&monitor->pending[i], &monitor->pending[i + 1],
                (monitor->pending_count - i) * sizeof(pending_grad));
        if (ok && monitor_is_active(monitor)) {
            ok = input_grad_finish(grad);
        }
        Py_DECREF((PyObject *)(void *)grad);
    }
    PyObject *result = ok ? Py_NewRef(Py_None) : monitor_trouble(monitor, "gradients of inputs");
    monitor_add_time(monitor, begin);
    return result;
}

static PyMethodDef end_of_backward_def = {"end_of_backward", end_of_backward, METH_NOARGS, NULL};

static bool queue_end_of_backward(monitor_object *monitor, int64_t task)
{
    PyObject *self = Py_BuildValue("OL", (PyObject *)monitor, (long long)task);
    PyObject *callable = self == NULL ? NULL : PyCFunction_NewEx(&end_of_backward_def, self, NULL);
    PyObject *done = callable == NULL ? NULL
                                      : PyObject_CallFunctionObjArgs(monitor->state->queue_callback,
                                                                     callable, NULL);
    Py_XDECREF(self);
    Py_XDECREF(callable);
    Py_XDECREF(done);
    return done != NULL;
}

bool monitor_await_end_of_backward(monitor_object *monitor, struct input_grad *grad)
{
    const int64_t task = torch_graph_task(monitor->state);
    if (PyErr_Occurred()) {
        return false;
    }
    bool queued = false;
    for (uint32_t i = 0; i < monitor->pending_count && !queued; i++) {
        queued = monitor->pending[i].graph_task == task;
    }
    if (monitor->pending_count == monitor->pending_capacity) {
        const uint32_t capacity =
            monitor->pending_capacity == 0 ? 32 : monitor->pending_capacity * 2;
        pending_grad *pending = tp_realloc(monitor->pending, capacity * sizeof(*pending));
        if (pending == NULL) {
            PyErr_NoMemory();
            return false;
        }
        monitor->pending = pending;
        monitor->pending_capacity = capacity;
    }
    if (!queued && !queue_end_of_backward(monitor, task)) {
        return false;
    }
    monitor->pending[monitor->pending_count++] =
        (pending_grad){(struct input_grad *)(void *)Py_NewRef((PyObject *)(void *)grad), task};
    return true;
}

/* All of them, also when Ctrl-C comes before or in between: that error is set at the end. */
static void remove_handles(PyObject *handles)
{
    PyObject *type = NULL;
    PyObject *value = NULL;
    PyObject *traceback = NULL;
    PyErr_Fetch(&type, &value, &traceback);
    const Py_ssize_t count = PyList_Size(handles);
    for (Py_ssize_t i = 0; i < count;) {
        PyObject *done = PyObject_CallMethod(PyList_GetItem(handles, i), "remove", NULL);
        Py_XDECREF(done);
        if (done == NULL && type == NULL && !PyErr_ExceptionMatches(PyExc_Exception)) {
            PyErr_Fetch(&type, &value, &traceback);
            continue; /* once more: it may have been cut short */
        }
        PyErr_Clear();
        i++;
    }
    if (count > 0) {
        PyList_SetSlice(handles, 0, count, NULL);
    }
    PyErr_Restore(type, value, traceback);
}

void monitor_forget_step(monitor_object *monitor)
{
    memo_clear(&monitor->memo);
    while (monitor->frame_count > 0) {
        monitor_free_frame(monitor, monitor->frames[--monitor->frame_count]);
    }
    forget_pending(monitor);
    remove_handles(monitor->leaf_handles);
}

bool monitor_add_chunk(monitor_object *monitor, long vpp_stage)
{
    if (vpp_stage < 0 || vpp_stage >= MAX_CHUNKS) {
        PyErr_Format(PyExc_ValueError, "a model has at most %d chunks", MAX_CHUNKS);
        return false;
    }
    if ((uint32_t)vpp_stage < monitor->chunk_count) {
        return true;
    }
    const uint32_t count = (uint32_t)vpp_stage + 1;
    uint32_t *micro_steps = tp_realloc(monitor->micro_steps, count * sizeof(*micro_steps));
    if (micro_steps == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (uint32_t i = monitor->chunk_count; i < count; i++) {
        micro_steps[i] = 0;
    }
    monitor->micro_steps = micro_steps;
    monitor->chunk_count = count;
    return true;
}

bool monitor_start_at(monitor_object *monitor, uint64_t step)
{
    if (tp_monitor_renumber(monitor->monitor, step) != TP_OK) {
        PyErr_SetString(PyExc_RuntimeError, "something has been recorded in this step already");
        return false;
    }
    monitor->collecting = tp_monitor_is_collecting(monitor->monitor);
    return true;
}

/* Every chunk sees the same micro batches; one that has not run has seen none. */
void monitor_hand_over_micro_steps(monitor_object *monitor)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < monitor->chunk_count; i++) {
        most = monitor->micro_steps[i] > most ? monitor->micro_steps[i] : most;
        monitor->micro_steps[i] = 0;
    }
    monitor->most_forwards = most > monitor->most_forwards ? most : monitor->most_forwards;
    tp_monitor_set_micro_steps(monitor->monitor, most);
}

bool monitor_boundary(monitor_object *monitor)
{
    const bool ok = collectives_end_step(monitor);
    if (!ok || !monitor_is_active(monitor)) {
        return ok;
    }
    monitor_forget_step(monitor);
    monitor_hand_over_micro_steps(monitor);
    const uint64_t own_ns = monitor->hook_ns;
    monitor_hand_over_time(monitor);
    monitor->forward++;
    monitor->steps_ended++;
    const bool collected = monitor->collecting;
    const uint64_t optimizer_ns = monitor->optimizer_ns;
    monitor->optimizer_ns = 0;
    tp_status status = TP_OK;
    monitor->users++;
    monitor->endings++;
    monitor->step = NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = tp_monitor_step(monitor->monitor);
    Py_END_ALLOW_THREADS;
    monitor->users--;
    if (--monitor->endings == 0) {
        monitor->step = tp_monitor_open_step(monitor->monitor);
    }
    if (collected && monitor->on_first_step != NULL && !PyErr_Occurred()) {
        PyObject *callback = monitor->on_first_step;
        monitor->on_first_step = NULL;
        Py_XDECREF(PyObject_CallFunctionObjArgs(callback, NULL));
        Py_DECREF(callback);
    }
    if (monitor_is_active(monitor)) {
        if (monitor->collection != NULL && !PyErr_Occurred()) {
            collection_end_step(monitor, collected, own_ns, optimizer_ns);
        }
    }
    if (monitor_is_active(monitor)) { /* nobody has closed it in there */
        monitor->collecting = tp_monitor_is_collecting(monitor->monitor);
        if (tp_monitor_is_done(monitor->monitor)) {
            remove_handles(monitor->collector_handles);
        }
    }
    if (status < 0 && !PyErr_Occurred()) {
        PyErr_Format(PyExc_RuntimeError, "the step could not be handed to the writer: %s",
                     tp_status_name(status));
    }
    return !PyErr_Occurred();
}
