#include "spans.h"

#include <string.h>

#include "base/mem.h"

static const char *const kinds[] = {
    [TP_SPAN_WHOLE] = "whole", [TP_SPAN_FLAT] = "flat", [TP_SPAN_BOX] = "box"};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

typedef struct owned_span {
    tp_span span;
    tp_range ranges[];
} owned_span;

static bool take_range(PyObject *value, tp_range *out)
{
    long long start;
    long long length;
    long long full;
    if (!PyTuple_Check(value) || !PyArg_ParseTuple(value, "LLL", &start, &length, &full)) {
        PyErr_SetString(PyExc_TypeError, "a range is (start, length, full)");
        return false;
    }
    if (start < 0 || length < 0 || full < length || start > full - length) {
        PyErr_Format(PyExc_ValueError, "%lld elements from %lld on are no range of %lld", length,
                     start, full);
        return false;
    }
    *out = (tp_range){start, length, full};
    return true;
}

bool span_from_python(PyObject *value, tp_span **out)
{
    const char *kind;
    PyObject *ranges;
    unsigned int copies;
    unsigned int copy;
    *out = NULL;
    if (value == Py_None) {
        return true;
    }
    if (!PyTuple_Check(value) || !PyArg_ParseTuple(value,
                                                   "sO!II;a span is (kind, ranges, copies, "
                                                   "copy)",
                                                   &kind, &PyTuple_Type, &ranges, &copies, &copy)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "a span is None or (kind, ranges, copies, copy)");
        }
        return false;
    }
    uint32_t number = 0;
    while (number < KINDS && strcmp(kinds[number], kind) != 0) {
        number++;
    }
    const Py_ssize_t count = PyTuple_Size(ranges);
    const bool fits = number == TP_SPAN_BOX || count == (number == TP_SPAN_FLAT ? 1 : 0);
    if (number == KINDS || count > TP_MAX_DIMS || !fits) {
        PyErr_Format(PyExc_ValueError, "no span is '%s' with %zd ranges", kind, count);
        return false;
    }
    owned_span *made = tp_calloc(1, sizeof *made + (size_t)count * sizeof made->ranges[0]);
    if (made == NULL) {
        PyErr_NoMemory();
        return false;
    }
    made->span = (tp_span){number, (uint32_t)count, copies, copy, made->ranges};
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!take_range(PyTuple_GetItem(ranges, i), &made->ranges[i])) {
            tp_free(made);
            return false;
        }
    }
    *out = &made->span;
    return true;
}

PyObject *span_to_python(const tp_span *span)
{
    if (span == NULL) {
        return Py_NewRef(Py_None);
    }
    PyObject *ranges = PyTuple_New((Py_ssize_t)span->ndim);
    for (uint32_t i = 0; ranges != NULL && i < span->ndim; i++) {
        const tp_range *range = &span->ranges[i];
        PyObject *one = Py_BuildValue("(LLL)", (long long)range->start, (long long)range->length,
                                      (long long)range->full);
        if (one == NULL || PyTuple_SetItem(ranges, (Py_ssize_t)i, one) != 0) {
            Py_CLEAR(ranges);
        }
    }
    return ranges == NULL ? NULL
                          : Py_BuildValue("(sNII)", span->kind < KINDS ? kinds[span->kind] : "",
                                          ranges, span->copies, span->copy);
}
