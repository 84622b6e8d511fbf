/* A journal's steps in the files of one sink, in another directory than the run's own. */
#ifndef TP_MONITOR_EXPORT_H
#define TP_MONITOR_EXPORT_H

#include <stdint.h>

#include "base/error.h"

/* Writes what the journal of a run directory has into directory, which exists and has none of the
 * sink's files; with the columns of the run's own files, or those by default. name is that of a
 * sink (tp_follow_is_name). The run may still be going on: it is neither locked nor changed.
 * *steps: how many were written. Damaged places are passed over and logged. */
tp_status tp_export_journal(const char *journal, const char *name, const char *directory,
                            uint64_t *steps, tp_error *error);

#endif
