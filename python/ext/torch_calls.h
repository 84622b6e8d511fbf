/* What hooks ask torch in every call. Its C++ functions answer in a nanosecond or two, where the
 * way through Python takes twenty; they are found by name in the libraries that torch has loaded,
 * and nothing is linked. A torch that names them otherwise is asked through Python. */
#ifndef TP_EXT_TORCH_CALLS_H
#define TP_EXT_TORCH_CALLS_H

#include <stdbool.h>
#include <stdint.h>

#include "core.h"

/* After the Python functions have been looked up. */
void torch_calls_find(core_state *state);

/* 1, 0, or -1 with an error set. */
int torch_is_true(PyObject *function);

static inline int torch_grad_enabled(const core_state *state)
{
    return state->calls.grad_enabled != NULL ? state->calls.grad_enabled()
                                             : torch_is_true(state->is_grad_enabled);
}

/* The backward that is running, -1: none, or an error is set. */
static inline int64_t torch_graph_task(const core_state *state)
{
    return state->calls.graph_task != NULL ? state->calls.graph_task()
                                           : core_call_int(state->graph_task_id);
}

/* The number that the next node of this thread gets. -1: an error is set. */
static inline int64_t torch_sequence_nr(const core_state *state)
{
    return state->calls.sequence_nr != NULL ? (int64_t)state->calls.sequence_nr()
                                            : core_call_int(state->sequence_nr);
}

/* How many of the program's TorchFunctionModes are on. */
int64_t torch_function_modes(const core_state *state);

/* Does an attribute of this type's instances that is in their dict come from there? Not where the
 * type has a __getattribute__ of its own, or a property of that name. */
bool torch_is_in_dict(PyTypeObject *type, PyObject *name);

/* module.training: 1, 0, or -1 with an error set. in_dict: as above, of the module's type. */
int torch_is_training(const core_state *state, PyObject *module, bool in_dict);

/* _core.shortcuts(): which ways into torch are in use that don't go through Python. */
PyObject *core_shortcuts(PyObject *module, PyObject *unused);

#endif
