#include "tools/calls.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "tools/tool.h"

/* N, N-, -N or N-M */
static bool read_steps(const char *text, uint64_t *first, uint64_t *last)
{
    char *end = NULL;
    errno = 0;
    const bool has_first = *text >= '0' && *text <= '9';
    *first = has_first ? strtoull(text, &end, 10) : 0;
    *last = *first;
    const char *rest = has_first ? end : text;
    if (*rest == '\0') {
        return has_first && errno == 0;
    }
    if (*rest != '-') {
        return false;
    }
    rest++;
    *last = UINT64_MAX;
    if (*rest == '\0') {
        return has_first && errno == 0;
    }
    if (*rest < '0' || *rest > '9') {
        return false;
    }
    *last = strtoull(rest, &end, 10);
    return *end == '\0' && errno == 0 && *first <= *last;
}

tp_status tp_tool_find_all(char **directories, int count, tp_journals *all, tp_error *error)
{
    tp_status status = TP_OK;
    for (int i = 0; status == TP_OK && i < count; i++) {
        tp_journals found = {0};
        status = tp_journals_find(&found, directories[i], error);
        if (status != TP_OK) {
            break;
        }
        char **joined = tp_realloc(all->directories,
                                   ((size_t)all->count + found.count) * sizeof *all->directories);
        if (joined == NULL) {
            tp_journals_free(&found);
            return tp_fail(error, TP_ERR_NOMEM, "no memory for the directories");
        }
        memcpy(joined + all->count, found.directories, found.count * sizeof *joined);
        all->directories = joined;
        all->count += found.count;
        tp_free(found.directories); /* the texts are in the list now */
    }
    return status;
}

bool tp_tool_load_calls(int argc, char **argv, const char *help, bool *json, tp_calls *calls,
                        int *result)
{
    const struct option options[] = {{"step", required_argument, NULL, 's'},
                                     TP_TOOL_HELP,
                                     {"json", no_argument, NULL, 'j'},
                                     {NULL, 0, NULL, 0}};
    const struct option without_json[] = {options[0], options[1], {NULL, 0, NULL, 0}};
    uint64_t first = 0;
    uint64_t last = UINT64_MAX;
    int letter;
    *result = TP_EXIT_OK;
    while ((letter = tp_tool_option(argc, argv, json != NULL ? options : without_json, help,
                                    result)) > 0) {
        if (letter == 'j' && json != NULL) {
            *json = true;
        } else if (!read_steps(optarg, &first, &last)) {
            fprintf(stderr, "tensorprobe %s: --step takes N, N-, -N or N-M, not %.60s\n", argv[0],
                    optarg);
            *result = TP_EXIT_USAGE;
            return false;
        }
    }
    if (letter < 0) {
        return false;
    }
    if (optind == argc) {
        *result = tp_tool_usage(argv[0]);
        return false;
    }
    tp_journals journals = {0};
    tp_error error = {0};
    memset(calls, 0, sizeof *calls);
    tp_status status = tp_tool_find_all(argv + optind, argc - optind, &journals, &error);
    if (status == TP_OK) {
        status = tp_calls_load(calls, &journals, first, last, &error);
    }
    tp_journals_free(&journals);
    if (status != TP_OK) {
        tp_calls_free(calls);
        *result = tp_tool_failed(argv[0], &error);
    }
    return status == TP_OK;
}
