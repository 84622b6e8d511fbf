/* Has the model's tree changed? Modules and parameters may be added, removed and replaced. */
#ifndef TP_EXT_STRUCTURE_H
#define TP_EXT_STRUCTURE_H

#include "module_hooks.h"

/* A root's forward begins a step: has the session told (monitor->on_change) when the tree below the
 * root is not what it was, and again at the root's next forward if it gives False. False: an error
 * is set. */
bool structure_check(module_hook *root, PyObject *module);

/* Notes what the tree is when the hook is made. False: an error is set. */
bool structure_note(module_hook *root, PyObject *module);

#endif
