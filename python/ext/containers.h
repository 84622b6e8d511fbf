/* What modules take and return besides tensors, tuples, lists and dicts. */
#ifndef TP_EXT_CONTAINERS_H
#define TP_EXT_CONTAINERS_H

#include "core.h"

/* The values of a dataclass's fields, of a mapping, or of a deque, in order: a new tuple. NULL: the
 * value is none of these, or it can't be read; no error is set. */
PyObject *container_elements(core_state *state, PyObject *value);

#endif
