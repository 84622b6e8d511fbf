#include "adam_hooks.h"

#include <string.h>

#include "compute.h"
#include "optimizer_parts.h"
#include "optimizer_rows.h"
#include "recording.h"
#include "tensorprobe/optimizer.h"

/* As the ancestors' heat maps. */
#define BINS 30

/* A number of the optimizer, or a tensor of one element in host memory; otherwise NaN. */
static double number_of(core_state *state, PyObject *value)
{
    tensor_view view;
    tp_stats stats;
    double number = Py_NAN;
    if (value == NULL) {
        return number;
    }
    if (tensor_type_kind(state, Py_TYPE(value)) == TYPE_OTHER) {
        const bool is_number = PyFloat_Check(value) || PyLong_Check(value);
        number = is_number ? PyFloat_AsDouble(value) : Py_NAN;
        core_clear_error(); /* an integer may be too large */
    } else if (tensor_view_open_any(state, value, &view)) {
        if (view.why == NULL && tp_stats_compute(&view.data, 0, &stats) == TP_OK &&
            stats.count == 1) {
            number = stats.min;
        }
        tensor_view_close(&view);
    }
    return number;
}

static adam_group group_of(core_state *state, PyObject *group)
{
    adam_group found = {Py_NAN, Py_NAN, Py_NAN, Py_NAN};
    PyObject *betas = PyDict_GetItemString(group, "betas");
    if (betas != NULL && PySequence_Check(betas) && PySequence_Size(betas) == 2) {
        PyObject *first = PySequence_GetItem(betas, 0);
        PyObject *second = PySequence_GetItem(betas, 1);
        found.beta1 = number_of(state, first);
        found.beta2 = number_of(state, second);
        Py_XDECREF(first);
        Py_XDECREF(second);
    }
    found.eps = number_of(state, PyDict_GetItemString(group, "eps"));
    found.step = number_of(state, PyDict_GetItemString(group, "step"));
    core_clear_error();
    return found;
}

/* Gives the group to those of its parameters that are watched. */
static bool set_group(optimizer_hook *hook, PyObject *list, const adam_group *group)
{
    const Py_ssize_t count = PySequence_Size(list);
    bool ok = count >= 0;
    for (Py_ssize_t i = 0; ok && i < count; i++) {
        PyObject *parameter = PySequence_GetItem(list, i);
        watched *entry = parameter == NULL ? NULL : optimizer_rows_find(hook, parameter);
        if (entry != NULL) {
            entry->group = *group;
        }
        ok = !PyErr_Occurred();
        Py_XDECREF(parameter);
    }
    return ok;
}

bool adam_take_group(optimizer_hook *hook, watched *entry)
{
    PyObject *group = optimizer_parts_get(hook, entry, PART_GROUP);
    entry->group = group != NULL && PyDict_Check(group)
                       ? group_of(hook->monitor->state, group)
                       : (adam_group){Py_NAN, Py_NAN, Py_NAN, Py_NAN};
    Py_XDECREF(group);
    return !PyErr_Occurred();
}

bool adam_begin(optimizer_hook *hook, PyObject *optimizer)
{
    PyObject *groups = PyObject_GetAttrString(optimizer, "param_groups");
    const Py_ssize_t count = groups == NULL ? -1 : PySequence_Size(groups);
    bool ok = count >= 0;
    for (Py_ssize_t i = 0; ok && i < count; i++) {
        PyObject *group = PySequence_GetItem(groups, i);
        PyObject *list =
            group == NULL || !PyDict_Check(group) ? NULL : PyDict_GetItemString(group, "params");
        if (list != NULL) {
            const adam_group terms = group_of(hook->monitor->state, group);
            ok = set_group(hook, list, &terms);
        }
        ok = ok && group != NULL;
        Py_XDECREF(group);
    }
    Py_XDECREF(groups);
    return ok;
}

/* Two tensors that are read together, with their own copies of shape and strides: another thread
 * could resize them while the GIL is released. */
typedef struct pair {
    tensor_view views[2];
    tp_tensor data[2];
    int64_t shape[2][TP_MAX_DIMS];
    int64_t strides[2][TP_MAX_DIMS];
} pair;

/* READ_OK: both are open, can be read, and have the same shape. */
static int open_pair(monitor_object *monitor, const char *name, PyObject *const tensors[2],
                     const char *other_shape, pair *out)
{
    core_state *state = monitor->state;
    int result = READ_OK;
    int opened = 0;
    for (; opened < 2; opened++) {
        if (tensor_type_kind(state, Py_TYPE(tensors[opened])) == TYPE_OTHER ||
            !tensor_view_open(state, tensors[opened], &out->views[opened])) {
            result = READ_NOTHING;
            break;
        }
    }
    for (int k = 0; result == READ_OK && k < 2; k++) {
        tensor_view *view = &out->views[k];
        if (view->why == NULL && !core_has_right_signs(state, view->tensor)) {
            view->why = "its negative bit is set";
        }
        if (view->why == NULL && k == 1) {
            const tp_tensor *a = &out->views[0].data;
            const tp_tensor *b = &view->data;
            const bool same =
                a->ndim == b->ndim &&
                (a->ndim == 0 || memcmp(a->shape, b->shape, a->ndim * sizeof(*a->shape)) == 0);
            view->why = same ? NULL : other_shape;
        }
        if (view->why != NULL) {
            result = monitor_unreadable(monitor, view, name) ? READ_NOTHING : READ_FAILED;
        } else if (view->data.ndim > TP_MAX_DIMS) {
            result = READ_NOTHING;
        }
    }
    for (int k = 0; result == READ_OK && k < 2; k++) {
        const tp_tensor *data = &out->views[k].data;
        out->data[k] = *data;
        if (data->ndim > 0) {
            memcpy(out->shape[k], data->shape, data->ndim * sizeof(*data->shape));
            out->data[k].shape = out->shape[k];
        }
        if (data->ndim > 0 && data->strides != NULL) {
            memcpy(out->strides[k], data->strides, data->ndim * sizeof(*data->strides));
            out->data[k].strides = out->strides[k];
        }
    }
    while (result != READ_OK && opened-- > 0) {
        tensor_view_close(&out->views[opened]);
    }
    return result;
}

static void close_pair(pair *open)
{
    tensor_view_close(&open->views[1]);
    tensor_view_close(&open->views[0]);
}

typedef tp_status (*pair_function)(const tp_tensor *first, const tp_tensor *second, void *context);

/* Calls the function with the pair, with the GIL released when it is big. */
static int read_pair(monitor_object *monitor, const char *name, pair *open, pair_function function,
                     void *context)
{
    tp_status status;
    if (open->views[0].bytes < RELEASE_GIL_BYTES) {
        status = function(&open->data[0], &open->data[1], context);
    } else {
        PyObject *kept[2] = {Py_NewRef(open->views[0].tensor), Py_NewRef(open->views[1].tensor)};
        monitor->users++;
        Py_BEGIN_ALLOW_THREADS;
        status = function(&open->data[0], &open->data[1], context);
        Py_END_ALLOW_THREADS;
        monitor->users--;
        Py_DECREF(kept[0]);
        Py_DECREF(kept[1]);
    }
    if (status != TP_OK) {
        PyErr_Format(PyExc_RuntimeError, "%s: %s", name, tp_status_name(status));
        return READ_FAILED;
    }
    return monitor_is_active(monitor) ? READ_OK : READ_NOTHING;
}

typedef struct update_job {
    tp_adam_options options;
    tp_stats update;
    tp_stats ratio;
} update_job;

static tp_status compute_update(const tp_tensor *first, const tp_tensor *second, void *context)
{
    update_job *job = context;
    return tp_adam_compute(first, second, &job->options, &job->update, &job->ratio);
}

static bool record_both(optimizer_hook *hook, watched *entry, const pair *open,
                        const update_job *job)
{
    const bool wide = open->data[0].dtype == TP_F64 || open->data[1].dtype == TP_F64;
    reading values;
    reading_begin(&values, wide ? TP_F64 : TP_F32, open->data[0].ndim, open->shape[0]);
    values.stats = job->update;
    values.histogram = &job->options.update;
    if (!optimizer_hook_record_rows(hook, entry, &values, ADAM_UPDATE, 0)) {
        return false;
    }
    values.stats = job->ratio;
    values.histogram = &job->options.ratio;
    return optimizer_hook_record_rows(hook, entry, &values, ADAM_RATIO, 0);
}

bool adam_record_update(optimizer_hook *hook, watched *entry, PyObject *state)
{
    monitor_object *monitor = hook->monitor;
    const adam_group *group = &entry->group;
    PyObject *const moments[] = {PyDict_GetItemWithError(state, monitor->state->name_exp_avg),
                                 PyDict_GetItemWithError(state, monitor->state->name_exp_avg_sq)};
    if (moments[0] == NULL || moments[1] == NULL) {
        return !PyErr_Occurred();
    }
    PyObject *own_step = PyDict_GetItemString(state, "step");
    const double step = own_step != NULL ? number_of(monitor->state, own_step) : group->step;
    const bool is_adam = group->beta1 >= 0.0 && group->beta1 < 1.0 && group->beta2 >= 0.0 &&
                         group->beta2 < 1.0 && group->eps >= 0.0;
    if (!is_adam || !(step >= 1.0)) {
        return true;
    }
    pair open;
    const int found = open_pair(monitor, entry->name, moments,
                                "its exp_avg and exp_avg_sq have different shapes", &open);
    if (found != READ_OK) {
        return found == READ_NOTHING;
    }
    uint64_t bins[2][BINS];
    update_job job;
    tp_adam_options_defaults(&job.options);
    job.options.beta1 = group->beta1;
    job.options.beta2 = group->beta2;
    job.options.eps = group->eps;
    job.options.step = step;
    job.options.update.bins = bins[0];
    job.options.ratio.bins = bins[1];
    job.options.update.eps = monitor->config->eps;
    job.options.ratio.eps = monitor->config->eps;
    const int result = read_pair(monitor, entry->name, &open, compute_update, &job);
    const bool ok =
        result == READ_OK ? record_both(hook, entry, &open, &job) : result == READ_NOTHING;
    close_pair(&open);
    return ok;
}

static tp_status compute_direction(const tp_tensor *first, const tp_tensor *second, void *context)
{
    return tp_agreement_compute(first, second, context);
}

bool adam_record_direction(optimizer_hook *hook, watched *entry, PyObject *state,
                           PyObject *gradient)
{
    monitor_object *monitor = hook->monitor;
    PyObject *const tensors[] = {gradient,
                                 PyDict_GetItemWithError(state, monitor->state->name_exp_avg)};
    if (tensors[1] == NULL || gradient == Py_None) {
        return !PyErr_Occurred();
    }
    pair open;
    tp_agreement agreement;
    int result = open_pair(monitor, entry->name, tensors,
                           "its gradient and exp_avg have different shapes", &open);
    if (result != READ_OK) {
        return result == READ_NOTHING;
    }
    result = read_pair(monitor, entry->name, &open, compute_direction, &agreement);
    close_pair(&open);
    if (result != READ_OK) {
        return result == READ_NOTHING;
    }
    const double direction = tp_agreement_direction(&agreement);
    const tp_tensor number = {.data = &direction, .dtype = TP_F64};
    reading values;
    reading_begin(&values, TP_F64, 0, NULL);
    return tp_stats_compute(&number, monitor->config->eps, &values.stats) == TP_OK &&
           optimizer_hook_record_rows(hook, entry, &values, DIRECTION, 0);
}

/* Has a watched parameter this in its state? */
static bool is_kept(const optimizer_hook *hook, PyObject *states, PyObject *name)
{
    for (uint32_t i = 0; i < hook->count; i++) {
        PyObject *own = PyDict_GetItemWithError(states, hook->parameters[i].parameter);
        if (own != NULL && PyDict_Check(own) && PyDict_GetItemWithError(own, name) != NULL) {
            return true;
        }
    }
    return false;
}

static void warn(const char *field, PyObject *optimizer, const char *missing)
{
    PyObject *type = PyType_GetName(Py_TYPE(optimizer));
    if (type != NULL) {
        core_warn("tensorprobe: %s: %U keeps no %s for the watched parameters: nothing is recorded "
                  "of it",
                  field, type, missing);
    } else {
        monitor_clear_error();
    }
    Py_XDECREF(type);
}

bool adam_check(optimizer_hook *hook, PyObject *optimizer)
{
    const core_state *state = hook->monitor->state;
    const bool update = hook->monitor->config->ur_distribution;
    const bool direction = hook->monitor->config->mg_direction;
    if (hook->checked || hook->count == 0 || hook->locate != NULL || !(update || direction)) {
        return true;
    }
    hook->checked = true;
    PyObject *states = PyObject_GetAttr(optimizer, state->name_state);
    if (states == NULL) {
        return false;
    }
    hook->busy++;
    if (PyDict_Check(states)) {
        const bool first = is_kept(hook, states, state->name_exp_avg);
        const bool second = is_kept(hook, states, state->name_exp_avg_sq);
        if (update && !(first && second)) {
            warn("ur_distribution", optimizer, "exp_avg and exp_avg_sq");
        }
        if (direction && !first) {
            warn("mg_direction", optimizer, "exp_avg");
        }
    }
    hook->busy--;
    Py_DECREF(states);
    return !PyErr_Occurred();
}
