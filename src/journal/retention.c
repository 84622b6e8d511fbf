#include "journal/retention.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "journal/cursor.h"
#include "journal/frame.h"
#include "journal/thin.h"

#define OVERVIEWS_SHARE 4 /* of the bytes, what is left of segments may take one part in so many */

typedef struct old_segment {
    uint64_t segment;
    uint64_t size;
    int64_t seconds; /* Unix time of the last append */
    bool is_thin;
    bool stands_alone; /* it can't be joined with the one behind it */
    tp_removed removed;
} old_segment;

static int compare(const void *a, const void *b)
{
    const old_segment *one = a;
    const old_segment *two = b;
    return (one->segment > two->segment) - (one->segment < two->segment);
}

static tp_status list(const char *folder, tp_buf *segments, tp_error *error)
{
    const struct dirent *entry;
    DIR *listing = opendir(folder);
    if (listing == NULL) {
        return tp_fail(error, tp_status_from_errno(errno), "can't list %s: %s", folder,
                       strerror(errno));
    }
    while ((entry = readdir(listing)) != NULL) {
        old_segment one = {0};
        char path[TP_PATH_MAX];
        struct stat info;
        if (tp_segment_number(entry->d_name, &one.segment) &&
            tp_segment_path(path, folder, one.segment) == TP_OK && stat(path, &info) == 0) {
            one.size = (uint64_t)info.st_size;
            one.seconds = info.st_mtime;
            tp_buf_put(segments, &one, sizeof one);
        }
    }
    closedir(listing);
    if (segments->failed) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory to list %s", folder);
    }
    qsort(segments->data, segments->size / sizeof(old_segment), sizeof(old_segment), compare);
    return TP_OK;
}

/* The cursors in a folder of the run's directory. */
static void look_at_cursors(const char *run, const char *name, tp_waiting *waiting)
{
    char folder[TP_PATH_MAX];
    char path[TP_PATH_MAX];
    const struct dirent *entry;
    DIR *listing = tp_path_join(folder, run, name) == TP_OK ? opendir(folder) : NULL;
    while (listing != NULL && (entry = readdir(listing)) != NULL) {
        tp_cursor cursor;
        tp_buf blob = TP_BUF_INIT;
        const size_t size = strlen(entry->d_name);
        if (size > 7 && strcmp(entry->d_name + size - 7, ".cursor") == 0 &&
            tp_path_join(path, folder, entry->d_name) == TP_OK &&
            tp_cursor_load(path, &cursor, &blob, NULL) == TP_OK &&
            cursor.position.segment < waiting->segment) {
            waiting->segment = cursor.position.segment;
            snprintf(waiting->cursor, sizeof waiting->cursor, "%s/%.200s", name, entry->d_name);
        }
        tp_buf_free(&blob);
    }
    if (listing != NULL) {
        closedir(listing);
    }
}

/* Who is behind all others: among those that make files, and those that deliver. */
static void find_waiting(const char *folder, tp_waiting *waiting)
{
    char run[TP_PATH_MAX];
    const char *slash = strrchr(folder, '/');
    *waiting = (tp_waiting){.segment = UINT64_MAX};
    if (slash != NULL) {
        snprintf(run, sizeof run, "%.*s", (int)(slash - folder), folder);
        look_at_cursors(run, "followers", waiting);
        look_at_cursors(run, "ship", waiting);
    }
}

/* What there is, and what of it has lost its batches. */
typedef struct stock {
    const char *folder;
    old_segment *all;
    uint64_t count;
    uint64_t bytes;
    uint64_t thin_bytes;
} stock;

static void measure(stock *s, old_segment *one, bool is_thin)
{
    char path[TP_PATH_MAX];
    struct stat info;
    s->bytes -= one->size;
    s->thin_bytes -= one->is_thin ? one->size : 0;
    one->is_thin = is_thin;
    one->size = tp_segment_path(path, s->folder, one->segment) == TP_OK && stat(path, &info) == 0
                    ? (uint64_t)info.st_size
                    : 0;
    s->bytes += one->size;
    s->thin_bytes += is_thin ? one->size : 0;
}

static void forget(stock *s, uint64_t place)
{
    s->bytes -= s->all[place].size;
    s->thin_bytes -= s->all[place].size;
    s->count--;
    memmove(s->all + place, s->all + place + 1, (s->count - place) * sizeof *s->all);
}

/* Of two that were joined when the process was killed, the first is still there. */
static void tidy(stock *s)
{
    char path[TP_PATH_MAX];
    for (uint64_t i = 0; i + 1 < s->count;) {
        const old_segment *one = &s->all[i];
        const old_segment *next = one + 1;
        if (one->is_thin && next->is_thin && next->removed.attempt == one->removed.attempt &&
            next->removed.first_step == one->removed.first_step &&
            next->removed.last_step > one->removed.last_step &&
            next->removed.batches > one->removed.batches &&
            tp_segment_path(path, s->folder, one->segment) == TP_OK) {
            tp_file_remove(path);
            forget(s, i);
        } else {
            i++;
        }
    }
}

/* Whether anything is too large or too old, as far as the files tell without being opened. */
static bool is_exceeded(const stock *s, const tp_retention *limits)
{
    const int64_t now = tp_clock_wall() / 1000000000;
    bool exceeded = limits->bytes > 0 && s->bytes > limits->bytes;
    for (uint64_t i = 0; i < s->count && limits->seconds > 0; i++) {
        exceeded = exceeded || now - s->all[i].seconds > (int64_t)limits->seconds;
    }
    return exceeded;
}

/* Segments lose their batches, from the oldest on. At least half of the bytes are for steps,
 * whatever has been left of others. */
static tp_status thin(stock *s, const tp_retention *limits, uint64_t end, tp_waiting *waiting,
                      tp_error *error)
{
    const int64_t now = tp_clock_wall() / 1000000000;
    const uint64_t needed = waiting->segment;
    tp_status status = TP_OK;
    waiting->segments = 0;
    for (uint64_t i = 0; i < s->count && s->all[i].segment < end && status == TP_OK; i++) {
        old_segment *one = &s->all[i];
        const int64_t age = now - one->seconds;
        const bool too_old = limits->seconds > 0 && age > (int64_t)limits->seconds;
        const bool too_large = limits->bytes > 0 && s->bytes > limits->bytes &&
                               s->bytes - s->thin_bytes > limits->bytes / 2;
        const bool is_urgent = (limits->bytes > 0 && s->bytes / 2 > limits->bytes) ||
                               (limits->seconds > 0 && age / 2 > (int64_t)limits->seconds);
        const bool waits = one->segment >= needed;
        if (one->is_thin || !(too_old || too_large) || (waits && !is_urgent)) {
            continue;
        }
        status = tp_segment_thin(s->folder, one->segment, error);
        if (status == TP_OK) {
            waiting->segments += waits;
            measure(s, one, tp_segment_is_thin(s->folder, one->segment, &one->removed));
        }
        status = status == TP_END || status == TP_ERR_CORRUPT ? TP_OK : status;
    }
    return status;
}

/* The two neighbours that have the fewest steps together; count: there are none. */
static uint64_t find_pair(const stock *s)
{
    uint64_t best = s->count;
    uint64_t least = UINT64_MAX;
    for (uint64_t i = 0; i + 1 < s->count; i++) {
        const old_segment *one = &s->all[i];
        const uint64_t batches = one->removed.batches + one[1].removed.batches;
        if (one->is_thin && one[1].is_thin && !one->stands_alone && batches < least) {
            best = i;
            least = batches;
        }
    }
    return best;
}

/* What is left of segments is put together while it is too much, so that spans get wider evenly. */
static tp_status join(stock *s, const tp_retention *limits, tp_error *error)
{
    tp_status status = TP_OK;
    while (limits->bytes > 0 && s->thin_bytes > limits->bytes / OVERVIEWS_SHARE &&
           status == TP_OK) {
        const uint64_t place = find_pair(s);
        if (place == s->count) {
            break;
        }
        old_segment *one = &s->all[place];
        status = tp_segment_join(s->folder, one->segment, one[1].segment, error);
        if (status == TP_OK) {
            forget(s, place);
            measure(s, one, tp_segment_is_thin(s->folder, one->segment, &one->removed));
        } else if (status == TP_END || status == TP_ERR_CORRUPT) {
            one->stands_alone = true;
            status = TP_OK;
        }
    }
    return status;
}

tp_status tp_retention_apply(const tp_retention *limits, const char *folder, uint64_t end,
                             tp_waiting *waiting, tp_error *error)
{
    tp_buf segments = TP_BUF_INIT;
    stock s = {.folder = folder};
    find_waiting(folder, waiting);
    tp_status status = list(folder, &segments, error);
    s.all = (old_segment *)(void *)segments.data;
    s.count = status == TP_OK ? segments.size / sizeof *s.all : 0;
    for (uint64_t i = 0; i < s.count; i++) {
        s.bytes += s.all[i].size;
    }
    if (!is_exceeded(&s, limits)) {
        tp_buf_free(&segments);
        return status;
    }
    for (uint64_t i = 0; i < s.count; i++) {
        old_segment *one = &s.all[i];
        one->is_thin = tp_segment_is_thin(folder, one->segment, &one->removed);
        s.thin_bytes += one->is_thin ? one->size : 0;
    }
    tidy(&s);
    if (status == TP_OK) {
        status = thin(&s, limits, end, waiting, error);
    }
    if (status == TP_OK) {
        status = join(&s, limits, error);
    }
    tp_buf_free(&segments);
    return status;
}
