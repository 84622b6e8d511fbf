/* `tensorprobe recover`: what a killed run left in its journal, into the files people look at. */
#include "tools/tool.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "journal/find.h"
#include "monitor/box.h"
#include "monitor/follower.h"
#include "monitor/recover.h"
#include "monitor/run.h"
#include "tensorprobe/reader.h"

static const char help[] = "usage: tensorprobe recover DIRECTORY…\n"
                           "\n"
                           "Brings what a killed process had recorded last from its black box into "
                           "the journal, and the files\n"
                           "made from a journal (csv, TensorBoard, SQLite, anomaly.json) up to its "
                           "end. Running it again adds\n"
                           "nothing. DIRECTORY is that of one rank, or of a run or of many with "
                           "those of the ranks below it.\n"
                           "One that a process is still writing is refused.\n"
                           "\n"
                           "  --help  this text\n";

/* A black box makes a journal, if one is needed. */
static bool names_box(const char *directory)
{
    char box[TP_PATH_MAX];
    return tp_path_join(box, directory, TP_BOX_NAME) == TP_OK && access(box, F_OK) == 0;
}

/* A directory without a journal is a mistake of the caller's, not one with nothing to do. */
static tp_status find_journal(const char *directory, tp_error *error)
{
    tp_reader *reader = NULL;
    if (names_box(directory)) {
        return TP_OK;
    }
    tp_status status = tp_reader_open(&reader, directory, error);
    tp_reader_close(&reader);
    return status;
}

static int recover(const char *name, const char *directory)
{
    uint64_t steps = 0;
    uint64_t found = 0;
    int lock = -1;
    tp_error error = {0};
    if (find_journal(directory, &error) != TP_OK ||
        tp_run_lock(directory, &lock, &error) != TP_OK) {
        return tp_tool_failed(name, &error);
    }
    tp_status status = tp_recover_run(directory, &found, &error);
    if (status == TP_OK) {
        status = tp_follow_directory(directory, NULL, &steps, &error);
    }
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
    if (names_box(directory)) {
        return recover(name, directory);
    }
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
