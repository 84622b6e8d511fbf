#include "journal/find.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "journal/frame.h"

#define DEPTH 3

static bool holds_journal(const char *directory)
{
    char folder[TP_PATH_MAX];
    uint64_t first;
    uint64_t last;
    return tp_segment_find(directory, 0, &first, &last) == TP_OK ||
           (tp_path_join(folder, directory, "journal") == TP_OK &&
            tp_segment_find(folder, 0, &first, &last) == TP_OK);
}

static tp_status add(tp_journals *journals, const char *directory)
{
    /* Grown at each power of two. */
    if ((journals->count & (journals->count - 1)) == 0) {
        size_t room = journals->count == 0 ? 1 : 2 * (size_t)journals->count;
        char **larger = tp_realloc(journals->directories, room * sizeof *larger);
        if (larger == NULL) {
            return TP_ERR_NOMEM;
        }
        journals->directories = larger;
    }
    char *copy = tp_strdup(directory);
    if (copy == NULL) {
        return TP_ERR_NOMEM;
    }
    journals->directories[journals->count++] = copy;
    return TP_OK;
}

/* What can't be listed holds nothing. */
static tp_status look(tp_journals *journals, const char *directory, unsigned depth)
{
    char below[TP_PATH_MAX];
    struct stat info;
    tp_status status = TP_OK;
    if (holds_journal(directory)) {
        return add(journals, directory);
    }
    DIR *listing = depth > 0 ? opendir(directory) : NULL;
    if (listing == NULL) {
        return TP_OK;
    }
    for (const struct dirent *entry = readdir(listing); entry != NULL && status == TP_OK;
         entry = readdir(listing)) {
        if (entry->d_name[0] != '.' && tp_path_join(below, directory, entry->d_name) == TP_OK &&
            lstat(below, &info) == 0 && S_ISDIR(info.st_mode)) {
            status = look(journals, below, depth - 1);
        }
    }
    closedir(listing);
    return status;
}

static int compare(const void *a, const void *b)
{
    return strverscmp(*(char *const *)a, *(char *const *)b);
}

tp_status tp_journals_find(tp_journals *out, const char *directory, tp_error *error)
{
    struct stat info;
    *out = (tp_journals){0};
    if (stat(directory, &info) != 0) {
        return tp_fail(error, tp_status_from_errno(errno), "%s: %s", directory, strerror(errno));
    }
    if (look(out, directory, DEPTH) != TP_OK) {
        tp_journals_free(out);
        return tp_fail(error, TP_ERR_NOMEM, "no memory to search %s", directory);
    }
    if (out->count == 0) {
        tp_journals_free(out);
        return tp_fail(error, TP_ERR_NOTFOUND, "%s holds no journal, nor does a directory below it",
                       directory);
    }
    qsort(out->directories, out->count, sizeof *out->directories, compare);
    return TP_OK;
}

void tp_journals_free(tp_journals *journals)
{
    for (uint32_t i = 0; i < journals->count; i++) {
        tp_free(journals->directories[i]);
    }
    tp_free(journals->directories);
    *journals = (tp_journals){0};
}
