/* Hooks on an optimizer: parameters, their gradients and moments, and the end of the step. */
#ifndef TP_EXT_OPTIMIZER_HOOKS_H
#define TP_EXT_OPTIMIZER_HOOKS_H

#include "monitor_object.h"

/* monitor.optimizer_hook(parameters, main_grad, members) */
PyObject *optimizer_hook_new(monitor_object *monitor, PyObject *const *args, Py_ssize_t count);

#endif
