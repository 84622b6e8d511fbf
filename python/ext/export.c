/* _core.export_journal: a journal in the files of a sink, elsewhere. */
#include "monitor/export.h"
#include "core.h"
#include "monitor/follow.h"

PyObject *core_export_journal(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *journal = NULL;
    PyObject *directory = NULL;
    const char *sink;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "O&sO&:export_journal", PyUnicode_FSConverter, &journal, &sink,
                          PyUnicode_FSConverter, &directory)) {
        Py_XDECREF(journal);
        return NULL;
    }
    if (!tp_follow_is_name(sink)) {
        PyErr_Format(PyExc_ValueError, "no such sink: %s", sink);
    } else {
        tp_status status;
        tp_error error = {0};
        uint64_t steps = 0;
        Py_BEGIN_ALLOW_THREADS;
        status = tp_export_journal(PyBytes_AsString(journal), sink, PyBytes_AsString(directory),
                                   &steps, &error);
        Py_END_ALLOW_THREADS;
        result = status == TP_OK ? PyLong_FromUnsignedLongLong(steps) : core_raise(status, &error);
    }
    Py_DECREF(journal);
    Py_DECREF(directory);
    return result;
}
