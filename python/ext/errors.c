#include "errors.h"

#include <string.h>

void errors_raise(const core_state *state, const tp_error *error)
{
    char text[1024];
    tp_error_format(error, text, sizeof(text));
    if (error->code == TP_ERR_NOMEM) {
        PyErr_NoMemory();
        return;
    }
    PyObject *kind = error->code == TP_ERR_CONFIG     ? state->config_error
                     : error->code == TP_ERR_ARGUMENT ? PyExc_ValueError
                     : error->code == TP_ERR_NOTFOUND ? PyExc_FileNotFoundError
                                                      : PyExc_OSError;
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "surrogateescape");
    PyObject *raised = message == NULL ? NULL : PyObject_CallFunctionObjArgs(kind, message, NULL);
    Py_XDECREF(message);
    if (raised == NULL) {
        return;
    }
    if (error->code == TP_ERR_CONFIG) {
        PyObject *values[] = {
            PyUnicode_DecodeFSDefault(error->file), PyLong_FromUnsignedLong(error->line),
            PyLong_FromUnsignedLong(error->column), PyUnicode_FromString(error->field)};
        const char *names[] = {"file", "line", "column", "field"};
        for (int i = 0; i < 4; i++) {
            if (values[i] == NULL || PyObject_SetAttrString(raised, names[i], values[i]) != 0) {
                PyErr_Clear();
            }
            Py_XDECREF(values[i]);
        }
    }
    PyErr_SetObject(kind, raised);
    Py_DECREF(raised);
}
