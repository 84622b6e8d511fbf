/* What the subcommands about collectives share. */
#ifndef TP_TOOLS_CALLS_H
#define TP_TOOLS_CALLS_H

#include "view/calls.h"

/* Reads the command line (--step, --help, and --json where json isn't NULL) and the journals that
 * it names. False: *result is the exit code. On success the caller frees *calls. */
bool tp_tool_load_calls(int argc, char **argv, const char *help, bool *json, tp_calls *calls,
                        int *result);

/* The journals in all of these directories in one list, to be freed in any case. all: zeroed. */
tp_status tp_tool_find_all(char **directories, int count, tp_journals *all, tp_error *error);

#endif
