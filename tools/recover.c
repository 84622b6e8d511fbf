/* `tensorprobe recover`: what a killed run left in its journal, into the files people look at. */
#include "tools/tool.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>

#include "journal/find.h"
#include "monitor/follower.h"
#include "monitor/run.h"
#include "tensorprobe/reader.h"

static const char help[] = "usage: tensorprobe recover DIRECTORY…\n"
                           "\n"
                           "Brings the files made from a journal (csv, TensorBoard, SQLite, "
                           "anomaly.json) up to its end, for\n"
                           "instance after the training process was killed. Running it again adds "
                           "nothing. DIRECTORY is that\n"
                           "of one rank, or of a run or of many with those of the ranks below it. "
                           "One that a process is\n"
                           "still writing is refused.\n"
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

/* The directory, or those with a journal below it. */
static int recover_all(const char *name, const char *directory)
{
    tp_journals journals;
    tp_error error = {0};
    if (tp_journals_find(&journals, directory, &error) != TP_OK) {
        return tp_tool_failed(name, &error);
    }
    int result = TP_EXIT_OK;
    for (uint32_t i = 0; i < journals.count; i++) {
        if (recover(name, journals.directories[i]) != TP_EXIT_OK) {
            result = TP_EXIT_FAILED;
        }
    }
    tp_journals_free(&journals);
    return result;
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
        if (recover_all(argv[0], argv[i]) != TP_EXIT_OK) {
            result = TP_EXIT_FAILED; /* the others are still brought up to date */
        }
    }
    return result;
}
