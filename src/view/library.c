#include "view/library.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "journal/find.h"

#define PAUSE_NS 200000000           /* when there is nothing to read */
#define LOOK_NS UINT64_C(2000000000) /* between two looks for new journals */

struct tp_library {
    char **directories;
    uint32_t directory_count;
    tp_buf runs;           /* tp_view_run *, in the order in which they were found */
    tp_map seen;           /* directories of journals */
    pthread_mutex_t mutex; /* of runs, their wanted and is_read, and closing */
    pthread_cond_t changed;
    pthread_t thread;
    bool has_thread;
    bool closing;
};

typedef struct found {
    const char *directory;
    tp_run_info info;
} found;

static int by_start(const void *a, const void *b)
{
    const found *p = a;
    const found *q = b;
    return p->info.start_wall_ns < q->info.start_wall_ns   ? -1
           : p->info.start_wall_ns > q->info.start_wall_ns ? 1
                                                           : strcmp(p->directory, q->directory);
}

static tp_view_run *run_of(tp_library *library, const char *id)
{
    tp_view_run **runs = (tp_view_run **)(void *)library->runs.data;
    for (size_t i = 0; i < library->runs.size / sizeof *runs; i++) {
        if (strcmp(runs[i]->id, id) == 0) {
            return runs[i];
        }
    }
    return NULL;
}

static tp_status add(tp_library *library, const found *one, tp_error *error)
{
    tp_view_run *run = run_of(library, one->info.run_id);
    tp_status status = TP_OK;
    if (run == NULL) {
        run = tp_view_run_new(&one->info, one->directory);
        pthread_mutex_lock(&library->mutex);
        if (run != NULL) {
            tp_buf_put(&library->runs, &run, sizeof run);
        }
        pthread_mutex_unlock(&library->mutex);
        if (run == NULL || library->runs.failed) {
            return tp_fail(error, TP_ERR_NOMEM, "no memory for a run");
        }
    }
    status = tp_view_run_add(run, &one->info, one->directory, error);
    if (status == TP_OK) {
        status = tp_map_set(&library->seen, one->directory, strlen(one->directory), 0);
    }
    return status;
}

/* Finds journals that weren't there before. */
static tp_status look(tp_library *library, tp_error *error)
{
    tp_buf all = TP_BUF_INIT;
    tp_journals *journals = tp_calloc(library->directory_count, sizeof *journals);
    tp_status status =
        journals == NULL ? tp_fail(error, TP_ERR_NOMEM, "no memory to look for runs") : TP_OK;
    uint32_t unused;
    for (uint32_t i = 0; i < library->directory_count && status == TP_OK; i++) {
        status = tp_journals_find(&journals[i], library->directories[i], error);
        for (uint32_t k = 0; status == TP_OK && k < journals[i].count; k++) {
            const char *directory = journals[i].directories[k];
            tp_reader *reader = NULL;
            if (tp_map_get(&library->seen, directory, strlen(directory), &unused) != TP_OK &&
                tp_reader_open(&reader, directory, NULL) == TP_OK) {
                const found one = {directory, *tp_reader_run(reader)};
                tp_buf_put(&all, &one, sizeof one);
                tp_reader_close(&reader);
            }
        }
    }
    if (status == TP_OK && all.size > 0) {
        qsort(all.data, all.size / sizeof(found), sizeof(found), by_start);
    }
    for (size_t i = 0; status == TP_OK && i < all.size / sizeof(found); i++) {
        status = add(library, (const found *)(const void *)all.data + i, error);
    }
    for (uint32_t i = 0; journals != NULL && i < library->directory_count; i++) {
        tp_journals_free(&journals[i]);
    }
    tp_free(journals);
    tp_buf_free(&all);
    return status;
}

static bool is_closing(tp_library *library)
{
    pthread_mutex_lock(&library->mutex);
    const bool closing = library->closing;
    pthread_mutex_unlock(&library->mutex);
    return closing;
}

/* Reads a step of each rank of each run that is wanted; whether there was one. */
static bool read_some(tp_library *library)
{
    bool any = false;
    const uint32_t count = tp_library_count(library);
    for (uint32_t i = 0; i < count; i++) {
        tp_view_run *run = tp_library_at(library, i);
        bool more = false;
        pthread_mutex_lock(&library->mutex);
        const bool wanted = run->wanted;
        pthread_mutex_unlock(&library->mutex);
        if (!wanted) {
            continue;
        }
        tp_view_run_advance(run, &more);
        if (!more) {
            pthread_mutex_lock(&library->mutex);
            run->is_read = true;
            pthread_cond_broadcast(&library->changed);
            pthread_mutex_unlock(&library->mutex);
        }
        any = any || more;
    }
    return any;
}

static void *work(void *context)
{
    tp_library *library = context;
    uint64_t looked = tp_clock_monotonic();
    while (!is_closing(library)) {
        if (read_some(library)) {
            continue;
        }
        const uint64_t now = tp_clock_monotonic();
        if (now - looked > LOOK_NS) {
            look(library, NULL); /* what can't be listed now may be listed later */
            looked = now;
        }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += PAUSE_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&library->mutex);
        if (!library->closing) {
            pthread_cond_timedwait(&library->changed, &library->mutex, &until);
        }
        pthread_mutex_unlock(&library->mutex);
    }
    return NULL;
}

tp_status tp_library_open(tp_library **out, const char *const *directories, uint32_t count,
                          tp_error *error)
{
    tp_library *library = tp_calloc(1, sizeof *library);
    tp_status status = TP_OK;
    if (library == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory to look for runs");
    }
    pthread_mutex_init(&library->mutex, NULL);
    pthread_cond_init(&library->changed, NULL);
    library->directories = tp_calloc(count, sizeof *library->directories);
    for (uint32_t i = 0; library->directories != NULL && i < count; i++) {
        library->directories[i] = tp_strdup(directories[i]);
        library->directory_count += library->directories[i] != NULL;
    }
    if (library->directory_count < count) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory to look for runs");
    }
    if (status == TP_OK) {
        status = look(library, error);
    }
    if (status == TP_OK) {
        (void)tp_library_find(library, "");
        library->has_thread = pthread_create(&library->thread, NULL, work, library) == 0;
        if (!library->has_thread) {
            status = tp_fail(error, TP_ERR_IO, "can't start a thread");
        }
    }
    if (status != TP_OK) {
        tp_library_close(library);
        return status;
    }
    *out = library;
    return TP_OK;
}

void tp_library_close(tp_library *library)
{
    if (library == NULL) {
        return;
    }
    if (library->has_thread) {
        pthread_mutex_lock(&library->mutex);
        library->closing = true;
        pthread_cond_broadcast(&library->changed);
        pthread_mutex_unlock(&library->mutex);
        pthread_join(library->thread, NULL);
    }
    tp_view_run **runs = (tp_view_run **)(void *)library->runs.data;
    for (size_t i = 0; i < library->runs.size / sizeof *runs; i++) {
        tp_view_run_free(runs[i]);
    }
    for (uint32_t i = 0; i < library->directory_count; i++) {
        tp_free(library->directories[i]);
    }
    tp_free(library->directories);
    tp_buf_free(&library->runs);
    tp_map_free(&library->seen);
    pthread_cond_destroy(&library->changed);
    pthread_mutex_destroy(&library->mutex);
    tp_free(library);
}

uint32_t tp_library_count(tp_library *library)
{
    pthread_mutex_lock(&library->mutex);
    const uint32_t count = (uint32_t)(library->runs.size / sizeof(tp_view_run *));
    pthread_mutex_unlock(&library->mutex);
    return count;
}

tp_view_run *tp_library_at(tp_library *library, uint32_t index)
{
    tp_view_run *run = NULL;
    pthread_mutex_lock(&library->mutex);
    const uint32_t count = (uint32_t)(library->runs.size / sizeof run);
    if (index < count) { /* the newest was found last */
        run = ((tp_view_run **)(void *)library->runs.data)[count - 1 - index];
    }
    pthread_mutex_unlock(&library->mutex);
    return run;
}

tp_view_run *tp_library_find(tp_library *library, const char *id)
{
    for (uint32_t i = 0;; i++) {
        tp_view_run *run = tp_library_at(library, i);
        if (run == NULL) {
            return NULL;
        }
        if (strncmp(run->id, id, strlen(id)) == 0) {
            pthread_mutex_lock(&library->mutex);
            run->wanted = true;
            pthread_cond_broadcast(&library->changed);
            pthread_mutex_unlock(&library->mutex);
            return run;
        }
    }
}

void tp_library_wait(tp_library *library, tp_view_run *run)
{
    pthread_mutex_lock(&library->mutex);
    while (!run->is_read) {
        pthread_cond_wait(&library->changed, &library->mutex);
    }
    pthread_mutex_unlock(&library->mutex);
}
