/* `tensorprobe check`: is this configuration right? */
#include "tools/tool.h"

#include <getopt.h>
#include <stdio.h>

#include "config/config.h"

static const char help[] =
    "usage: tensorprobe check [--watch] CONFIG\n"
    "\n"
    "Reads and validates a configuration (JSON) as the monitor would. Prints `CONFIG: OK` and "
    "ends\n"
    "with 0, or the error as FILE:LINE:COLUMN: FIELD: MESSAGE and ends with 1. Fields that this\n"
    "version does not act on are named as warnings.\n"
    "\n"
    "  --watch  over the defaults of tensorprobe.watch() instead of TrainerMon's\n"
    "  --help   this text\n";

int tp_tool_check(int argc, char **argv)
{
    static const struct option options[] = {
        {"watch", no_argument, NULL, 'w'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    bool watch = false;
    int letter;
    while ((letter = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (letter) {
        case 'w':
            watch = true;
            break;
        case 'h':
            fputs(help, stdout);
            return TP_EXIT_OK;
        default:
            return tp_tool_usage(argv[0]);
        }
    }
    if (optind != argc - 1) {
        return tp_tool_usage(argv[0]);
    }
    tp_config config;
    tp_error error = {0};
    tp_config_defaults(&config, watch);
    if (tp_config_read(&config, argv[optind], &error) != TP_OK) {
        return tp_tool_failed(argv[0], &error);
    }
    printf("%s: OK\n", argv[optind]);
    tp_config_free(&config);
    return TP_EXIT_OK;
}
