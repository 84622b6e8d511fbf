#include "optimizer_parts.h"

#include "optimizer_batch.h"
#include "optimizer_rows.h"

bool optimizer_parts_begin(optimizer_hook *hook, PyObject *optimizer, bool after)
{
    if (hook->locate == NULL) {
        return true;
    }
    PyObject *parts =
        PyObject_CallFunctionObjArgs(hook->locate, after ? Py_True : Py_False, optimizer, NULL);
    if (parts != NULL && (!PyList_Check(parts) || PyList_Size(parts) != (Py_ssize_t)hook->count)) {
        PyErr_SetString(PyExc_RuntimeError, "an adapter has not located each of its rows");
        Py_CLEAR(parts);
    }
    PyObject *earlier = hook->parts;
    hook->parts = parts;
    Py_XDECREF(earlier);
    return parts != NULL;
}

void optimizer_parts_end(optimizer_hook *hook)
{
    Py_CLEAR(hook->parts);
}

/* What locate() said of this part of a row, borrowed; NULL: nothing. */
static PyObject *located(const optimizer_hook *hook, const watched *entry, int part)
{
    PyObject *own =
        hook->parts == NULL ? NULL : PyList_GetItem(hook->parts, entry - hook->parameters);
    if (own == NULL || !PyTuple_Check(own) || PyTuple_Size(own) != PARTS) {
        core_clear_error();
        return NULL;
    }
    return PyTuple_GetItem(own, part);
}

/* A new reference to what is there, or to what a function makes. NULL: an error is set. */
static PyObject *made(PyObject *found)
{
    return PyCallable_Check(found) ? PyObject_CallNoArgs(found) : Py_NewRef(found);
}

bool optimizer_parts_makes(const optimizer_hook *hook, const watched *entry, int part)
{
    PyObject *found = located(hook, entry, part);
    return found != NULL && PyCallable_Check(found);
}

PyObject *optimizer_parts_get(const optimizer_hook *hook, const watched *entry, int part)
{
    if (hook->locate == NULL) {
        return NULL;
    }
    PyObject *found = located(hook, entry, part);
    return found == NULL ? Py_NewRef(Py_None) : made(found);
}

/* Where gradients are reduced several times a step, no buffer holds the sum of the micro steps. */
static bool is_sum(optimizer_hook *hook, watched *entry)
{
    const uint64_t step = hook->monitor->steps_ended + 1;
    if (entry->unreduced_in == step && !hook->reduces_often) {
        hook->reduces_often = true;
        core_warn("tensorprobe: gradients are reduced several times a step: grad_unreduced is left "
                  "out (that of step %llu is of its first micro step alone); accumulate under "
                  "no_sync(), or set monitor_mbs_grad",
                  (unsigned long long)tp_monitor_step_number(hook->monitor->monitor));
    }
    entry->unreduced_in = step;
    return !hook->reduces_often;
}

/* Which micro step: True is the running one, False none, a number that one. Pipelines run forwards
 * of later micro steps before they run the backward of an earlier one. */
static uint32_t micro_step_of(const optimizer_hook *hook, const watched *entry, PyObject *micro)
{
    if (micro == Py_True) {
        return monitor_micro_step(hook->monitor, entry->vpp_stage);
    }
    return PyLong_Check(micro) ? (uint32_t)PyLong_AsUnsignedLongMask(micro) : 0; /* False is 0 */
}

static bool take(optimizer_hook *hook, int series, PyObject *rows, PyObject *tensors,
                 PyObject *micro)
{
    optimizer_batch batch;
    optimizer_batch_begin(&batch, hook);
    bool ok = true;
    for (Py_ssize_t i = 0; ok && i < PyList_Size(rows) && i < PyList_Size(tensors); i++) {
        const unsigned long row = PyLong_AsUnsignedLong(PyList_GetItem(rows, i));
        if (row >= hook->count) {
            ok = !PyErr_Occurred();
            continue; /* of rows that have been replaced meanwhile */
        }
        watched *entry = &hook->parameters[row];
        const bool is_gradient = series == UNREDUCED || series == REDUCED;
        if ((is_gradient && !optimizer_hook_has_gradients(hook, entry)) ||
            (series == UNREDUCED && micro == Py_False && !is_sum(hook, entry))) {
            continue;
        }
        const uint32_t micro_step = micro_step_of(hook, entry, micro);
        PyObject *given = PyList_GetItem(tensors, i);
        PyObject *tensor = made(given);
        ok = tensor != NULL && (batch.micro_step == micro_step || optimizer_batch_flush(&batch));
        batch.micro_step = micro_step;
        ok = ok && optimizer_batch_add(&batch, entry, tensor, series, series);
        Py_XDECREF(tensor);
        /* What was made takes memory: none is kept. */
        ok = ok && (tensor == given || optimizer_batch_flush(&batch));
    }
    return optimizer_batch_end(&batch, ok);
}

PyObject *optimizer_parts_take(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    optimizer_hook *hook = (optimizer_hook *)self;
    monitor_object *monitor = hook->monitor;
    if (count != 4 || !PyList_Check(args[1]) || !PyList_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "take takes quantity, rows, tensors and micro");
        return NULL;
    }
    const unsigned long quantity = PyLong_AsUnsignedLong(args[0]);
    const int series = PyErr_Occurred() ? -1 : optimizer_rows_series((uint32_t)quantity);
    if (series < 0) {
        core_clear_error();
        PyErr_SetString(PyExc_ValueError, "no quantity of a parameter");
        return NULL;
    }
    if (!monitor_is_collecting(monitor)) {
        Py_RETURN_NONE;
    }
    const uint64_t begin = monitor_now(monitor);
    PyObject *hidden = core_hide_from_functions(monitor->state);
    const bool ok = take(hook, series, args[1], args[2], args[3]);
    core_show(hidden);
    PyObject *result = ok ? Py_NewRef(Py_None) : monitor_trouble(monitor, "a reduction");
    monitor_add_time(monitor, begin);
    return result;
}

/* Is the sum of all micro steps there, and about to be reduced? */
static bool is_complete(const optimizer_hook *hook)
{
    PyObject *owner = hook->reducer == NULL ? NULL : PyTuple_GetItem(hook->reducer, 0);
    PyObject *value =
        owner == NULL ? NULL : PyObject_GetAttr(owner, PyTuple_GetItem(hook->reducer, 1));
    const bool yes = value != NULL && PyObject_IsTrue(value) == 1;
    Py_XDECREF(value);
    core_clear_error();
    return yes;
}

static bool take_accumulated(optimizer_hook *hook, PyObject *parameter, bool micro)
{
    watched *entry = optimizer_rows_find(hook, parameter);
    const bool wanted = entry != NULL && optimizer_hook_has_gradients(hook, entry) &&
                        (micro || is_sum(hook, entry));
    PyObject *grad = wanted ? PyObject_GetAttr(parameter, hook->monitor->state->name_grad) : NULL;
    if (grad == NULL) {
        return !PyErr_Occurred();
    }
    optimizer_batch batch;
    optimizer_batch_begin(&batch, hook);
    batch.micro_step = micro ? monitor_micro_step(hook->monitor, entry->vpp_stage) : 0;
    const bool ok = optimizer_batch_add(&batch, entry, grad, UNREDUCED, UNREDUCED);
    Py_DECREF(grad);
    return optimizer_batch_end(&batch, ok);
}

PyObject *optimizer_parts_accumulated(PyObject *self, PyObject *parameter)
{
    optimizer_hook *hook = (optimizer_hook *)self;
    monitor_object *monitor = hook->monitor;
    if (!monitor_is_collecting(monitor) || !optimizer_hook_has_gradients(hook, NULL)) {
        Py_RETURN_NONE;
    }
    const uint64_t begin = monitor_now(monitor);
    const bool micro = monitor->config->monitor_mbs_grad;
    PyObject *hidden = core_hide_from_functions(monitor->state);
    const bool ok = (!micro && !is_complete(hook)) || take_accumulated(hook, parameter, micro);
    core_show(hidden);
    PyObject *result = ok ? Py_NewRef(Py_None) : monitor_trouble(monitor, "a gradient");
    monitor_add_time(monitor, begin);
    return result;
}

bool optimizer_parts_ending(optimizer_hook *hook)
{
    if (hook->ending == NULL || !hook->ends_step || !monitor_is_active(hook->monitor)) {
        return true;
    }
    PyObject *ending = Py_NewRef(hook->ending);
    PyObject *done = PyObject_CallFunctionObjArgs(ending, NULL);
    Py_DECREF(ending);
    Py_XDECREF(done);
    return done != NULL;
}

/* ---- Properties of the hook ---- */

static int set_callable(PyObject **place, PyObject *value)
{
    PyObject *earlier = *place;
    *place = value == NULL || value == Py_None ? NULL : Py_NewRef(value);
    Py_XDECREF(earlier);
    return 0;
}

static PyObject *get_ending(PyObject *self, void *Py_UNUSED(closure))
{
    const optimizer_hook *hook = (optimizer_hook *)self;
    return Py_NewRef(hook->ending == NULL ? Py_None : hook->ending);
}

static int set_ending(PyObject *self, PyObject *value, void *Py_UNUSED(closure))
{
    return set_callable(&((optimizer_hook *)self)->ending, value);
}

static PyObject *get_locate(PyObject *self, void *Py_UNUSED(closure))
{
    const optimizer_hook *hook = (optimizer_hook *)self;
    return Py_NewRef(hook->locate == NULL ? Py_None : hook->locate);
}

static int set_locate(PyObject *self, PyObject *value, void *Py_UNUSED(closure))
{
    return set_callable(&((optimizer_hook *)self)->locate, value);
}

static PyObject *get_reducer(PyObject *self, void *Py_UNUSED(closure))
{
    const optimizer_hook *hook = (optimizer_hook *)self;
    return Py_NewRef(hook->reducer == NULL ? Py_None : hook->reducer);
}

static int set_reducer(PyObject *self, PyObject *value, void *Py_UNUSED(closure))
{
    optimizer_hook *hook = (optimizer_hook *)self;
    if (value != NULL && value != Py_None && (!PyTuple_Check(value) || PyTuple_Size(value) != 2)) {
        PyErr_SetString(PyExc_TypeError, "reducer is None or (object, name of its attribute)");
        return -1;
    }
    return set_callable(&hook->reducer, value);
}

static PyObject *get_reduced_sq(PyObject *self, void *Py_UNUSED(closure))
{
    return PyFloat_FromDouble(((optimizer_hook *)self)->reduced_sq);
}

static PyObject *get_has_gradients(PyObject *self, void *Py_UNUSED(closure))
{
    const optimizer_hook *hook = (optimizer_hook *)self;
    return PyBool_FromLong(hook->gradients_taken || hook->step_frame != NULL);
}

PyGetSetDef optimizer_parts_properties[] = {
    {"locate", get_locate, set_locate,
     "None, or what says where the values of each row are: locate(after) gives a list with None or "
     "(weight, gradient, state, group) for each row.",
     NULL},
    {"reducer", get_reducer, set_reducer,
     "None, or (object, attribute): while that is true, accumulated gradients are complete and "
     "about to be reduced.",
     NULL},
    {"ending", get_ending, set_ending,
     "None, or what is called before the training's step ends with this hook.", NULL},
    {"reduced_sq", get_reduced_sq, NULL,
     "The sum of squares of the reduced gradients taken last; of copies that of copy 0 alone.",
     NULL},
    {"has_gradients", get_has_gradients, NULL,
     "Whether those of the step that is open have been taken.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyObject *optimizer_parts_mark_skipped(PyObject *self, PyObject *Py_UNUSED(unused))
{
    const monitor_object *monitor = ((optimizer_hook *)self)->monitor;
    if (monitor_is_active(monitor)) {
        tp_monitor_mark_skipped(monitor->monitor);
    }
    Py_RETURN_NONE;
}
