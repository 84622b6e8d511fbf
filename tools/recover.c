/* `tensorprobe recover`: what a killed run left in its journal, into the files people look at. */
#include "tools/tool.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "journal/find.h"
#include "monitor/box.h"
#include "monitor/follow.h"
#include "monitor/recover.h"
#include "monitor/run.h"
#include "tensorprobe/reader.h"

#define MAX_FORMATS 8 /* that are given */

static const char help[] =
    "usage: tensorprobe recover [--rebuild FORMAT] DIRECTORY…\n"
    "\n"
    "Brings what a killed process had recorded last from its black box into the journal, and the "
    "files\n"
    "made from a journal (csv, TensorBoard, SQLite, anomaly.json) up to its end. Running it again "
    "adds\n"
    "nothing. DIRECTORY is that of one rank, or of a run or of many with those of the ranks below "
    "it.\n"
    "One that a process is still writing is refused.\n"
    "Files that are gone, or shorter than they were left, are made anew from the journal; of csv\n"
    "files those of earlier steps may be missing. Ends with 1 where followers/ no longer says "
    "which\n"
    "files there were.\n"
    "\n"
    "  --rebuild FORMAT  makes the files of FORMAT (csv, tensorboard, sqlite, anomaly) anew from "
    "the\n"
    "                    whole journal, also where the run had none; with the columns of the "
    "other\n"
    "                    files, or those by default; may be given again\n"
    "  --help            this text\n";

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

/* Brings everything there is up to date, or makes the files of these formats anew. */
static tp_status follow(const char *directory, const char *const *formats, uint32_t count,
                        uint64_t *steps, tp_error *error)
{
    if (count == 0) {
        return tp_follow_directory(directory, NULL, steps, error);
    }
    tp_status status = TP_OK;
    for (uint32_t i = 0; status == TP_OK && i < count; i++) {
        uint64_t made = 0;
        status = tp_follow_anew(directory, formats[i], &made, error);
        *steps = made > *steps ? made : *steps;
    }
    return status;
}

/* Which files it is about; false: followers/ is there, but says nothing any more. */
static bool print_names(const char *directory)
{
    char folder[TP_PATH_MAX];
    tp_buf names = TP_BUF_INIT;
    tp_follow_names(directory, &names);
    const bool has_names = names.size > 0;
    const bool lost = !has_names && tp_path_join(folder, directory, "followers") == TP_OK &&
                      access(folder, F_OK) == 0;
    if (has_names && !names.failed) {
        printf(" to %s", (const char *)names.data);
    } else if (!has_names) {
        printf("; %s", lost ? "followers/ has no cursor that says which files there were: "
                              "--rebuild FORMAT makes them"
                            : "the run has no other files: --rebuild FORMAT makes some");
    }
    tp_buf_free(&names);
    return !lost;
}

static int recover(const char *name, const char *directory, const char *const *formats,
                   uint32_t count)
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
        status = follow(directory, formats, count, &steps, &error);
    }
    tp_run_unlock(directory, lock, status == TP_OK);
    if (status != TP_OK) {
        return tp_tool_failed(name, &error);
    }
    printf("%s: %" PRIu64 " %s added", directory, steps, steps == 1 ? "step" : "steps");
    const bool fine = print_names(directory);
    putchar('\n');
    return fine ? TP_EXIT_OK : TP_EXIT_FAILED;
}

/* The directory, or those with a journal below it. */
static int recover_all(const char *name, const char *directory, const char *const *formats,
                       uint32_t count)
{
    tp_journals journals;
    tp_error error = {0};
    if (names_box(directory)) {
        return recover(name, directory, formats, count);
    }
    if (tp_journals_find(&journals, directory, &error) != TP_OK) {
        return tp_tool_failed(name, &error);
    }
    int result = TP_EXIT_OK;
    for (uint32_t i = 0; i < journals.count; i++) {
        if (recover(name, journals.directories[i], formats, count) != TP_EXIT_OK) {
            result = TP_EXIT_FAILED;
        }
    }
    tp_journals_free(&journals);
    return result;
}

int tp_tool_recover(int argc, char **argv)
{
    static const struct option options[] = {
        {"rebuild", required_argument, NULL, 'r'}, TP_TOOL_HELP, {NULL, 0, NULL, 0}};
    const char *formats[MAX_FORMATS];
    uint32_t count = 0;
    int result = TP_EXIT_OK;
    int letter;
    while ((letter = tp_tool_option(argc, argv, options, help, &result)) > 0) {
        if (!tp_follow_is_name(optarg) || count == MAX_FORMATS) {
            fprintf(stderr,
                    "tensorprobe %s: no such files: %.60s; write csv, tensorboard, sqlite or "
                    "anomaly\n",
                    argv[0], optarg);
            return TP_EXIT_USAGE;
        }
        formats[count++] = optarg;
    }
    if (letter < 0) {
        return result;
    }
    if (optind == argc) {
        return tp_tool_usage(argv[0]);
    }
    for (int i = optind; i < argc; i++) {
        if (recover_all(argv[0], argv[i], formats, count) != TP_EXIT_OK) {
            result = TP_EXIT_FAILED; /* the others are still brought up to date */
        }
    }
    return result;
}
