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

/* collections.name, new */
static PyObject *collection(const char *name)
{
    PyObject *module = PyImport_ImportModule("collections");
    PyObject *found = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    Py_XDECREF(module);
    return found;
}

/* 1: a deque that is walked as every deque is, 0: it isn't, -1: an error is set. */
static int is_plain_deque(PyObject *type)
{
    PyObject *deque = collection("deque");
    int yes = deque == NULL ? -1 : PyObject_IsSubclass(type, deque);
    if (yes > 0) {
        PyObject *own = PyObject_GetAttrString(type, "__iter__");
        PyObject *known = PyObject_GetAttrString(deque, "__iter__");
        yes = own == NULL || known == NULL ? -1 : own == known;
        Py_XDECREF(own);
        Py_XDECREF(known);
    }
    Py_XDECREF(deque);
    return yes;
}

static PyObject *field_names(PyObject *type)
{
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

/* A tuple of names: a dataclass. A string: the attribute in which a UserDict keeps its dict. True:
 * a deque. None: no container, or one that may compute what it is asked for (another Mapping): that
 * would be done once more than training does it, with the random numbers that it takes. */
static PyObject *classify(PyObject *type)
{
    if (PyObject_HasAttrString(type, "__dataclass_fields__")) {
        return field_names(type);
    }
    PyObject *user_dict = collection("UserDict");
    const int wraps = user_dict == NULL ? -1 : PyObject_IsSubclass(type, user_dict);
    Py_XDECREF(user_dict);
    if (wraps != 0) {
        return wraps < 0 ? NULL : PyUnicode_FromString("data");
    }
    const int listed = is_plain_deque(type);
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

/* What an instance has stored under a name, new; None: nothing. A property isn't asked. own: the
 * instance's dict, or NULL. */
static PyObject *stored(PyObject *value, PyObject *own, PyObject *name)
{
    PyObject *element = own == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(own, name));
    if (element == NULL && !PyErr_Occurred()) {
        PyObject *slot = PyObject_GetAttr((PyObject *)Py_TYPE(value), name);
        if (slot != NULL && PyObject_TypeCheck(slot, &PyMemberDescr_Type)) {
            element = PyObject_GenericGetAttr(value, name);
        }
        Py_XDECREF(slot);
    }
    core_clear_error(); /* it has never been set */
    return element == NULL ? Py_NewRef(Py_None) : element;
}

static PyObject *dict_of(PyObject *value)
{
    PyObject *name = PyUnicode_InternFromString("__dict__");
    PyObject *own = name == NULL ? NULL : PyObject_GenericGetAttr(value, name);
    Py_XDECREF(name);
    core_clear_error(); /* of a class with slots there is none */
    if (own != NULL && !PyDict_Check(own)) {
        Py_CLEAR(own);
    }
    return own;
}

static PyObject *fields_of(PyObject *value, PyObject *names)
{
    const Py_ssize_t count = PyTuple_Size(names);
    PyObject *own = dict_of(value);
    PyObject *elements = PyTuple_New(count);
    for (Py_ssize_t i = 0; elements != NULL && i < count; i++) {
        PyTuple_SetItem(elements, i, stored(value, own, PyTuple_GetItem(names, i)));
    }
    Py_XDECREF(own);
    return elements;
}

static PyObject *values_inside(PyObject *value, PyObject *name)
{
    PyObject *own = dict_of(value);
    PyObject *data = stored(value, own, name);
    PyObject *values = PyDict_Check(data) ? PyDict_Values(data) : NULL;
    PyObject *elements = values == NULL ? NULL : PyList_AsTuple(values);
    Py_XDECREF(values);
    Py_DECREF(data);
    Py_XDECREF(own);
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
    } else if (kind != NULL && PyUnicode_Check(kind)) {
        elements = values_inside(value, kind);
    } else if (kind == Py_True) {
        elements = PySequence_Tuple(value);
    }
    core_clear_error();
    return elements;
}
