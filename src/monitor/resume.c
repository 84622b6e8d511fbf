#include "monitor/resume.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "journal/attempts.h"
#include "monitor/recover.h"
#include "monitor/run.h"

/* How long a lock is waited for that the recovery of another process may have, not its run. */
#define LOCK_WAIT_NS UINT64_C(2000000000)
#define LOCK_PAUSE_NS 20000000L
#define STAMP_LENGTH 14u /* Dec03_21-34-40 */

/* What the name of a directory says. */
typedef struct name_parts {
    uint64_t stamp; /* its order within a year */
    uint32_t rank;
    const char *run_id;
} name_parts;

/* As the configuration has checked it, and names of directories have it. False: it isn't one. */
static bool read_stamp(const char *text, uint64_t *stamp)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    static const char form[] = "   00_00-00-00";
    char month[4] = "";
    *stamp = 0;
    for (size_t i = 0; i < STAMP_LENGTH; i++) {
        const bool digit = text[i] >= '0' && text[i] <= '9';
        if (text[i] == '\0' || (form[i] == '0' ? !digit : i >= 3 && text[i] != form[i])) {
            return false;
        }
        *stamp = form[i] == '0' ? *stamp * 10 + (uint64_t)(text[i] - '0') : *stamp;
    }
    memcpy(month, text, 3);
    const char *place = strstr(months, month);
    if (place == NULL || (place - months) % 3 != 0) {
        return false;
    }
    *stamp += (uint64_t)(place - months) / 3 * 100000000;
    return true;
}

static bool read_name(const char *name, name_parts *parts)
{
    char *end;
    if (!read_stamp(name, &parts->stamp) || strncmp(name + STAMP_LENGTH, "-rank", 5) != 0) {
        return false;
    }
    const char *digits = name + STAMP_LENGTH + 5;
    const unsigned long rank = *digits >= '0' && *digits <= '9' ? strtoul(digits, &end, 10) : 0;
    if (*digits < '0' || *digits > '9' || *end != '-' || rank > UINT32_MAX) {
        return false;
    }
    parts->rank = (uint32_t)rank;
    parts->run_id = end + 1;
    return true;
}

/* When the journal in a directory was begun. False: there is none. */
static bool read_run(const char *directory, tp_run_info *run)
{
    tp_reader *reader = NULL;
    if (tp_reader_open(&reader, directory, NULL) != TP_OK) {
        return false;
    }
    *run = *tp_reader_run(reader);
    tp_reader_close(&reader);
    return true;
}

/* What is looked for: directories of a run, or from a time to another. */
typedef struct wanted {
    const char *run_id; /* NULL: of any */
    uint64_t first;
    uint64_t last;
} wanted;

static bool is_wanted(const wanted *w, const name_parts *parts)
{
    if (w->run_id != NULL) {
        return strcmp(parts->run_id, w->run_id) == 0;
    }
    return w->first <= w->last ? parts->stamp >= w->first && parts->stamp <= w->last
                               : parts->stamp >= w->first || parts->stamp <= w->last;
}

/* The latest directory of this rank, and the id of the latest run, below base. */
static void search(tp_resumption *out, const char *base, uint32_t rank, const wanted *w)
{
    int64_t latest = INT64_MIN;     /* of this rank */
    int64_t latest_any = INT64_MIN; /* of any rank */
    const struct dirent *entry;
    DIR *listing = opendir(base);
    while (listing != NULL && (entry = readdir(listing)) != NULL) {
        char path[TP_PATH_MAX];
        name_parts parts;
        tp_run_info run;
        if (!read_name(entry->d_name, &parts) || !is_wanted(w, &parts) ||
            tp_path_join(path, base, entry->d_name) != TP_OK || tp_file_is_link(path) ||
            !read_run(path, &run)) {
            continue;
        }
        if (parts.rank == rank && run.start_wall_ns > latest) {
            latest = run.start_wall_ns;
            memcpy(out->directory, path, sizeof path);
            memcpy(out->run_id, run.run_id, sizeof run.run_id);
        } else if (latest == INT64_MIN && run.start_wall_ns > latest_any) {
            latest_any = run.start_wall_ns;
            memcpy(out->run_id, run.run_id, sizeof run.run_id);
        }
    }
    if (listing != NULL) {
        closedir(listing);
    }
}

/* The directory of a rank has been given: of this one, or of another of the same run. */
static void find_beside(tp_resumption *out, const char *directory, uint32_t rank,
                        const tp_run_info *run)
{
    char parent[TP_PATH_MAX];
    size_t length = strlen(directory);
    memcpy(out->run_id, run->run_id, sizeof run->run_id);
    memcpy(parent, directory, length + 1);
    while (length > 1 && parent[length - 1] == '/') {
        parent[--length] = '\0';
    }
    if (run->rank == rank) { /* who gives a link means what it leads to */
        if (realpath(parent, out->directory) == NULL) {
            memcpy(out->directory, parent, length + 1);
        }
        return;
    }
    char *slash = strrchr(parent, '/');
    if (slash != NULL) {
        slash[slash == parent ? 1 : 0] = '\0';
    } else {
        strcpy(parent, ".");
    }
    const wanted w = {.run_id = out->run_id};
    search(out, parent, rank, &w);
}

static tp_status find(tp_resumption *out, const char *base, uint32_t rank, const char *run,
                      tp_error *error)
{
    char below[TP_PATH_MAX];
    tp_run_info info;
    if (strlen(run) >= TP_PATH_MAX || tp_path_join(below, base, run) != TP_OK) {
        return tp_fail(error, TP_ERR_ARGUMENT, "path is too long: %.100s", run);
    }
    if (read_run(run, &info)) {
        find_beside(out, run, rank, &info);
    } else if (strchr(run, '/') != NULL) {
        return tp_fail(error, TP_ERR_NOTFOUND,
                       "can't go on in %s: no journal is there; give the directory of a rank "
                       "(TIME-rankN-RUN), or the id of the run",
                       run);
    } else if (read_run(below, &info)) {
        find_beside(out, below, rank, &info);
    } else {
        const wanted w = {.run_id = run};
        search(out, base, rank, &w);
    }
    return TP_OK;
}

tp_status tp_resume_choose(tp_resumption *out, const char *base, uint32_t rank, const char *named,
                           const char (*stamps)[TP_STAMP_SIZE], tp_error *error)
{
    *out = (tp_resumption){0};
    if (named != NULL && named[0] != '\0') {
        snprintf(out->what, sizeof out->what, "%s", named);
        return find(out, base, rank, named, error);
    }
    wanted w = {.run_id = NULL};
    if (stamps == NULL || !read_stamp(stamps[0], &w.first) || !read_stamp(stamps[1], &w.last)) {
        return TP_END;
    }
    strcpy(out->what, "append_output");
    search(out, base, rank, &w);
    return TP_OK;
}

static tp_status wait_for_lock(const char *directory, int *lock_fd, tp_error *error)
{
    const uint64_t deadline = tp_clock_monotonic() + LOCK_WAIT_NS;
    tp_status status = tp_run_lock(directory, lock_fd, error);
    while (status == TP_ERR_STATE && tp_clock_monotonic() < deadline) {
        nanosleep(&(struct timespec){0, LOCK_PAUSE_NS}, NULL);
        status = tp_run_lock(directory, lock_fd, error);
    }
    return status;
}

/* Whether the last batch of this step is partial. */
static bool is_partial(const char *directory, uint64_t step)
{
    tp_reader *reader = NULL;
    tp_item item;
    bool partial = false;
    if (tp_reader_open(&reader, directory, NULL) != TP_OK) {
        return false;
    }
    tp_reader_limit(reader, step, step, 0);
    tp_status status;
    while ((status = tp_reader_next(reader, &item, NULL)) == TP_OK || status == TP_ERR_CORRUPT) {
        if (status == TP_OK && item.type == TP_ITEM_BATCH) {
            partial = (item.batch.flags & TP_BATCH_PARTIAL) != 0;
        }
    }
    tp_reader_close(&reader);
    return partial;
}

static tp_status look_how_far(tp_resumption *resumption, tp_error *error)
{
    char folder[TP_PATH_MAX];
    tp_attempts attempts = {0};
    tp_reader *reader = NULL;
    tp_item item;
    bool any = false;
    uint64_t last = 0;
    if (tp_path_join(folder, resumption->directory, "journal") != TP_OK ||
        tp_attempts_load(&attempts, folder) != TP_OK) {
        tp_attempts_free(&attempts);
        return tp_fail(error, TP_ERR_NOMEM, "no memory to go on in %s", resumption->directory);
    }
    resumption->attempt = tp_attempts_count(&attempts);
    tp_attempts_free(&attempts);
    tp_status status = tp_reader_open(&reader, resumption->directory, error);
    if (status != TP_OK) {
        return status;
    }
    tp_reader_limit(reader, 0, UINT64_MAX, 1);
    while ((status = tp_reader_next(reader, &item, error)) == TP_OK || status == TP_ERR_CORRUPT) {
        if (status == TP_OK && item.type == TP_ITEM_BATCH) {
            any = true;
            last = item.batch.step;
        }
    }
    tp_reader_close(&reader);
    if (status != TP_END) {
        return status;
    }
    resumption->next_step = !any ? 0 : is_partial(resumption->directory, last) ? last : last + 1;
    return TP_OK;
}

static tp_status take(tp_resumption *resumption, int *lock_fd, tp_error *error)
{
    tp_error trouble;
    uint64_t steps;
    tp_status status = wait_for_lock(resumption->directory, lock_fd, error);
    if (status != TP_OK) {
        return status;
    }
    if (tp_recover_run(resumption->directory, &steps, &trouble) != TP_OK) {
        tp_log(TP_LOG_WARNING,
               "%s: what its killed process had recorded last stays in its black "
               "box: %s",
               resumption->directory, trouble.message);
    }
    status = look_how_far(resumption, error);
    if (status != TP_OK) {
        tp_run_unlock(resumption->directory, *lock_fd, 0);
    }
    return status;
}

tp_status tp_resume_enter(tp_resumption *found, const char *base, char directory[TP_PATH_MAX],
                          tp_run_info *run, int *lock_fd, tp_error *error)
{
    char path[TP_PATH_MAX];
    const char *run_id = found->run_id[0] != '\0' ? found->run_id : run->run_id;
    if (found->directory[0] == '\0') {
        tp_status status = tp_run_directory(path, base, run->rank, run_id, error);
        if (status != TP_OK) {
            return status;
        }
        tp_log(TP_LOG_WARNING, "%s: rank %u has no directory in %s to go on in: it gets a new one",
               found->what, run->rank, base);
    } else {
        tp_status status = take(found, lock_fd, error);
        if (status != TP_OK) {
            return status;
        }
        memcpy(path, found->directory, sizeof path);
        run->attempt = found->attempt;
        tp_log(TP_LOG_INFO, "going on in %s: attempt %u", path, found->attempt);
    }
    memmove(run->run_id, run_id, strlen(run_id) + 1);
    memcpy(directory, path, sizeof path);
    return TP_OK;
}

tp_status tp_resume_begin(const char *named, const char (*stamps)[TP_STAMP_SIZE], const char *base,
                          char directory[TP_PATH_MAX], tp_run_info *run, int *lock_fd,
                          uint64_t *step, tp_error *error)
{
    tp_resumption found;
    tp_status status = tp_resume_choose(&found, base, run->rank, named, stamps, error);
    if (status == TP_OK) {
        status = tp_resume_enter(&found, base, directory, run, lock_fd, error);
        *step = status == TP_OK && *step == 0 ? found.next_step : *step;
    }
    return status == TP_END ? TP_OK : status;
}
