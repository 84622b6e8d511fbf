/* `tensorprobe recover`: what a killed run left in its journal, into the files people look at. */
#include "tools/tool.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>

#include "monitor/follower.h"
#include "monitor/run.h"
#include "tensorprobe/reader.h"

static const char help[] = "usage: tensorprobe recover DIRECTORY…\n"
                           "\n"
                           "Brings the csv and TensorBoard files of a run's directory (the one of "
                           "a rank) up to the end of\n"
                           "its journal, for instance after the training process was killed. "
                           "Running it again adds nothing.\n"
                           "It refuses a directory that a process is still writing.\n"
                           "\n"
                           "  --help  this text\n";

/* A directory without a journal is a mistake of the caller's, not one with nothing to do. */
static tp_status find_journal(const char *directory, tp_error *error)
{
    tp_reader *reader = NULL;
    tp_status status = tp_reader_open(&reader, directory, error);
    tp_reader_close(&reader);
    return status;
}

static int recover(const char *name, const char *directory)
{
    uint64_t steps = 0;
    int lock = -1;
    tp_error error = {0};
    if (find_journal(directory, &error) != TP_OK ||
        tp_run_lock(directory, &lock, &error) != TP_OK) {
        return tp_tool_failed(name, &error);
    }
    tp_status status = tp_follow_directory(directory, NULL, &steps, &error);
    tp_run_unlock(directory, lock, status == TP_OK);
    if (status != TP_OK) {
        return tp_tool_failed(name, &error);
    }
    printf("%s: %" PRIu64 " %s added\n", directory, steps, steps == 1 ? "step" : "steps");
    return TP_EXIT_OK;
}

int tp_tool_recover(int argc, char **argv)
{
    static const struct option options[] = {TP_TOOL_HELP, {NULL, 0, NULL, 0}};
    int result = TP_EXIT_OK;
    if (tp_tool_option(argc, argv, options, help, &result) != 0) {
        return result;
    }
    if (optind == argc) {
        return tp_tool_usage(argv[0]);
    }
    for (int i = optind; i < argc; i++) {
        if (recover(argv[0], argv[i]) != TP_EXIT_OK) {
            result = TP_EXIT_FAILED; /* the others are still brought up to date */
        }
    }
    return result;
}
