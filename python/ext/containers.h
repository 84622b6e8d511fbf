/* What modules take and return besides tensors, tuples, lists and dicts. */
#ifndef TP_EXT_CONTAINERS_H
#define TP_EXT_CONTAINERS_H

#include "core.h"

/* What a dataclass's fields, a UserDict or a deque hold, in order: a new tuple. NULL: the value is
 * none of these, or it can't be read; no error is set. No code of the value's class runs. */
PyObject *container_elements(core_state *state, PyObject *value);

#endif
