#include "optimizer_rows.h"

#include <string.h>

#include "base/mem.h"
#include "collection.h"
#include "recording.h"
#include "spans.h"

static const uint32_t quantities[SERIES] = {TP_GRAD_UNREDUCED, TP_GRAD_REDUCED, TP_EXP_AVG,
                                            TP_EXP_AVG_SQ,     TP_PARAM_ORIGIN, TP_PARAM_UPDATED,
                                            TP_ADAM_UPDATE,    TP_ADAM_RATIO,   TP_MG_DIRECTION};

uint32_t optimizer_rows_quantity(int series)
{
    return quantities[series];
}

int optimizer_rows_series(uint32_t quantity)
{
    for (int series = 0; series < SERIES; series++) {
        if (quantities[series] == quantity) {
            return series;
        }
    }
    return -1;
}

void optimizer_rows_free(watched *parameters, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        Py_XDECREF(parameters[i].parameter);
        tp_free(parameters[i].name);
        tp_free(parameters[i].global_name);
        tp_free(parameters[i].span);
        tp_free(parameters[i].local_span);
    }
    tp_free(parameters);
}

/* Tied weights have a row for each of their names: chains them, so that they are read once. last:
 * a dict, address of the parameter, span and place in the parameter → its latest row. */
static bool chain_names(optimizer_hook *hook, PyObject *last, PyObject *span, PyObject *place)
{
    const uint32_t own = hook->count - 1;
    PyObject *identity =
        Py_BuildValue("(NOO)", PyLong_FromVoidPtr(hook->parameters[own].parameter),
                      span == NULL ? Py_None : span, place == NULL ? Py_None : place);
    PyObject *number = PyLong_FromUnsignedLong(own);
    PyObject *before =
        identity == NULL || number == NULL ? NULL : PyDict_GetItemWithError(last, identity);
    if (before != NULL) {
        hook->parameters[PyLong_AsUnsignedLong(before)].next = own;
        hook->parameters[own].is_alias = true;
    }
    const bool ok = !PyErr_Occurred() && PyDict_SetItem(last, identity, number) == 0;
    Py_XDECREF(identity);
    Py_XDECREF(number);
    return ok;
}

static bool take_row(optimizer_hook *hook, PyObject *row, PyObject *last)
{
    PyObject *name = NULL;
    PyObject *parameter = NULL;
    PyObject *span = NULL;
    PyObject *global_name = NULL;
    PyObject *local_span = NULL;
    int vpp_stage = 0;
    PyObject *place = NULL;
    int absent = 0;
    int duplicate = 0;
    if (!PyArg_ParseTuple(row, "UOi|OOOppO", &name, &parameter, &vpp_stage, &span, &global_name,
                          &local_span, &absent, &duplicate, &place)) {
        return false;
    }
    watched *entry = &hook->parameters[hook->count++];
    entry->vpp_stage = vpp_stage;
    entry->absent = absent;
    entry->duplicate = duplicate;
    entry->parameter = Py_NewRef(parameter);
    entry->name = core_name(name);
    if (global_name != NULL && global_name != Py_None) {
        entry->global_name = core_name(global_name);
    }
    entry->named = entry->name != NULL && collection_is_named(hook->monitor, entry->name);
    hook->names |= entry->named;
    return !PyErr_Occurred() && entry->name != NULL &&
           (span == NULL || span_from_python(span, &entry->span)) &&
           (local_span == NULL || span_from_python(local_span, &entry->local_span)) &&
           chain_names(hook, last, span, place);
}

bool optimizer_rows_take(optimizer_hook *hook, PyObject *rows)
{
    const Py_ssize_t count = PyList_Size(rows);
    if (count < 0) {
        return false;
    }
    hook->parameters = tp_calloc(count == 0 ? 1 : (size_t)count, sizeof(*hook->parameters));
    if (hook->parameters == NULL) {
        PyErr_NoMemory();
        return false;
    }
    PyObject *last = PyDict_New();
    bool ok = last != NULL;
    hook->names = false;
    for (Py_ssize_t i = 0; ok && i < count; i++) {
        ok = take_row(hook, PyList_GetItem(rows, i), last);
    }
    Py_XDECREF(last);
    return ok;
}

/* Address of each parameter → the number of its row. */
static bool find_rows(optimizer_hook *hook)
{
    hook->rows = PyDict_New();
    bool ok = hook->rows != NULL;
    for (uint32_t i = 0; ok && i < hook->count; i++) {
        PyObject *address = PyLong_FromVoidPtr(hook->parameters[i].parameter);
        PyObject *number = PyLong_FromUnsignedLong(i);
        ok = address != NULL && number != NULL &&
             (hook->parameters[i].is_alias || PyDict_SetItem(hook->rows, address, number) == 0);
        Py_XDECREF(address);
        Py_XDECREF(number);
    }
    return ok;
}

watched *optimizer_rows_find(optimizer_hook *hook, PyObject *parameter)
{
    if (hook->rows == NULL && !find_rows(hook)) {
        return NULL;
    }
    PyObject *address = PyLong_FromVoidPtr(parameter);
    PyObject *number = address == NULL ? NULL : PyDict_GetItemWithError(hook->rows, address);
    watched *found = number == NULL ? NULL : &hook->parameters[PyLong_AsUnsignedLong(number)];
    Py_XDECREF(address);
    return found;
}

bool optimizer_hook_record_rows(optimizer_hook *hook, watched *entry, const reading *values,
                                int series, uint32_t micro_step)
{
    bool ok = true;
    if (series == REDUCED && (entry->span == NULL || entry->span->copy == 0)) {
        const double norm = tp_stats_norm(&values->stats);
        hook->reduced_sq += norm * norm;
    }
    for (watched *row = entry; ok && row != NULL;) {
        site *place = &row->series[series];
        const tp_key key = {.name = row->name,
                            .global_name = row->global_name,
                            .vpp_stage = row->vpp_stage,
                            .slot = -1,
                            .quantity = quantities[series],
                            .role = TP_ROLE_NONE,
                            .span = series == UNREDUCED ? row->local_span : row->span};
        ok = site_define(hook->monitor, place, &key) &&
             reading_record(hook->monitor, values, place, micro_step, 0);
        row = row->next == 0 ? NULL : &hook->parameters[row->next];
    }
    return ok;
}
