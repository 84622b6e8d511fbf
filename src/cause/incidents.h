/* One incident a cause: the alerts of a rank, put together. One thread. */
#ifndef TP_CAUSE_INCIDENTS_H
#define TP_CAUSE_INCIDENTS_H

#include "base/buf.h"
#include "record/registry.h"

typedef struct tp_incidents tp_incidents;

/* registry has the keys of the records, and outlives the incidents. */
tp_status tp_incidents_new(tp_incidents **out, const tp_registry *registry);
void tp_incidents_free(tp_incidents *incidents); /* accepts NULL */

/* alerts: those that the rules raised in this step, records of kind TP_RECORD_ALERT. Gives each the
 * number of its incident, and appends a record of kind TP_RECORD_INCIDENT for each one that begins,
 * grows or ends with this step.
 *
 * There are at most two open ones. To one belong NaN and infinities, with all that alerts after the
 * first of them in the order of the step; to the other everything else. An incident ends when it
 * had no alert for TP_INCIDENT_QUIET steps; what comes later is a new one. TP_ERR_NOMEM: alerts
 * holds what was there before, numbers perhaps set.
 */
tp_status tp_incidents_update(tp_incidents *incidents, const tp_batch *batch, tp_buf *alerts);

#endif
