/* Which parameters an optimizer has. */
#ifndef TP_EXT_OPTIMIZER_OWNER_H
#define TP_EXT_OPTIMIZER_OWNER_H

#include "optimizer_hooks.h"

/* Finds out which parameters the optimizer doesn't have, if that may have changed. False: an error
 * is set. */
bool optimizer_owner_find_foreign(optimizer_hook *hook, PyObject *optimizer);

#endif
