#include "sides.h"

#include <stdio.h>

#include "module_hooks.h"

static const char *const side_names[] = {"input", "output", "input_grad", "output_grad"};

side_filter side_filter_of(const tp_config *config, const tp_target *target)
{
    if (target == NULL) {
        return (side_filter){.integers = config->integers};
    }
    side_filter filter = {
        .integers = true,
        .specs = {target->input, target->output, target->input_grad, target->output_grad}};
    for (int side = 0; side < SIDES; side++) {
        filter.by_spec |= filter.specs[side].given;
    }
    return filter;
}

/* How many elements a container has; -1: it is none. */
static Py_ssize_t size_of(PyObject *value)
{
    return PyTuple_Check(value)  ? PyTuple_Size(value)
           : PyList_Check(value) ? PyList_Size(value)
           : PyDict_Check(value) ? PyDict_Size(value)
                                 : -1;
}

/* Element number index of a container, borrowed; of a dict the value, in order. */
static PyObject *element(PyObject *container, Py_ssize_t index)
{
    if (!PyDict_Check(container)) {
        return PyTuple_Check(container) ? PyTuple_GetItem(container, index)
                                        : PyList_GetItem(container, index);
    }
    PyObject *key = NULL;
    PyObject *value = NULL;
    Py_ssize_t position = 0;
    while (index-- >= 0 && PyDict_Next(container, &position, &key, &value)) {
    }
    return value;
}

static bool is_tensor(core_state *state, PyObject *value)
{
    return tensor_type_kind(state, Py_TYPE(value)) != TYPE_OTHER;
}

/* "tuple[n]" counts the positional arguments, None among them; where n includes the keyword
 * arguments, these follow. Borrowed; NULL: it does not fit. */
static PyObject *pick_input(core_state *state, const tp_side_spec *spec, PyObject *args,
                            PyObject *kwargs)
{
    const Py_ssize_t positional = PyTuple_Size(args);
    const Py_ssize_t all = positional + PyDict_Size(kwargs);
    PyObject *only = all != 1 ? NULL : positional == 1 ? element(args, 0) : element(kwargs, 0);
    if (!spec->tuple) {
        return only != NULL && is_tensor(state, only) ? only : NULL;
    }
    if ((Py_ssize_t)spec->length != positional && (Py_ssize_t)spec->length != all) {
        return NULL;
    }
    return spec->index < positional ? element(args, spec->index)
                                    : element(kwargs, spec->index - positional);
}

/* A single tensor is also a tuple of one, as its gradient is in torch's own hooks. */
static PyObject *pick_output(core_state *state, const tp_side_spec *spec, PyObject *output)
{
    if (is_tensor(state, output)) {
        return !spec->tuple || spec->length == 1 ? output : NULL;
    }
    return spec->tuple && size_of(output) == (Py_ssize_t)spec->length ? element(output, spec->index)
                                                                      : NULL;
}

/* False: an error is set that is not the monitor's own. */
static bool warn_misfit(module_hook *hook, enum side side, PyObject *const *values)
{
    const tp_side_spec *spec = &hook->filter.specs[side];
    const bool input = side == SIDE_INPUT || side == SIDE_INPUT_GRAD;
    char text[64] = "tensor";
    if (spec->keyword != NULL) {
        snprintf(text, sizeof(text), "keyword:%s", spec->keyword);
    } else if (spec->tuple) {
        snprintf(text, sizeof(text), "tuple[%u]:%u", spec->length, spec->index);
    }
    hook->filter.warned[side] = true;
    PyObject *module = PyImport_ImportModule("tensorprobe._structure");
    PyObject *done = module == NULL ? NULL
                                    : PyObject_CallMethod(module, "warn_misfit", "sssOO",
                                                          hook->name, side_names[side], text,
                                                          values[0], input ? values[1] : Py_None);
    Py_XDECREF(module);
    Py_XDECREF(done);
    if (done == NULL) {
        monitor_clear_error(); /* warnings may have been turned into errors */
    }
    return !PyErr_Occurred();
}

/* The keyword argument of that name, borrowed, which the list's tensors are then known by. */
static PyObject *pick_keyword(const char *name, PyObject *kwargs, tensor_list *list)
{
    PyObject *key = NULL;
    PyObject *value = NULL;
    Py_ssize_t position = 0;
    while (PyDict_Next(kwargs, &position, &key, &value)) {
        if (PyUnicode_CompareWithASCIIString(key, name) == 0) {
            list->keyword = key;
            return value;
        }
    }
    return NULL;
}

/* What the side's spec selects, borrowed (it may be the list's). NULL: it does not fit. */
static PyObject *pick(const module_hook *hook, enum side side, PyObject *const *values,
                      tensor_list *list)
{
    core_state *state = hook->monitor->state;
    const tp_side_spec *spec = &hook->filter.specs[side];
    if (side == SIDE_INPUT || side == SIDE_INPUT_GRAD) {
        return spec->keyword != NULL ? pick_keyword(spec->keyword, values[1], list)
                                     : pick_input(state, spec, values[0], values[1]);
    }
    PyObject *output = values[0];
    if (size_of(output) < 0 && !is_tensor(state, output)) {
        PyObject *elements = tensor_list_unpack(state, list, output);
        output = elements == NULL ? output : elements;
    }
    return pick_output(state, spec, output);
}

static bool add_keywords(core_state *state, tensor_list *list, PyObject *kwargs, bool integers)
{
    PyObject *value = NULL;
    Py_ssize_t position = 0;
    bool ok = true;
    while (ok && PyDict_Next(kwargs, &position, &list->keyword, &value)) {
        ok = tensor_list_add(state, list, value, integers);
    }
    list->keyword = NULL;
    return ok;
}

bool side_collect(module_hook *hook, enum side side, PyObject *const *values, tensor_list *list)
{
    core_state *state = hook->monitor->state;
    const bool input = side == SIDE_INPUT || side == SIDE_INPUT_GRAD;
    bool ok = true;
    tensor_list_init(list);
    if (!hook->filter.by_spec || side == SIDE_ALL) {
        ok = tensor_list_add(state, list, values[0], hook->filter.integers) &&
             (!input || add_keywords(state, list, values[1], hook->filter.integers));
    } else if (hook->filter.specs[side].given) {
        PyObject *picked = pick(hook, side, values, list);
        if (picked != NULL) {
            ok = tensor_list_add(state, list, picked, true);
            list->keyword = NULL;
        } else if (!hook->filter.warned[side]) {
            return warn_misfit(hook, side, values);
        }
    }
    if (!ok) {
        PyErr_NoMemory();
    }
    return ok;
}

PyObject *side_number(const module_hook *hook, enum side side, PyObject *const *values)
{
    if (!hook->filter.specs[side].given) {
        return NULL;
    }
    tensor_list list;
    tensor_list_init(&list);
    PyObject *picked = pick(hook, side, values, &list);
    const bool is_number = picked != NULL && (PyFloat_Check(picked) || PyLong_Check(picked));
    PyObject *number = is_number ? Py_NewRef(picked) : NULL;
    tensor_list_free(&list);
    return number;
}
