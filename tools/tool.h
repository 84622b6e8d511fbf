/* The subcommands of the `tensorprobe` command: one file each, called from main.c. */
#ifndef TP_TOOLS_TOOL_H
#define TP_TOOLS_TOOL_H

#include "tensorprobe/status.h"

/* Exit codes. */
#define TP_EXIT_OK 0
#define TP_EXIT_FAILED 1 /* what was looked at is wrong, or the work could not be done */
#define TP_EXIT_USAGE 2  /* the command line is wrong */

/* argv[0] is the subcommand's name. Returns an exit code. */
int tp_tool_show(int argc, char **argv);
int tp_tool_recover(int argc, char **argv);
int tp_tool_check(int argc, char **argv);
int tp_tool_init(int argc, char **argv);

/* Prints "tensorprobe NAME: ERROR" to standard error and returns TP_EXIT_FAILED. */
int tp_tool_failed(const char *name, const tp_error *error);

/* Prints "tensorprobe NAME: try --help" after getopt's own message; returns TP_EXIT_USAGE. */
int tp_tool_usage(const char *name);

#endif
