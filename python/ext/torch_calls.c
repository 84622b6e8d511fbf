#include "torch_calls.h"

#include <dlfcn.h>
#include <string.h>

/* ISO C knows no way from an object's address to a function's. */
#define FIND(library, name, place)                                                                 \
    do {                                                                                           \
        void *symbol = dlsym(library, name);                                                       \
        memcpy((place), &symbol, sizeof(symbol));                                                  \
    } while (0)

void torch_calls_find(core_state *state)
{
    PyCFunction known = PyCFunction_GetFunction(state->graph_task_id);
    void *address = NULL;
    Dl_info info;
    memcpy(&address, &known, sizeof(address));
    PyErr_Clear();
    if (address == NULL || dladdr(address, &info) == 0 || info.dli_fname == NULL) {
        return;
    }
    /* Python loads libraries so that others don't see their names: ask the one that has it. It
     * stays loaded, as torch does. */
    void *library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL) {
        return;
    }
    FIND(library, "_ZN3c108GradMode10is_enabledEv", &state->calls.grad_enabled);
    FIND(library, "_ZN5torch8autograd25get_current_graph_task_idEv", &state->calls.graph_task);
    FIND(library, "_ZN2at15sequence_number4peekEv", &state->calls.sequence_nr);
    FIND(library, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", &state->calls.function_modes);
    dlclose(library);
}

int torch_is_true(PyObject *function)
{
    PyObject *value = PyObject_CallNoArgs(function);
    if (value == NULL) {
        return -1;
    }
    const bool yes = value == Py_True;
    Py_DECREF(value);
    return yes;
}

int64_t torch_function_modes(const core_state *state)
{
    if (state->calls.function_modes != NULL) {
        return state->calls.function_modes();
    }
    const int64_t modes = state->function_modes == NULL ? 0 : core_call_int(state->function_modes);
    core_clear_error();
    return modes;
}

bool torch_is_in_dict(PyTypeObject *type, PyObject *name)
{
    static const char getter[] = "__getattribute__";
    PyObject *usual = PyObject_GetAttrString((PyObject *)&PyBaseObject_Type, getter);
    PyObject *own = PyObject_GetAttrString((PyObject *)type, getter);
    PyObject *of_class = PyObject_GetAttr((PyObject *)type, name);
    PyErr_Clear();
    const bool yes = own != NULL && own == usual && of_class == NULL;
    Py_XDECREF(usual);
    Py_XDECREF(own);
    Py_XDECREF(of_class);
    return yes;
}

/* nn.Module keeps it in the instance's dict, and has a __getattr__, which makes asking slow. */
int torch_is_training(const core_state *state, PyObject *module, bool in_dict)
{
    PyObject *dict = in_dict ? PyObject_GenericGetDict(module, NULL) : NULL;
    PyObject *own = dict == NULL ? NULL : PyDict_GetItemWithError(dict, state->name_training);
    const int known = own == Py_True ? 1 : own == Py_False ? 0 : -1;
    Py_XDECREF(dict);
    if (known >= 0) {
        return known;
    }
    PyErr_Clear();
    PyObject *training = PyObject_GetAttr(module, state->name_training);
    const int yes = training == NULL ? -1 : PyObject_IsTrue(training);
    Py_XDECREF(training);
    return yes;
}

PyObject *core_shortcuts(PyObject *module, PyObject *Py_UNUSED(unused))
{
    core_state *state = PyModule_GetState(module);
    if (core_load_torch(state) != 0) {
        return NULL;
    }
    const torch_calls *calls = &state->calls;
    const struct {
        const char *name;
        bool in_use;
    } rows[] = {
        {"grad_enabled", calls->grad_enabled != NULL},
        {"graph_task", calls->graph_task != NULL},
        {"sequence_nr", calls->sequence_nr != NULL},
        {"function_modes", calls->function_modes != NULL},
        {"layout", state->layout.known},
    };
    PyObject *all = PyDict_New();
    for (size_t i = 0; all != NULL && i < sizeof(rows) / sizeof(rows[0]); i++) {
        PyObject *yes = rows[i].in_use ? Py_True : Py_False;
        if (PyDict_SetItemString(all, rows[i].name, yes) != 0) {
            Py_CLEAR(all);
        }
    }
    return all;
}
