#include "structure.h"

#define MAX_DEPTH 100 /* a module may, by mistake, contain itself */

static void mix(uint64_t *number, const void *address)
{
    *number = (*number ^ (uint64_t)(uintptr_t)address) * UINT64_C(0x9e3779b97f4a7c15);
    *number ^= *number >> 29;
}

/* Mixes names, modules, their types, and parameters, by their addresses. False: an error is set. */
static bool mix_module(const core_state *state, PyObject *module, int depth, uint64_t *number)
{
    PyObject *const names[] = {state->name_parameters, state->name_modules};
    mix(number, Py_TYPE(module));
    for (int kind = 0; kind < 2; kind++) {
        PyObject *dict = PyObject_GetAttr(module, names[kind]);
        if (dict == NULL) {
            return false;
        }
        PyObject *name = NULL;
        PyObject *value = NULL;
        Py_ssize_t position = 0;
        bool ok = true;
        while (ok && PyDict_Check(dict) && PyDict_Next(dict, &position, &name, &value)) {
            mix(number, name);
            mix(number, value);
            ok = kind == 0 || value == Py_None || depth == MAX_DEPTH ||
                 mix_module(state, value, depth + 1, number);
        }
        Py_DECREF(dict);
        if (!ok) {
            return false;
        }
    }
    return true;
}

bool structure_note(module_hook *root, PyObject *module)
{
    root->structure = 0;
    return mix_module(root->monitor->state, module, 0, &root->structure);
}

bool structure_check(module_hook *root, PyObject *module)
{
    const uint64_t before = root->structure;
    if (root->monitor->on_change == NULL) {
        return true;
    }
    if (!structure_note(root, module)) {
        return false;
    }
    if (root->structure == before) {
        return true;
    }
    PyObject *done = PyObject_CallFunctionObjArgs(root->monitor->on_change, NULL);
    if (done == NULL) {
        root->structure = before; /* to be tried again */
    }
    Py_XDECREF(done);
    return done != NULL;
}
