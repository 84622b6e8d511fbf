#include "optimizer_hooks.h"

#include <string.h>

#include "adam_hooks.h"
#include "base/mem.h"
#include "input_edges.h"
#include "metrics.h"
#include "optimizer_batch.h"
#include "optimizer_owner.h"
#include "optimizer_parts.h"
#include "optimizer_rows.h"
#include "recording.h"
#include "scaler_hooks.h"

static void hook_dealloc(PyObject *self)
{
    optimizer_hook *hook = (optimizer_hook *)self;
    PyTypeObject *type = Py_TYPE(self);
    optimizer_rows_free(hook->parameters, hook->count);
    Py_XDECREF(hook->locate);
    Py_XDECREF(hook->parts);
    Py_XDECREF(hook->reducer);
    Py_XDECREF(hook->ending);
    Py_XDECREF(hook->members);
    Py_XDECREF(hook->optimizer);
    Py_XDECREF(hook->inv_scale);
    Py_XDECREF(hook->step_frame);
    Py_XDECREF(hook->rows);
    Py_XDECREF((PyObject *)hook->monitor);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

PyObject *optimizer_hook_new(monitor_object *monitor, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4) {
        PyErr_SetString(PyExc_TypeError,
                        "optimizer_hook takes parameters, main_grad, members and ends_step");
        return NULL;
    }
    if (core_load_torch(monitor->state) != 0) {
        return NULL;
    }
    const int main_grad = PyObject_IsTrue(args[1]);
    const int ends_step = PyObject_IsTrue(args[3]);
    if (main_grad < 0 || ends_step < 0) {
        return NULL;
    }
    optimizer_hook *hook = PyObject_New(optimizer_hook, monitor->state->optimizer_hook_type);
    if (hook == NULL) {
        return NULL;
    }
    memset((char *)hook + sizeof(PyObject), 0, sizeof(*hook) - sizeof(PyObject));
    hook->monitor = (monitor_object *)(void *)Py_NewRef((PyObject *)monitor);
    hook->main_grad = main_grad;
    hook->ends_step = ends_step;
    hook->members = args[2] == Py_None ? NULL : Py_NewRef(args[2]);
    if (!optimizer_rows_take(hook, args[0])) {
        Py_DECREF((PyObject *)hook);
        return NULL;
    }
    return (PyObject *)hook;
}

/* A new reference, None when there is no gradient. NULL: an error is set. */
static PyObject *gradient_of(const optimizer_hook *hook, const watched *entry)
{
    const core_state *state = hook->monitor->state;
    PyObject *parameter = entry->parameter;
    if (hook->locate != NULL) {
        return optimizer_parts_get(hook, entry, PART_GRADIENT);
    }
    if (hook->main_grad) {
        PyObject *grad = PyObject_GetAttr(parameter, state->name_main_grad);
        if (grad != NULL && grad != Py_None) {
            return grad;
        }
        Py_XDECREF(grad);
        core_clear_error();
    }
    return PyObject_GetAttr(parameter, state->name_grad);
}

static bool record_gradient(optimizer_batch *batch, watched *entry)
{
    const optimizer_hook *hook = batch->hook;
    if (entry->duplicate && hook->monitor->reduced_only) {
        return true;
    }
    const bool scaled = hook->inv_scale != NULL;
    PyObject *grad = gradient_of(hook, entry);
    if (grad != NULL && grad != Py_None && scaled) {
        PyObject *unscaled = PyObject_CallMethod(grad, "mul", "O", hook->inv_scale);
        Py_DECREF(grad);
        grad = unscaled;
    }
    /* In one process nothing is reduced: both series have the same values. */
    const int first = hook->monitor->reduced_only ? REDUCED : UNREDUCED;
    const bool ok = grad != NULL && optimizer_batch_add(batch, entry, grad, first, REDUCED);
    Py_XDECREF(grad);
    /* A copy takes memory: none is kept. */
    const bool copied = scaled || optimizer_parts_makes(hook, entry, PART_GRADIENT);
    return ok && (!copied || optimizer_batch_flush(batch));
}

/* What the optimizer's state is wanted for. */
typedef struct state_use {
    bool moments;
    bool update;
    bool direction;
} state_use;

static bool record_moments(optimizer_batch *batch, watched *entry, PyObject *own)
{
    const core_state *state = batch->hook->monitor->state;
    PyObject *exp_avg = PyDict_GetItemWithError(own, state->name_exp_avg);
    PyObject *exp_avg_sq = PyDict_GetItemWithError(own, state->name_exp_avg_sq);
    return !PyErr_Occurred() &&
           (exp_avg == NULL || optimizer_batch_add(batch, entry, exp_avg, EXP_AVG, EXP_AVG)) &&
           (exp_avg_sq == NULL ||
            optimizer_batch_add(batch, entry, exp_avg_sq, EXP_AVG_SQ, EXP_AVG_SQ));
}

static bool record_direction(optimizer_hook *hook, watched *entry, PyObject *own)
{
    PyObject *grad = gradient_of(hook, entry);
    const bool ok = grad != NULL && adam_record_direction(hook, entry, own, grad);
    Py_XDECREF(grad);
    return ok;
}

/* The optimizer's state of one parameter, held: while a tensor is read, another thread may change
 * what it is in. NULL: there is none, or an error is set. */
static PyObject *state_of(const optimizer_hook *hook, const watched *entry, PyObject *states)
{
    PyObject *own = optimizer_parts_get(hook, entry, PART_STATE);
    if (own != NULL || states == NULL) {
        return own;
    }
    own = PyDict_GetItemWithError(states, entry->parameter);
    PyObject *main_param = NULL;
    if (own == NULL && !PyErr_Occurred()) {
        /* Of a parameter in half precision the optimizer may have a copy in f32. */
        main_param = core_attribute(entry->parameter, "main_param");
        own = main_param == NULL ? NULL : PyDict_GetItemWithError(states, main_param);
    }
    Py_XDECREF(main_param); /* the state holds it, if it is there */
    return Py_XNewRef(own);
}

/* states: optimizer.state, which makes an entry when it is asked for one with []; NULL: the adapter
 * knows where they are. */
static bool record_state(optimizer_batch *batch, watched *entry, PyObject *states, state_use use)
{
    optimizer_hook *hook = batch->hook;
    PyObject *own = state_of(hook, entry, states);
    if (own == NULL || !PyDict_Check(own)) {
        Py_XDECREF(own);
        return !PyErr_Occurred();
    }
    const bool ok =
        (!use.moments || record_moments(batch, entry, own)) &&
        (!(use.update || use.direction) || optimizer_batch_flush(batch)) && /* in order */
        (!use.update || !monitor_is_active(hook->monitor) ||
         adam_record_update(hook, entry, own)) &&
        (!use.direction || !monitor_is_active(hook->monitor) || record_direction(hook, entry, own));
    Py_DECREF(own);
    return ok;
}

/* Does the row count? Each parameter once, and not one that is frozen now. 1, 0, or -1 with an
 * error set. */
static int is_trained(const optimizer_hook *hook, const watched *entry)
{
    return entry->is_alias || entry->absent ? 0
                                            : requires_grad(hook->monitor->state, entry->parameter);
}

/* The parameter's values, of which the process may have a part alone. */
static bool record_weight(optimizer_batch *batch, watched *entry, int series)
{
    PyObject *located = optimizer_parts_get(batch->hook, entry, PART_WEIGHT);
    const bool ok = optimizer_batch_add(batch, entry, located != NULL ? located : entry->parameter,
                                        series, series);
    Py_XDECREF(located);
    return ok;
}

static void begin_batch(optimizer_batch *batch, optimizer_hook *hook)
{
    optimizer_batch_begin(batch, hook);
}

static bool end_batch(optimizer_batch *batch, bool ok)
{
    ok = optimizer_batch_end(batch, ok);
    optimizer_parts_end(batch->hook);
    return ok;
}

bool optimizer_hook_has_gradients(const optimizer_hook *hook, const watched *entry)
{
    const monitor_object *monitor = hook->monitor;
    const bool named = entry != NULL ? entry->named : hook->names;
    return (named ? monitor->configured : monitor->config)->wg_distribution;
}

bool optimizer_hook_take_gradients(optimizer_hook *hook, PyObject *optimizer)
{
    optimizer_batch batch;
    begin_batch(&batch, hook);
    hook->reduced_sq = 0.0;
    bool ok = optimizer_parts_begin(hook, optimizer, false);
    for (uint32_t i = 0; ok && i < hook->count && monitor_is_active(hook->monitor); i++) {
        watched *entry = &hook->parameters[i];
        const bool wanted = optimizer_hook_has_gradients(hook, entry);
        const int trained = wanted ? is_trained(hook, entry) : 0;
        ok = trained > 0 ? record_gradient(&batch, entry) : trained == 0;
    }
    return end_batch(&batch, ok);
}

/* What is wanted of a parameter before the step. */
typedef struct before_use {
    bool gradient;
    bool weight;
    state_use state;
} before_use;

static before_use before_use_of(const optimizer_hook *hook, const tp_config *config, bool gradients)
{
    return (before_use){gradients && config->wg_distribution,
                        config->param_distribution,
                        {config->mv_distribution, config->ur_distribution,
                         config->mg_direction && !hook->stale_gradient}};
}

static bool is_anything(const before_use *use)
{
    return use->gradient || use->weight || use->state.moments || use->state.update ||
           use->state.direction;
}

static bool take_entry(optimizer_batch *batch, watched *entry, PyObject *states,
                       const before_use *use)
{
    optimizer_hook *hook = batch->hook;
    return (!use->gradient || record_gradient(batch, entry)) &&
           (!use->state.update || hook->locate == NULL || adam_take_group(hook, entry)) &&
           record_state(batch, entry, states, use->state) &&
           (!use->weight || record_weight(batch, entry, ORIGIN));
}

bool optimizer_hook_take_before(optimizer_hook *hook, PyObject *optimizer, bool gradients)
{
    /* Copied: another thread may close the monitor while a tensor is read. */
    before_use use = before_use_of(hook, hook->monitor->config, gradients);
    before_use named =
        hook->names ? before_use_of(hook, hook->monitor->configured, gradients) : use;
    if (!is_anything(&use) && !is_anything(&named)) {
        return true;
    }
    const bool located = hook->locate != NULL;
    PyObject *states =
        located ? NULL : PyObject_GetAttr(optimizer, hook->monitor->state->name_state);
    if (states == NULL && !located) {
        return false;
    }
    if (states != NULL && !PyDict_Check(states)) {
        use.state = named.state = (state_use){false, false, false};
    }
    optimizer_batch batch;
    begin_batch(&batch, hook);
    hook->reduced_sq = use.gradient ? 0.0 : hook->reduced_sq;
    bool ok = optimizer_parts_begin(hook, optimizer, false) &&
              (!(use.state.update || named.state.update) || located || adam_begin(hook, optimizer));
    for (uint32_t i = 0; ok && i < hook->count && monitor_is_active(hook->monitor); i++) {
        watched *entry = &hook->parameters[i];
        const before_use *own = entry->named ? &named : &use;
        const int trained = is_anything(own) ? is_trained(hook, entry) : 0;
        ok = trained > 0 ? take_entry(&batch, entry, states, own) : trained == 0;
    }
    ok = end_batch(&batch, ok);
    Py_XDECREF(states);
    return ok;
}

static bool record_after(optimizer_hook *hook, PyObject *optimizer)
{
    const bool named = hook->names && hook->monitor->configured->param_distribution;
    const bool all = hook->monitor->config->param_distribution;
    const bool parameters = all || named;
    bool ok = !parameters || hook->locate != NULL || optimizer_owner_find_foreign(hook, optimizer);
    optimizer_batch batch;
    begin_batch(&batch, hook);
    ok = ok && (!parameters || optimizer_parts_begin(hook, optimizer, true));
    for (uint32_t i = 0; ok && parameters && i < hook->count && monitor_is_active(hook->monitor);
         i++) {
        watched *entry = &hook->parameters[i];
        const bool wanted = !entry->foreign && (all || entry->named);
        const int trained = wanted ? is_trained(hook, entry) : 0;
        ok = trained > 0 ? record_weight(&batch, entry, UPDATED) : trained == 0;
    }
    return end_batch(&batch, ok);
}

/* A closure makes the gradients while the step runs: those that are there before it are the step
 * before's. args: of the hook, that is the optimizer, its arguments and its keyword arguments. */
static bool has_closure(PyObject *const *args, Py_ssize_t count)
{
    PyObject *closure = NULL;
    if (count >= 2 && PyTuple_Check(args[1]) && PyTuple_Size(args[1]) > 1) {
        closure = PyTuple_GetItem(args[1], 1);
    } else if (count >= 3 && PyDict_Check(args[2])) {
        closure = PyDict_GetItemString(args[2], "closure");
    }
    return closure != NULL && closure != Py_None;
}

/* The step of a subclass may call that of its base, and torch runs the hooks for both: what is
 * inside the step that is running is part of it. A step that was left by an exception is not
 * running: its frame isn't among the callers. */
static bool is_inner_step(const optimizer_hook *hook)
{
    PyObject *running = hook->step_frame == NULL ? NULL : (PyObject *)PyEval_GetFrame();
    if (running == NULL || running == hook->step_frame) {
        return false;
    }
    Py_INCREF(running);
    while (running != NULL && running != Py_None && running != hook->step_frame) {
        PyObject *caller = PyObject_GetAttrString(running, "f_back");
        Py_DECREF(running);
        running = caller;
    }
    const bool inner = running == hook->step_frame;
    Py_XDECREF(running);
    core_clear_error();
    return inner;
}

static void begin_step(optimizer_hook *hook)
{
    PyObject *earlier = hook->step_frame;
    hook->step_frame = Py_XNewRef((PyObject *)PyEval_GetFrame());
    Py_XDECREF(earlier);
}

/* A step that failed and is tried again, with nothing trained in between, has been recorded as far
 * as it was to be. Notes that this one is. */
static bool is_tried_again(optimizer_hook *hook)
{
    const monitor_object *monitor = hook->monitor;
    const bool again =
        hook->begun_in == monitor->steps_ended + 1 && hook->begun_forward == monitor->forward;
    hook->begun_in = monitor->steps_ended + 1;
    hook->begun_forward = monitor->forward;
    return again;
}

static void add_time(monitor_object *monitor, uint64_t begin)
{
    const uint64_t before = monitor->hook_ns;
    monitor_add_time(monitor, begin);
    monitor->optimizer_ns += monitor->hook_ns - before;
}

/* step_pre(optimizer, args, kwargs) */
static PyObject *hook_step_pre(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    optimizer_hook *hook = (optimizer_hook *)self;
    monitor_object *monitor = hook->monitor;
    if (count < 1 || !monitor_is_active(monitor)) {
        Py_RETURN_NONE;
    }
    const uint64_t begin = monitor_now(monitor);
    const int own = optimizer_hook_owns(hook, args[0]);
    bool ok = own >= 0;
    if (own > 0 && is_inner_step(hook)) {
        Py_RETURN_NONE;
    }
    if (own > 0) {
        begin_step(hook);
    }
    if (own > 0 && monitor->collecting && !is_tried_again(hook)) {
        scaler_check_clipping(hook);
        hook->stale_gradient = has_closure(args, count);
        const bool gradients = !hook->gradients_taken && !hook->stale_gradient;
        PyObject *hidden = core_hide_from_functions(monitor->state);
        ok = scaler_note_fused(hook, args[0]) &&
             optimizer_hook_take_before(hook, args[0], gradients);
        core_show(hidden);
        Py_CLEAR(hook->inv_scale);
    }
    PyObject *result = ok ? Py_NewRef(Py_None) : monitor_trouble(monitor, "optimizer.step");
    add_time(monitor, begin);
    return result;
}

/* The time that the end of the step may wait for the writer is counted apart. */
PyObject *optimizer_hook_finish(optimizer_hook *hook, PyObject *optimizer, bool ok, uint64_t begin)
{
    monitor_object *monitor = hook->monitor;
    if (ok && monitor->collecting) {
        PyObject *hidden = core_hide_from_functions(monitor->state);
        ok = record_after(hook, optimizer);
        core_show(hidden);
    }
    ok = optimizer_parts_ending(hook) && ok;
    PyObject *result = ok ? Py_NewRef(Py_None) : monitor_trouble(monitor, "optimizer.step");
    add_time(monitor, begin);
    hook->gradients_taken = hook->loss_is_scaled = false;
    hook->clipped_behind = 0;
    hook->begun_in = 0;
    hook->stepped = true;
    if (result == NULL || !hook->ends_step || !monitor_is_active(monitor) ||
        monitor_boundary(monitor)) {
        return result;
    }
    Py_DECREF(result);
    return monitor_trouble(monitor, "optimizer.step");
}

/* step_post(optimizer, args, kwargs) */
static PyObject *hook_step_post(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    optimizer_hook *hook = (optimizer_hook *)self;
    monitor_object *monitor = hook->monitor;
    if (count < 1 || !monitor_is_active(monitor)) {
        Py_RETURN_NONE;
    }
    const int own = optimizer_hook_owns(hook, args[0]);
    if (own <= 0) {
        return own == 0 ? Py_NewRef(Py_None) : monitor_trouble(monitor, "optimizer.step");
    }
    if (is_inner_step(hook)) {
        Py_RETURN_NONE;
    }
    Py_CLEAR(hook->step_frame);
    const uint64_t begin = monitor_now(monitor);
    const bool late = monitor->collecting && optimizer_hook_has_gradients(hook, NULL) &&
                      !hook->gradients_taken && has_closure(args, count);
    PyObject *hidden = core_hide_from_functions(monitor->state);
    const bool ok = (!late || optimizer_hook_take_gradients(hook, args[0])) &&
                    (!monitor->collecting || adam_check(hook, args[0]));
    core_show(hidden);
    return optimizer_hook_finish(hook, args[0], ok, begin);
}

/* gradients(): what they are now; nothing is recorded. */
static PyObject *hook_gradients(PyObject *self, PyObject *Py_UNUSED(unused))
{
    optimizer_hook *hook = (optimizer_hook *)self;
    PyObject *rows = PyList_New(0);
    hook->busy++;
    if (rows != NULL && !optimizer_parts_begin(hook, Py_None, false)) {
        Py_CLEAR(rows);
    }
    for (uint32_t i = 0; rows != NULL && i < hook->count && monitor_is_active(hook->monitor); i++) {
        const watched *entry = &hook->parameters[i];
        PyObject *grad = gradient_of(hook, entry);
        PyObject *values = grad == NULL ? NULL : metrics_of(hook->monitor, grad, entry->name);
        Py_XDECREF(grad);
        if (values == NULL || values == Py_None) {
            Py_XDECREF(values);
            if (values == NULL) {
                Py_CLEAR(rows);
            }
            continue;
        }
        PyObject *row = Py_BuildValue("isN", entry->vpp_stage, entry->name, values);
        if (row == NULL || PyList_Append(rows, row) != 0) {
            Py_CLEAR(rows);
        }
        Py_XDECREF(row);
    }
    optimizer_parts_end(hook);
    hook->busy--;
    return rows;
}

/* watch(parameters): others than before. On failure none is watched. */
static PyObject *hook_watch(PyObject *self, PyObject *rows)
{
    optimizer_hook *hook = (optimizer_hook *)self;
    watched *earlier = hook->parameters;
    const uint32_t count = hook->count;
    if (hook->busy > 0) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is in the optimizer's step");
        return NULL;
    }
    hook->parameters = NULL;
    hook->count = 0;
    hook->foreign_to = NULL;
    Py_CLEAR(hook->rows);
    const bool taken = optimizer_rows_take(hook, rows);
    optimizer_rows_free(earlier, count);
    return taken ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef hook_methods[] = {
    {"watch", hook_watch, METH_O,
     "watch($self, parameters, /)\n--\n\nRecords these from now on: name, parameter and vpp "
     "stage."},
    {"gradients", hook_gradients, METH_NOARGS,
     "gradients($self, /)\n--\n\nThe gradients as they are now: vpp stage, name, values by op."},
    {"take", (PyCFunction)(void (*)(void))optimizer_parts_take, METH_FASTCALL,
     "take($self, quantity, rows, tensors, micro, /)\n--\n\nRecords tensors of rows with these "
     "numbers; micro: as of the running micro step."},
    {"accumulated", optimizer_parts_accumulated, METH_O,
     "accumulated($self, parameter, /)\n--\n\nA gradient has been added up, and is still to be "
     "reduced."},
    {"unscaled", scaler_unscaled, METH_O,
     "unscaled($self, optimizer, /)\n--\n\nA gradient scaler has divided the gradients."},
    {"scaled", scaler_scaled, METH_NOARGS,
     "scaled($self, /)\n--\n\nA gradient scaler multiplies a loss."},
    {"clipping", scaler_clipping, METH_NOARGS,
     "clipping($self, /)\n--\n\nThe training loop is about to clip gradients."},
    {"scaler_begin", (PyCFunction)(void (*)(void))scaler_begin, METH_FASTCALL,
     "scaler_begin($self, optimizer, scale, /)\n--\n\nA gradient scaler's step begins."},
    {"scaler_end", (PyCFunction)(void (*)(void))scaler_end, METH_FASTCALL,
     "scaler_end($self, optimizer, failed, /)\n--\n\nA gradient scaler's step has ended."},
    {"mark_skipped", optimizer_parts_mark_skipped, METH_NOARGS,
     "mark_skipped($self, /)\n--\n\nThe step that ends next has made no update."},
    {"step_pre", (PyCFunction)(void (*)(void))hook_step_pre, METH_FASTCALL,
     "step_pre($self, optimizer, args, kwargs, /)\n--\n\nAn optimizer's step pre-hook."},
    {"step_post", (PyCFunction)(void (*)(void))hook_step_post, METH_FASTCALL,
     "step_post($self, optimizer, args, kwargs, /)\n--\n\nAn optimizer's step post-hook: ends the "
     "step."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot hook_slots[] = {
    {Py_tp_dealloc, hook_dealloc},
    {Py_tp_methods, hook_methods},
    {Py_tp_getset, optimizer_parts_properties},
    {Py_tp_doc, "Records what an optimizer works with."},
    {0, NULL},
};

PyType_Spec core_optimizer_hook_spec = {
    .name = "tensorprobe._core.OptimizerHook",
    .basicsize = sizeof(optimizer_hook),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = hook_slots,
};
