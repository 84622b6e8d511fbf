/* The subcommands of the `tensorprobe` command: one file each, called from main.c. */
#ifndef TP_TOOLS_TOOL_H
#define TP_TOOLS_TOOL_H

#include <stdbool.h>
#include <stddef.h>

#include "tensorprobe/status.h"

/* Exit codes. */
#define TP_EXIT_OK 0
#define TP_EXIT_FAILED 1 /* what was looked at is wrong, or the work could not be done */
#define TP_EXIT_USAGE 2  /* the command line is wrong */

/* argv[0] is the subcommand's name. Returns an exit code. */
int tp_tool_show(int argc, char **argv);
int tp_tool_recover(int argc, char **argv);
int tp_tool_check(int argc, char **argv);
int tp_tool_backtest(int argc, char **argv);
int tp_tool_analyse(int argc, char **argv);
int tp_tool_export(int argc, char **argv);
int tp_tool_init(int argc, char **argv);
int tp_tool_ship(int argc, char **argv);
int tp_tool_selftest(int argc, char **argv);
int tp_tool_diff(int argc, char **argv);
int tp_tool_diff_ranks(int argc, char **argv);
int tp_tool_collectives(int argc, char **argv);
int tp_tool_tail(int argc, char **argv);
int tp_tool_view(int argc, char **argv);
int tp_tool_report(int argc, char **argv);

/* The summary of one journal, of show. name is the subcommand's. */
int tp_tool_summary(const char *name, const char *directory, bool all_alerts, bool all_series);

/* A line with a small plot of each series of the newest run (of these names or patterns, 0: all),
 * of show. */
int tp_tool_plot(const char *name, const char *directory, const char *const *names, size_t count);

/* The next option of a subcommand, which has TP_TOOL_HELP among its options: its letter; 0 when
 * only operands are left, from optind on. Prints help, or points to it when the option is wrong; -1
 * then, and *result is the exit code. */
#define TP_TOOL_HELP                                                                               \
    {                                                                                              \
        "help", no_argument, NULL, 'h'                                                             \
    }
struct option;
int tp_tool_option(int argc, char **argv, const struct option *options, const char *help,
                   int *result);

/* Prints "tensorprobe NAME: ERROR" to standard error and returns TP_EXIT_FAILED. */
int tp_tool_failed(const char *name, const tp_error *error);

/* Prints where help is to be had; returns TP_EXIT_USAGE. */
int tp_tool_usage(const char *name);

#endif
