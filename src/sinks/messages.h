/* Messages to people, in an SQLite database of theirs. */
#ifndef TP_SINKS_MESSAGES_H
#define TP_SINKS_MESSAGES_H

#include <stdint.h>

#include "base/error.h"

/* Adds a row to `exception_message` and one to `tp_message`, both or none; makes the tables that
 * are not there. */
tp_status tp_sqlite_add_message(const char *path, const char *job, const char *text,
                                const char *rule, uint64_t step, int64_t wall_ns, tp_error *error);

#endif
