/* What a monitor knows about itself. */
#ifndef TP_EXT_COUNTERS_H
#define TP_EXT_COUNTERS_H

#include "core.h"

/* monitor.counters(): a dict. */
PyObject *counters_get(PyObject *monitor, PyObject *unused);

#endif
