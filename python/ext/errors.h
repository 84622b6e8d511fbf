/* Errors of the library as exceptions. */
#ifndef TP_EXT_ERRORS_H
#define TP_EXT_ERRORS_H

#include "core.h"
#include "tensorprobe/status.h"

/* Raises what a monitor says that can't be opened, configured or moved. */
void errors_raise(const core_state *state, const tp_error *error);

#endif
