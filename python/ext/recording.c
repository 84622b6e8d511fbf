#include "recording.h"

#include <string.h>

#include "stats/split.h"

/* Several elements, one behind the other. */
static bool is_dense(const tp_tensor *data)
{
    int64_t count = 1;
    for (uint32_t i = data->ndim; i-- > 0;) {
        if (data->shape[i] != 1 && data->strides != NULL && data->strides[i] != count) {
            return false;
        }
        count *= data->shape[i];
    }
    return count > 1;
}

/* In memory such a view has the other sign. Only views made by conj().imag and the like: between
 * two of its elements is a real part. That is seen sooner than torch answers. */
static int is_negative_view(core_state *state, const tensor_view *view)
{
    if (view->is_plain || is_dense(&view->data)) {
        return 0;
    }
    PyObject *answer = PyObject_CallFunctionObjArgs(state->is_neg, view->tensor, NULL);
    if (answer == NULL) {
        return -1;
    }
    const bool yes = answer == Py_True;
    Py_DECREF(answer);
    return yes;
}

/* The statistics of −x. */
static void change_signs(tp_stats *stats)
{
    const tp_stats of_x = *stats;
    stats->pos_inf = of_x.neg_inf;
    stats->neg_inf = of_x.pos_inf;
    stats->min = -of_x.max;
    stats->max = -of_x.min;
    stats->finite_min = -of_x.finite_max;
    stats->finite_max = -of_x.finite_min;
    stats->sum = -of_x.sum;
}

int64_t reading_version(core_state *state, PyObject *tensor)
{
    PyObject *number = PyObject_GetAttr(tensor, state->name_version);
    const int64_t version = number == NULL ? -1 : PyLong_AsLongLong(number);
    Py_XDECREF(number);
    core_clear_error(); /* inference tensors have none: they are read every time */
    return version;
}

/* A big tensor is read with the GIL released. The view's shape and strides belong to the tensor,
 * which another thread could resize meanwhile: work on copies and hold the tensor. */
static tp_status compute_released(monitor_object *monitor, const tensor_view *view,
                                  const tp_stats_options *options, tp_stats *stats)
{
    int64_t shape[TP_MAX_DIMS];
    int64_t strides[TP_MAX_DIMS];
    tp_tensor copy = view->data;
    memcpy(shape, copy.shape, copy.ndim * sizeof(*shape));
    copy.shape = shape;
    if (copy.strides != NULL) {
        memcpy(strides, copy.strides, copy.ndim * sizeof(*strides));
        copy.strides = strides;
    }
    tp_status status = TP_OK;
    PyObject *tensor = view->tensor;
    Py_INCREF(tensor);
    monitor->users++;
    Py_BEGIN_ALLOW_THREADS;
    status = tp_stats_compute_with(&copy, options, stats);
    Py_END_ALLOW_THREADS;
    monitor->users--;
    Py_DECREF(tensor);
    return status;
}

uint32_t reading_threads(core_state *state)
{
    const int64_t threads = core_call_int(state->get_num_threads);
    core_clear_error();
    return threads > 1 && threads <= UINT32_MAX ? (uint32_t)threads : 1;
}

static tp_status compute(monitor_object *monitor, const tensor_view *view, reading *out)
{
    const uint64_t bytes = view->bytes;
    tp_stats *stats = &out->stats;
    tp_stats_options options = {.eps = monitor->config->eps,
                                .exponents = out->has_exponents ? &out->exponents : NULL,
                                .threads = 1};
    if (bytes >= TP_SPLIT_BYTES) {
        options.threads = reading_threads(monitor->state);
    }
    return bytes >= RELEASE_GIL_BYTES ? compute_released(monitor, view, &options, stats)
                                      : tp_stats_compute_with(&view->data, &options, stats);
}

/* Bins from a list of them, whatever their signs. False: an error is set. */
static bool take_bins(PyObject *list, tp_exponents *out)
{
    memset(out, 0, sizeof(*out));
    for (Py_ssize_t i = 0; i < TP_EXPONENT_BINS; i++) {
        PyObject *count = PyList_GetItem(list, i);
        out->positive[i] = count == NULL ? 0 : PyLong_AsUnsignedLongLong(count);
    }
    return !PyErr_Occurred();
}

/* The same by torch operations, wherever the tensor is. False: an error is set. */
static bool compute_by_torch(monitor_object *monitor, const tensor_view *view, reading *out)
{
    core_state *state = monitor->state;
    tp_stats *stats = &out->stats;
    const double eps = monitor->config->eps;
    if (state->torch_stats == NULL) {
        PyObject *module = PyImport_ImportModule("tensorprobe._torch_stats");
        state->torch_stats = module == NULL ? NULL : PyObject_GetAttrString(module, "read");
        Py_XDECREF(module);
        if (state->torch_stats == NULL) {
            return false;
        }
    }
    PyObject *tensor = Py_NewRef(view->inner != NULL ? view->inner : view->tensor);
    monitor->users++;
    PyObject *hidden = core_hide_from_dispatch(state);
    PyObject *found =
        PyObject_CallFunction(state->torch_stats, "Odi", tensor, eps, (int)out->has_exponents);
    core_show(hidden);
    monitor->users--;
    Py_DECREF(tensor);
    PyObject *fields = NULL;
    PyObject *bins = NULL;
    unsigned long long counts[7];
    long long exp = 0;
    const bool ok =
        found != NULL && PyArg_ParseTuple(found, "OO", &fields, &bins) &&
        PyArg_ParseTuple(fields, "KKKKKKdddddKddddL", &counts[0], &counts[1], &counts[2],
                         &counts[3], &counts[4], &counts[5], &stats->min, &stats->max,
                         &stats->finite_min, &stats->finite_max, &stats->abs_max, &counts[6],
                         &stats->sum, &stats->sum_abs, &stats->sum_sq, &stats->m2, &exp) &&
        (!out->has_exponents || take_bins(bins, &out->exponents));
    Py_XDECREF(found);
    stats->count = counts[0];
    stats->nan = counts[1];
    stats->pos_inf = counts[2];
    stats->neg_inf = counts[3];
    stats->zeros = counts[4];
    stats->subnormal = counts[5];
    stats->abs_max_index = counts[6];
    stats->sq_exp = exp;
    return ok;
}

void reading_begin(reading *out, uint32_t dtype, uint32_t ndim, const int64_t *shape)
{
    out->entry = NULL;
    out->histogram = NULL;
    out->has_exponents = false;
    out->dtype = dtype;
    out->ndim = ndim;
    out->shape = shape;
    out->data = NULL;
}

int reading_take(monitor_object *monitor, const tensor_view *view, bool remember, uint32_t quantity,
                 const char *name, reading *out)
{
    reading_begin(out, view->data.dtype, view->data.ndim, view->data.shape);
    if (!monitor_is_active(monitor)) {
        return READ_NOTHING; /* another thread closed the monitor while the last tensor was read */
    }
    if (view->why != NULL && !view->on_device) {
        return monitor_unreadable(monitor, view, name) ? READ_NOTHING : READ_FAILED;
    }
    out->data = view->on_device ? NULL : &view->data;
    const bool by_torch = view->on_device || monitor->config->device_path == TP_DEVICE_PATH_TORCH;
    if (by_torch || view->bytes > QUICK_BYTES) {
        monitor->is_busy = true;
        monitor->is_fresh = false;
    }

    int64_t version = -1;
    if (remember) {
        version = reading_version(monitor->state, view->tensor);
        out->entry = version < 0 ? NULL : memo_find(&monitor->memo, view->tensor, version);
        if (out->entry != NULL) {
            out->stats = out->entry->stats;
            return READ_OK;
        }
    }
    const int negative = by_torch ? 0 : is_negative_view(monitor->state, view);
    if (negative < 0) {
        return READ_FAILED;
    }
    out->has_exponents = reading_wants_exponents(monitor, quantity);
    if (by_torch) {
        if (!compute_by_torch(monitor, view, out)) {
            return READ_FAILED;
        }
    } else {
        const tp_status status = compute(monitor, view, out);
        if (status != TP_OK) {
            PyErr_Format(PyExc_RuntimeError, "%s: %s", name, tp_status_name(status));
            return READ_FAILED;
        }
    }
    if (negative) {
        change_signs(&out->stats);
    }
    if (monitor->is_busy && !monitor_is_active(monitor)) {
        return READ_NOTHING; /* another thread began to close the monitor meanwhile */
    }
    if (version >= 0) {
        out->entry = memo_add(&monitor->memo, view->tensor, version, &out->stats);
    }
    return READ_OK;
}

bool reading_of_number(const monitor_object *monitor, PyObject *number, reading *out)
{
    const double value = PyFloat_AsDouble(number);
    const tp_tensor tensor = {.data = &value, .dtype = TP_F64};
    reading_begin(out, TP_F64, 0, NULL);
    if (value == -1.0 && PyErr_Occurred()) {
        return false;
    }
    const tp_status status = tp_stats_compute(&tensor, monitor->config->eps, &out->stats);
    if (status != TP_OK) {
        PyErr_Format(PyExc_RuntimeError, "a number: %s", tp_status_name(status));
    }
    return status == TP_OK;
}

bool site_define(monitor_object *monitor, site *place, const tp_key *key)
{
    if (!place->has_key) {
        place->has_key =
            tp_registry_add_key(tp_monitor_registry(monitor->monitor), key, &place->key) == TP_OK;
    }
    if (!place->has_key) {
        PyErr_NoMemory();
    }
    return place->has_key;
}

bool site_define_shape(monitor_object *monitor, site *place, uint32_t ndim, const int64_t *shape)
{
    const size_t size = ndim * sizeof(*shape);
    const tp_status status =
        tp_registry_add_shape(tp_monitor_registry(monitor->monitor), ndim, shape, &place->shape);
    place->has_shape = status == TP_OK && ndim <= SITE_DIMS;
    place->ndim = ndim;
    if (place->has_shape && size > 0) {
        memcpy(place->dims, shape, size);
    }
    return status == TP_OK;
}

/* What the record gets beside its statistics. Records of the same tensor share it: the output of a
 * module is the input of the next. */
static void add_beside(tp_step *step, tp_record *slot, const reading *values, bool is_broken)
{
    memo_entry *entry = values->entry;
    const uint64_t begin_ns = tp_step_header(step)->begin_ns;
    if (entry != NULL && entry->step == step && entry->begin_ns == begin_ns) {
        slot->flags |= entry->flags;
        slot->arena = entry->arena;
        return;
    }
    if (is_broken && values->data != NULL) {
        tp_step_add_element(step, slot, values->data);
    }
    if (values->has_exponents) {
        tp_step_add_exponents(step, slot, &values->exponents); /* the record is good without it */
    }
    if (entry != NULL && values->histogram == NULL) {
        entry->step = step;
        entry->begin_ns = begin_ns;
        entry->arena = slot->arena;
        entry->flags = slot->flags;
    }
}

bool reading_record(monitor_object *monitor, const reading *values, site *place,
                    uint32_t micro_step, uint32_t call)
{
    if (!site_has_shape(place, values->ndim, values->shape) &&
        !site_define_shape(monitor, place, values->ndim, values->shape)) {
        PyErr_NoMemory();
        return false;
    }
    const uint64_t now = monitor->is_fresh ? monitor->clock.last : monitor_now(monitor);
    monitor->is_fresh = false;
    /* Where nobody ends the step meanwhile, no lock is needed. */
    tp_step *step = monitor->step;
    const bool is_alone = step != NULL;
    tp_record *slot = is_alone ? tp_step_take(step, place->key, now)
                               : tp_monitor_reserve(monitor->monitor, place->key, now, &step);
    if (slot == NULL) {
        PyErr_NoMemory();
        return false;
    }
    slot->micro_step = micro_step;
    slot->call = call;
    slot->kind = TP_RECORD_STATS;
    slot->dtype = values->dtype;
    slot->shape = place->shape;
    slot->u.stats = values->stats;
    if (values->histogram != NULL) {
        tp_step_add_histogram(step, slot, values->histogram); /* without it the record is good */
    }
    const tp_stats *stats = &values->stats;
    const bool is_broken = (stats->nan | stats->pos_inf | stats->neg_inf) != 0;
    if ((is_broken && values->data != NULL) || values->has_exponents ||
        (values->entry != NULL && values->entry->step != NULL)) {
        add_beside(step, slot, values, is_broken);
    }
    if (is_alone) {
        tp_step_give(slot);
    } else {
        tp_step_fill(step, slot);
    }
    return true;
}
