/* Records of collectives: _core.Collectives. */
#ifndef TP_EXT_COLLECTIVES_H
#define TP_EXT_COLLECTIVES_H

#include "monitor_object.h"

/* Before the step, or the monitor, ends: calls that still run are recorded as what is known of
 * them. False: an error is set (only under "strict"). */
bool collectives_end_step(monitor_object *monitor);

#endif
