/* Bringing what killed processes had recorded from their black boxes into their journals. */
#ifndef TP_MONITOR_RECOVER_H
#define TP_MONITOR_RECOVER_H

#include <stdint.h>

#include "base/error.h"

/* Of the box that a run's directory names, if it names one; the caller has the directory's lock.
 * *steps: how many were added to the journal. A box of another machine, or of an earlier boot, is
 * left alone, which is said. */
tp_status tp_recover_run(const char *directory, uint64_t *steps, tp_error *error);

/* All boxes of this user on this machine whose processes are gone. base (absolute or not) is where
 * the caller's runs are: there, and where it exists, even a run without a directory gets one. */
void tp_recover_boxes(const char *base, const int *stop);

#endif
