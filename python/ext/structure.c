#include "structure.h"

#include <string.h>

#include "base/mem.h"

#define MAX_DEPTH 1000 /* of modules in one another, for the stack; torch itself comes to 300 */

static void mix(uint64_t *number, const void *address)
{
    *number = (*number ^ (uint64_t)(uintptr_t)address) * UINT64_C(0x9e3779b97f4a7c15);
    *number ^= *number >> 29;
}

static uint32_t place_of(const module_set *set, const void *module)
{
    uint64_t hash = 0;
    mix(&hash, module);
    uint32_t place = (uint32_t)(hash >> 32) & (set->capacity - 1);
    while (set->modules[place] != NULL && set->modules[place] != module) {
        place = (place + 1) & (set->capacity - 1);
    }
    return place;
}

static bool grow(module_set *set)
{
    module_set larger = {NULL, set->capacity == 0 ? 64 : set->capacity * 2, set->count};
    larger.modules = tp_calloc(larger.capacity, sizeof(const void *));
    if (larger.modules == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (uint32_t i = 0; i < set->capacity; i++) {
        if (set->modules[i] != NULL) {
            larger.modules[place_of(&larger, set->modules[i])] = set->modules[i];
        }
    }
    tp_free(set->modules);
    *set = larger;
    return true;
}

/* The first time that the walk meets this module? False, with an error set, when memory ran out. */
static bool add(module_set *set, const void *module)
{
    if (set->count * 2 >= set->capacity && !grow(set)) {
        return false;
    }
    const uint32_t place = place_of(set, module);
    const bool is_new = set->modules[place] == NULL;
    set->modules[place] = module;
    set->count += is_new;
    return is_new;
}

/* Mixes names, modules, their types, and parameters, by their addresses. A module that several
 * names lead to, or that contains itself, is looked into once. False: an error is set. */
static bool mix_module(const core_state *state, module_set *seen, PyObject *module, int depth,
                       uint64_t *number)
{
    if (depth == MAX_DEPTH || !add(seen, module)) {
        return PyErr_Occurred() == NULL;
    }
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
            ok = kind == 0 || value == Py_None || mix_module(state, seen, value, depth + 1, number);
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
    /* Its memory is used again. It is taken out: attributes may run Python, other threads too. */
    module_set seen = root->seen;
    root->seen = (module_set){NULL, 0, 0};
    if (seen.capacity > 0) {
        memset(seen.modules, 0, seen.capacity * sizeof(*seen.modules));
    }
    seen.count = 0;
    uint64_t number = 0;
    const bool ok = mix_module(root->monitor->state, &seen, module, 0, &number);
    root->structure = number;
    tp_free(root->seen.modules);
    root->seen = seen;
    return ok;
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
        root->unsettled = false;
        return true;
    }
    PyObject *done = PyObject_CallFunctionObjArgs(root->monitor->on_change, NULL);
    root->unsettled = done == Py_False;
    if (done == NULL || root->unsettled) {
        root->structure = before; /* to be tried again */
    }
    Py_XDECREF(done);
    return done != NULL;
}
