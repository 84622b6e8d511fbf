/* The hooks of most calls, where only forwards are watched: of a module in training that takes
 * nothing or one small tensor, and returns one. All of it is known to be readable where it lies,
 * and nothing has to be remembered; that takes less time than to prepare for anything else, above
 * all between the operations of a model, when neither code nor data of a hook is at hand: so there
 * is as little of both as can be. */
#ifndef TP_EXT_QUICK_HOOKS_H
#define TP_EXT_QUICK_HOOKS_H

#include "module_hooks.h"

/* Does the configuration of the open step let hooks do so? */
bool quick_is_allowed(const monitor_object *monitor);

/* Of a new hook: may there be such calls? */
bool quick_is_possible(const module_hook *hook);

/* forward_pre(module, args, kwargs). 1: done, 0: this isn't such a call, and nothing has been done,
 * -1: it failed, with or without an error set. */
int quick_before(module_hook *hook, PyObject *const *args);

/* forward(…, output), likewise. The frame is the caller's. */
int quick_after(module_hook *hook, const frame *running, PyObject *output);

#endif
