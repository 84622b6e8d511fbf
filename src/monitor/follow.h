/* Makes the files of a run directory, which no process is writing, from its journal. */
#ifndef TP_MONITOR_FOLLOW_H
#define TP_MONITOR_FOLLOW_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/error.h"
#include "sinks/sink.h"

/* Brings every sink of a run directory, which no process is writing, to the end of its journal.
 * stop may be NULL; TP_END: it became 1 before that. *steps: how many steps were added to the sink
 * that lacked most. error may be NULL. */
tp_status tp_follow_directory(const char *directory, const int *stop, uint64_t *steps,
                              tp_error *error);

/* Appends the names of the sinks that have a cursor there, with ", " between. */
void tp_follow_names(const char *directory, tp_buf *names);

/* The sink with this name; NULL: there is none. */
const tp_sink *tp_follow_sink(const char *name);

/* Options for a sink of options->directory: as it had them there, or as another one, or those by
 * default. ops gets what they point to. */
tp_status tp_follow_options(const tp_sink *sink, tp_sink_options *options,
                            uint32_t ops[TP_OP_COUNT], tp_error *error);

/* Whether there is a sink with this name. */
bool tp_follow_is_name(const char *name);

/* Makes the files of one sink, by its name, anew from the journal, in place of those there, whether
 * the run had that sink or not. TP_ERR_STATE: the journal has lost its beginning. */
tp_status tp_follow_anew(const char *directory, const char *name, uint64_t *steps, tp_error *error);

#endif
