#include "metrics.h"

#include <string.h>

#include "recording.h"

#define MAX_ROW 4096

PyObject *metrics_op_names(const uint32_t *ops, uint32_t count)
{
    PyObject *names = PyList_New(0);
    for (uint32_t i = 0; names != NULL && i < count; i++) {
        PyObject *name = PyUnicode_FromString(tp_op_name(ops[i]));
        if (name == NULL || PyList_Append(names, name) != 0) {
            Py_CLEAR(names);
        }
        Py_XDECREF(name);
    }
    return names;
}

static bool add_op(PyObject *name, uint32_t *ops, uint32_t *count)
{
    const char *text =
        name == NULL || !PyUnicode_Check(name) ? NULL : PyUnicode_AsUTF8AndSize(name, NULL);
    const uint32_t op = text == NULL ? 0 : tp_op_from_name(text);
    if (op == 0) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError,
                     "ops: %R is not one of norm, min, max, mean, zeros, nans, id, shape, dtype",
                     name == NULL ? Py_None : name);
        return false;
    }
    for (uint32_t i = 0; i < *count; i++) {
        if (ops[i] == op) {
            return true;
        }
    }
    ops[(*count)++] = op;
    return true;
}

bool metrics_set_ops(monitor_object *monitor, PyObject *names)
{
    uint32_t ops[TP_OP_COUNT] = {TP_OP_NORM};
    uint32_t count = 0;
    if (names == NULL || !(PyList_Check(names) || PyTuple_Check(names))) {
        PyErr_SetString(PyExc_TypeError, "ops is a list, as in [\"norm\", \"min\", \"max\"]");
        return false;
    }
    const Py_ssize_t size = PySequence_Size(names);
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *name = PySequence_GetItem(names, i);
        const bool ok = add_op(name, ops, &count);
        Py_XDECREF(name);
        if (!ok) {
            return false;
        }
    }
    count = count == 0 ? 1 : count;
    if (monitor_is_active(monitor)) {
        if (tp_monitor_set_ops(monitor->monitor, ops, count) != TP_OK) {
            PyErr_NoMemory();
            return false;
        }
        monitor->config = tp_monitor_config(monitor->monitor);
    }
    memcpy(monitor->ops, ops, sizeof(ops));
    monitor->op_count = count;
    return true;
}

static PyObject *shape_of(uint32_t ndim, const int64_t *dims)
{
    PyObject *shape = PyTuple_New((Py_ssize_t)ndim);
    for (uint32_t i = 0; shape != NULL && i < ndim; i++) {
        PyObject *length = PyLong_FromLongLong(dims[i]);
        if (length == NULL || PyTuple_SetItem(shape, (Py_ssize_t)i, length) != 0) {
            Py_CLEAR(shape);
        }
    }
    return shape;
}

static PyObject *value_of(uint32_t op, const tp_stats *stats, uint32_t dtype, uint32_t ndim,
                          const int64_t *dims)
{
    switch (op) {
    case TP_OP_NANS:
        return PyLong_FromUnsignedLongLong(stats->nan);
    case TP_OP_SHAPE:
        return shape_of(ndim, dims);
    case TP_OP_DTYPE:
        return PyUnicode_FromString(tp_dtype_name(dtype));
    case TP_OP_ID:
        return ndim > 0 ? Py_NewRef(Py_None) : PyFloat_FromDouble(tp_stats_op(stats, op));
    default:
        return PyFloat_FromDouble(tp_stats_op(stats, op));
    }
}

static PyObject *values_of(const monitor_object *monitor, const tp_stats *stats, uint32_t dtype,
                           uint32_t ndim, const int64_t *dims)
{
    PyObject *values = PyDict_New();
    for (uint32_t i = 0; values != NULL && i < monitor->op_count; i++) {
        PyObject *value = value_of(monitor->ops[i], stats, dtype, ndim, dims);
        if (value == NULL ||
            PyDict_SetItemString(values, tp_op_name(monitor->ops[i]), value) != 0) {
            Py_CLEAR(values);
        }
        Py_XDECREF(value);
    }
    return values;
}

PyObject *metrics_of(monitor_object *monitor, PyObject *tensor, const char *name)
{
    tensor_view view;
    if (tensor_type_kind(monitor->state, Py_TYPE(tensor)) == TYPE_OTHER ||
        !tensor_view_open(monitor->state, tensor, &view)) {
        Py_RETURN_NONE;
    }
    reading found;
    const int result = reading_take(monitor, &view, false, 0, name, &found);
    PyObject *values = result == READ_FAILED ? NULL : Py_NewRef(Py_None);
    if (result == READ_OK) {
        Py_DECREF(values);
        values = values_of(monitor, &found.stats, found.dtype, found.ndim, found.shape);
    }
    tensor_view_close(&view);
    return values;
}

static PyObject *row_of(const monitor_object *monitor, const tp_record *record, const tp_key *key)
{
    char name[MAX_ROW];
    uint32_t ndim = 0;
    const int64_t *dims =
        tp_registry_shape(tp_monitor_registry(monitor->monitor), record->shape, &ndim);
    PyObject *values = values_of(monitor, &record->u.stats, record->dtype, ndim, dims);
    if (values == NULL) {
        return NULL;
    }
    tp_row_name(key, record->call, name, sizeof(name));
    return Py_BuildValue("IisIN", key->quantity, key->vpp_stage, name, record->micro_step, values);
}

PyObject *metrics_of_step(monitor_object *monitor)
{
    tp_batch batch;
    if (tp_monitor_view(monitor->monitor, &batch) != TP_OK) {
        return PyErr_NoMemory();
    }
    const tp_registry *registry = tp_monitor_registry(monitor->monitor);
    PyObject *rows = PyList_New(0);
    for (uint64_t i = 0; rows != NULL && i < batch.count; i++) {
        const tp_record *record = &batch.records[i];
        const tp_key *key = tp_registry_key(registry, record->key);
        if (record->state != TP_SLOT_DONE || record->kind != TP_RECORD_STATS ||
            (key->quantity != TP_ACTIVATION && key->quantity != TP_ACTIVATION_GRAD)) {
            continue;
        }
        PyObject *row = row_of(monitor, record, key);
        if (row == NULL || PyList_Append(rows, row) != 0) {
            Py_CLEAR(rows);
        }
        Py_XDECREF(row);
    }
    return rows;
}
