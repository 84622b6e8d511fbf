#include "scalars.h"

#include <string.h>

#include "base/mem.h"
#include "recording.h"

/* One name. */
struct scalar_series {
    site place;
    uint64_t step;  /* in which calls counts, as monitor->steps_ended */
    uint32_t calls; /* how often it has been logged in that step */
};

void scalars_free(monitor_object *monitor)
{
    Py_CLEAR(monitor->scalar_numbers);
    tp_free(monitor->scalars);
    monitor->scalars = NULL;
}

/* A name that is new gets the next number. NULL: an error is set. */
static PyObject *add_series(monitor_object *monitor, PyObject *name)
{
    struct scalar_series *scalars = tp_realloc(
        monitor->scalars, ((size_t)monitor->scalar_count + 1) * sizeof(*monitor->scalars));
    if (scalars == NULL) {
        return PyErr_NoMemory();
    }
    monitor->scalars = scalars;
    memset(&scalars[monitor->scalar_count], 0, sizeof(*scalars));
    PyObject *number = PyLong_FromUnsignedLong(monitor->scalar_count);
    if (number != NULL && PyDict_SetItem(monitor->scalar_numbers, name, number) != 0) {
        Py_CLEAR(number);
    }
    monitor->scalar_count += number != NULL;
    return number;
}

/* The series of this name, with its key. NULL: an error is set. Valid until the next name. */
static struct scalar_series *find_series(monitor_object *monitor, PyObject *name)
{
    if (monitor->scalar_numbers == NULL && (monitor->scalar_numbers = PyDict_New()) == NULL) {
        return NULL;
    }
    PyObject *number = PyDict_GetItemWithError(monitor->scalar_numbers, name);
    number = number != NULL     ? Py_NewRef(number)
             : PyErr_Occurred() ? NULL
                                : add_series(monitor, name);
    if (number == NULL) {
        return NULL;
    }
    struct scalar_series *series = &monitor->scalars[PyLong_AsUnsignedLong(number)];
    Py_DECREF(number);
    if (!series->place.has_key) {
        char *text = core_name(name);
        const tp_key key = {.name = text, .slot = -1, .quantity = TP_SCALAR};
        const bool ok = text != NULL && site_define(monitor, &series->place, &key);
        tp_free(text);
        if (!ok) {
            return NULL;
        }
    }
    return series;
}

static bool record(monitor_object *monitor, PyObject *name, reading *values)
{
    struct scalar_series *series = find_series(monitor, name);
    if (series == NULL) {
        return false;
    }
    if (series->step != monitor->steps_ended) {
        series->step = monitor->steps_ended;
        series->calls = 0;
    }
    values->ndim = 0; /* a tensor of shape [1] is a number, too */
    return reading_record(monitor, values, &series->place, 0, series->calls++);
}

static bool log_number(monitor_object *monitor, PyObject *name, PyObject *value)
{
    reading values;
    return reading_of_number(monitor, value, &values) && record(monitor, name, &values);
}

static bool log_tensor(monitor_object *monitor, PyObject *name, PyObject *tensor)
{
    tensor_view view;
    reading values;
    bool ok = false;
    char *text = core_name(name);
    if (text == NULL) {
        return false;
    }
    tensor_view_open_any(monitor->state, tensor, &view);
    const int result = reading_take(monitor, &view, false, 0, text, &values);
    if (result == READ_OK && values.stats.count != 1) {
        PyErr_Format(PyExc_ValueError,
                     "log_scalar takes a number or a tensor of one element; this one has %llu",
                     (unsigned long long)values.stats.count);
    } else {
        ok = result == READ_OK ? record(monitor, name, &values) : result == READ_NOTHING;
    }
    tensor_view_close(&view);
    tp_free(text);
    return ok;
}

PyObject *scalars_log(monitor_object *monitor, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "log_scalar takes a name and a value");
        return NULL;
    }
    if (!monitor_is_collecting(monitor)) {
        Py_RETURN_NONE;
    }
    if (!PyUnicode_Check(args[0])) {
        PyErr_Format(PyExc_TypeError, "log_scalar takes a name and a value; the name is %R",
                     args[0]);
        return monitor_trouble(monitor, "log_scalar");
    }
    const uint64_t begin = monitor_now(monitor);
    const bool plain = PyFloat_Check(args[1]) || PyLong_Check(args[1]);
    bool ok = plain || core_load_torch(monitor->state) == 0;
    if (ok) {
        ok = plain || tensor_type_kind(monitor->state, Py_TYPE(args[1])) == TYPE_OTHER
                 ? log_number(monitor, args[0], args[1])
                 : log_tensor(monitor, args[0], args[1]);
    }
    PyObject *result = ok ? Py_NewRef(Py_None) : monitor_trouble(monitor, "log_scalar");
    monitor_add_time(monitor, begin);
    return result;
}
