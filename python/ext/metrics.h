/* Values by op for Python, of what is there at this moment; nothing of it is recorded. */
#ifndef TP_EXT_METRICS_H
#define TP_EXT_METRICS_H

#include "monitor_object.h"

/* {op: value} of one tensor, read now. None: it is no tensor that can be read. NULL: an error is
 * set. name is for warnings. */
PyObject *metrics_of(monitor_object *monitor, PyObject *tensor, const char *name);

/* The activations and their gradients that the open step has so far, in execution order: a list of
 * (quantity, vpp stage, row, micro step, {op: value}). NULL: an error is set. */
PyObject *metrics_of_step(monitor_object *monitor);

PyObject *metrics_op_names(const uint32_t *ops, uint32_t count);

/* False: names is no list of ops, an error is set. An empty one means norm. */
bool metrics_set_ops(monitor_object *monitor, PyObject *names);

#endif
