/* Numbers that the training loop logs: a loss, a learning rate. */
#ifndef TP_EXT_SCALARS_H
#define TP_EXT_SCALARS_H

#include "monitor_object.h"

/* monitor.log_scalar(name, value): records it in the open step. Trouble is that of a hook: one
 * warning, and a counter. */
PyObject *scalars_log(monitor_object *monitor, PyObject *const *args, Py_ssize_t count);

void scalars_free(monitor_object *monitor);

#endif
