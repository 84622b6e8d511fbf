#include "containers.h"

#define MAX_TYPES 1000 /* a program may make types without end */

static PyObject *call_of(const char *module_name, const char *name, PyObject *argument)
{
    PyObject *module = PyImport_ImportModule(module_name);
    PyObject *function = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    PyObject *result =
        function == NULL ? NULL : PyObject_CallFunctionObjArgs(function, argument, NULL);
    Py_XDECREF(function);
    Py_XDECREF(module);
    return result;
}

static int is_subclass_of(PyObject *type, const char *module_name, const char *name)
{
    PyObject *module = PyImport_ImportModule(module_name);
    PyObject *base = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    const int yes = base == NULL ? -1 : PyObject_IsSubclass(type, base);
    Py_XDECREF(base);
    Py_XDECREF(module);
    return yes;
}

/* A tuple of names: a dataclass. True: its values or items can be listed. None: no container. */
static PyObject *classify(PyObject *type)
{
    if (PyObject_HasAttrString(type, "__dataclass_fields__")) {
        PyObject *fields = call_of("dataclasses", "fields", type);
        const Py_ssize_t count = fields == NULL ? 0 : PyTuple_Size(fields);
        PyObject *names = fields == NULL ? NULL : PyTuple_New(count);
        for (Py_ssize_t i = 0; names != NULL && i < count; i++) {
            PyObject *name = PyObject_GetAttrString(PyTuple_GetItem(fields, i), "name");
            if (name == NULL || PyTuple_SetItem(names, i, name) != 0) {
                Py_CLEAR(names);
            }
        }
        Py_XDECREF(fields);
        return names;
    }
    int listed = is_subclass_of(type, "collections.abc", "Mapping");
    if (listed == 0) {
        listed = is_subclass_of(type, "collections", "deque");
    }
    return listed < 0 ? NULL : Py_NewRef(listed ? Py_True : Py_None);
}

/* Borrowed; NULL: an error is set. */
static PyObject *kind_of(core_state *state, PyObject *type)
{
    if (state->containers == NULL) {
        state->containers = PyDict_New();
        if (state->containers == NULL) {
            return NULL;
        }
    }
    PyObject *kind = PyDict_GetItemWithError(state->containers, type);
    if (kind != NULL || PyErr_Occurred()) {
        return kind;
    }
    kind = classify(type);
    if (kind == NULL) {
        return NULL;
    }
    if (PyDict_Size(state->containers) >= MAX_TYPES) {
        PyDict_Clear(state->containers);
    }
    const bool kept = PyDict_SetItem(state->containers, type, kind) == 0;
    Py_DECREF(kind);
    return kept ? PyDict_GetItemWithError(state->containers, type) : NULL;
}

static PyObject *fields_of(PyObject *value, PyObject *names)
{
    const Py_ssize_t count = PyTuple_Size(names);
    PyObject *elements = PyTuple_New(count);
    for (Py_ssize_t i = 0; elements != NULL && i < count; i++) {
        PyObject *element = PyObject_GetAttr(value, PyTuple_GetItem(names, i));
        if (element == NULL) {
            PyErr_Clear(); /* it has never been set */
            element = Py_NewRef(Py_None);
        }
        PyTuple_SetItem(elements, i, element);
    }
    return elements;
}

PyObject *container_elements(core_state *state, PyObject *value)
{
    if (value == Py_None || PyLong_Check(value) || PyFloat_Check(value) || PyUnicode_Check(value)) {
        return NULL;
    }
    PyObject *kind = kind_of(state, (PyObject *)Py_TYPE(value));
    PyObject *elements = NULL;
    if (kind != NULL && PyTuple_Check(kind)) {
        elements = fields_of(value, kind);
    } else if (kind == Py_True && PyObject_HasAttrString(value, "values")) {
        PyObject *values = PyObject_CallMethod(value, "values", NULL);
        elements = values == NULL ? NULL : PySequence_Tuple(values);
        Py_XDECREF(values);
    } else if (kind == Py_True) {
        elements = PySequence_Tuple(value);
    }
    PyErr_Clear();
    return elements;
}
