#include "monitor/writer.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "monitor/follow.h"
#include "monitor/output.h"
#include "monitor/recover.h"
#include "monitor/run.h"

#define MS UINT64_C(1000000)
#define POLL_NS (10 * MS)        /* how often a step with pending slots is looked at */
#define FIRST_RETRY_NS (50 * MS) /* after a failed append, doubled up to the next */
#define LAST_RETRY_NS (2000 * MS)
#define CLOSE_RETRIES 20 /* failed appends before close gives the rest up */
#define MAX_SPARE 4      /* written steps that are kept to be filled again */
#define MAX_QUEUE 65536u /* entries, gaps among them: they would fill the memory in the end */

/* What waits for the writer: a step, or what is left of one that was given up. */
typedef struct entry {
    tp_step *step; /* NULL: gap */
    const tp_config *config;
    tp_batch gap;
    uint64_t bytes;
} entry;

struct tp_writer {
    tp_writer_options options;
    tp_output *output;
    pthread_t thread;
    pthread_t recovery;
    bool recovery_started;
    int stop_recovery;

    pthread_mutex_t lock;
    pthread_cond_t work; /* the thread waits for entries and for the end */
    pthread_cond_t done; /* the end of a step waits for room */
    entry *queue;        /* a ring of `capacity` entries */
    uint32_t capacity, first, count;
    uint64_t queued_bytes;
    uint32_t unjournaled; /* entries that are not in the journal yet: they are the last ones */
    bool head_pending;    /* the next one has slots to be filled: nobody waits for it */
    bool failing;         /* the journal refuses: nobody waits for it */
    uint64_t idle_since;  /* monotonic clock: the last step was written */
    bool stall_told;      /* that no other came */
    bool stop;
    bool given_up; /* at the end, after too many failures: no entry is tried any more */
    tp_step *spare[MAX_SPARE];
    uint32_t spare_count;

    atomic_bool has_begun; /* the next field holds one that nobody has taken yet */
    tp_record begun;       /* an incident; under the lock */

    atomic_ullong steps, records, gaps, journaled, wait_ns, cpu_ns;
    uint64_t bytes, bytes_told; /* written to all files; of these, told of in batches */
    tp_status result;           /* of the thread, once it has ended */
};

static void wait_for(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t until_ns)
{
    const struct timespec until = {(time_t)(until_ns / 1000000000), (long)(until_ns % 1000000000)};
    pthread_cond_timedwait(condition, lock, &until);
}

/* The step at this place of the queue as a batch. */
static tp_status view_entry(tp_writer *writer, const entry *e, tp_batch *batch)
{
    if (e->step == NULL) {
        *batch = e->gap;
        return TP_OK;
    }
    tp_status status = tp_step_view(e->step, batch);
    if (status == TP_OK) {
        uint64_t cpu = tp_clock_thread_cpu();
        batch->writer_ns = cpu - atomic_load(&writer->cpu_ns);
        atomic_store(&writer->cpu_ns, cpu);
        writer->bytes = tp_output_bytes(writer->output);
        batch->bytes = writer->bytes - writer->bytes_told;
    }
    return status;
}

/* Only the end cuts it short, not a step that comes in; the lock is held. */
static void wait_to_retry(tp_writer *writer, uint64_t limit_ns)
{
    const uint64_t until = tp_clock_monotonic() + limit_ns;
    const bool stop = writer->stop;
    while (writer->stop == stop && tp_clock_monotonic() < until) {
        wait_for(&writer->work, &writer->lock, until);
    }
}

static void make_gap(tp_batch *batch)
{
    batch->flags |= TP_BATCH_GAP;
    batch->records = NULL;
    batch->arena = NULL;
    batch->arena_size = 0;
}

/* Appends until it succeeds; false when the monitor is being closed and it keeps failing. */
static bool journal_until_done(tp_writer *writer, const entry *e, tp_batch *batch)
{
    uint64_t pause = FIRST_RETRY_NS;
    bool warned = false;
    bool too_large = false;
    unsigned failures = 0; /* since the end was asked for */
    bool *no_room = tp_output_no_room(writer->output);
    if (writer->given_up) {
        return false;
    }
    for (;;) {
        tp_error error;
        tp_status status = view_entry(writer, e, batch);
        if (status != TP_OK) {
            tp_fail(&error, status, "no memory");
        } else {
            if (too_large) {
                make_gap(batch);
            }
            status = tp_output_journal(writer->output, batch, &error);
        }
        if (status == TP_ERR_ARGUMENT && !too_large) {
            /* No journal takes a step of that size: its place is all that can be kept. */
            tp_log(TP_LOG_WARNING, "%s: recorded as a gap", error.message);
            atomic_fetch_add(&writer->gaps, 1);
            too_large = true;
            make_gap(batch);
            status = tp_output_journal(writer->output, batch, &error);
        }
        pthread_mutex_lock(&writer->lock);
        writer->failing = status != TP_OK;
        bool give_up = status != TP_OK && writer->stop && failures++ == CLOSE_RETRIES;
        if (status != TP_OK && !give_up) {
            pthread_cond_broadcast(&writer->done);
            wait_to_retry(writer, writer->stop ? FIRST_RETRY_NS : pause);
            pause = pause * 2 > LAST_RETRY_NS ? LAST_RETRY_NS : pause * 2;
        }
        pthread_mutex_unlock(&writer->lock);
        if (status == TP_OK) {
            if (warned) {
                tp_log(TP_LOG_INFO, "the journal is being written again");
            }
            return true;
        }
        if (status == TP_ERR_NOSPACE && *no_room) {
            warned = true;
        }
        if (!warned) {
            tp_log(TP_LOG_WARNING, "the journal can't be written, trying again: %s", error.message);
            warned = true;
        }
        *no_room |= status == TP_ERR_NOSPACE;
        if (give_up) {
            writer->given_up = true;
            return false;
        }
    }
}

/* How long a step may take before that is told of; 0: for ever. The lock is held. */
static uint64_t stall_ns(const tp_writer *writer)
{
    const tp_config *config = writer->options.config;
    for (uint32_t i = 0; i < config->rule_count; i++) {
        if (config->rules[i].rule == TP_RULE_STALLED_STEP) {
            const double most = (double)(UINT64_MAX / 4);
            const double ns = config->rules[i].threshold * 1e9;
            return (uint64_t)(ns < most ? ns : most);
        }
    }
    return 0;
}

/* Waits for the next step. When none comes for too long, that is said, once. The lock is held, but
 * not while it is said. */
static void wait_for_work(tp_writer *writer)
{
    const uint64_t limit = stall_ns(writer);
    if (limit == 0 || writer->stall_told || atomic_load(&writer->steps) == 0) {
        pthread_cond_wait(&writer->work, &writer->lock);
        return;
    }
    wait_for(&writer->work, &writer->lock, writer->idle_since + limit);
    const uint64_t now = tp_clock_monotonic();
    if (writer->count == 0 && !writer->stop && now >= writer->idle_since + limit) {
        tp_record last;
        uint64_t step = 0;
        writer->stall_told = true;
        const double seconds = (double)(now - writer->idle_since) / 1e9;
        pthread_mutex_unlock(&writer->lock);
        const bool any = writer->options.peek(writer->options.context, &step, &last);
        tp_output_tell_stall(writer->output, step, any ? &last : NULL, seconds);
        pthread_mutex_lock(&writer->lock);
    }
}

/* Waits until the first entry can be written; false when all is done and the end was asked for. */
static bool next_entry(tp_writer *writer, entry *e)
{
    bool found = false;
    pthread_mutex_lock(&writer->lock);
    for (;;) {
        if (writer->count > 0) {
            *e = writer->queue[writer->first];
            bool pending = e->step != NULL && !tp_step_is_complete(e->step);
            if (writer->head_pending != pending) {
                writer->head_pending = pending;
                pthread_cond_broadcast(&writer->done);
            }
            if (!pending || writer->stop) {
                found = true;
                break;
            }
            wait_for(&writer->work, &writer->lock, tp_clock_monotonic() + POLL_NS);
        } else if (writer->stop) {
            break;
        } else {
            wait_for_work(writer);
        }
    }
    pthread_mutex_unlock(&writer->lock);
    return found;
}

static void mark_journaled(tp_writer *writer, const entry *e)
{
    if (e->step != NULL) {
        tp_step_set_stored(e->step);
    }
    writer->bytes_told = writer->bytes;
    atomic_fetch_add(&writer->journaled, 1);
    pthread_mutex_lock(&writer->lock);
    writer->unjournaled--;
    writer->head_pending = false;
    pthread_cond_broadcast(&writer->done);
    pthread_mutex_unlock(&writer->lock);
}

/* Whether the step can be filled again. Whoever still holds a slot of it may fill it: nobody else
 * may. */
static bool make_empty(tp_step *step)
{
    if (step == NULL || !tp_step_is_complete(step)) {
        return false;
    }
    tp_step_empty(step);
    return true;
}

/* Keeps an empty step to be filled again; the lock is held. What is returned is left over. */
static tp_step *keep_spare(tp_writer *writer, tp_step *step, bool is_empty)
{
    if (!is_empty || writer->spare_count == MAX_SPARE) {
        return step;
    }
    writer->spare[writer->spare_count++] = step;
    return NULL;
}

/* Takes the first entry off the queue; its step becomes a spare one. */
static void finish_entry(tp_writer *writer, const entry *e, bool journaled)
{
    const bool is_empty = make_empty(e->step);
    pthread_mutex_lock(&writer->lock);
    writer->first = (writer->first + 1) % writer->capacity;
    writer->count--;
    writer->queued_bytes -= e->bytes;
    if (!journaled) {
        writer->unjournaled--;
    }
    tp_step *surplus = keep_spare(writer, e->step, is_empty);
    writer->idle_since = tp_clock_monotonic();
    writer->stall_told = false;
    pthread_cond_broadcast(&writer->done);
    pthread_mutex_unlock(&writer->lock);
    tp_step_abandon(surplus);
}

static void note_begun(tp_writer *writer)
{
    const tp_record *begun = tp_output_begun(writer->output);
    if (begun == NULL) {
        return;
    }
    pthread_mutex_lock(&writer->lock);
    if (!atomic_load(&writer->has_begun) ||
        begun->u.incident.severity > writer->begun.u.incident.severity) {
        writer->begun = *begun;
        atomic_store(&writer->has_begun, true);
    }
    pthread_mutex_unlock(&writer->lock);
}

bool tp_writer_take_incident(tp_writer *writer, tp_record *incident)
{
    if (!atomic_load_explicit(&writer->has_begun, memory_order_relaxed)) {
        return false;
    }
    pthread_mutex_lock(&writer->lock);
    *incident = writer->begun;
    atomic_store(&writer->has_begun, false);
    pthread_mutex_unlock(&writer->lock);
    return true;
}

/* A step that could not be written until the end is given up, as one that found no room is. */
static void count_lost(tp_writer *writer, const entry *e)
{
    if (e->step != NULL && (tp_step_header(e->step)->flags & TP_BATCH_PARTIAL) == 0) {
        atomic_fetch_add(&writer->gaps, 1);
    }
}

static void *run_writer(void *argument)
{
    tp_writer *writer = argument;
    tp_status result = TP_OK;
    entry e;
    while (next_entry(writer, &e)) {
        tp_batch batch;
        tp_output_configure(writer->output, e.config);
        bool journaled = journal_until_done(writer, &e, &batch);
        if (journaled) {
            note_begun(writer);
            mark_journaled(writer, &e);
            tp_output_follow(writer->output, &batch);
        } else {
            result = TP_ERR_IO;
            count_lost(writer, &e);
        }
        tp_box_report(writer->options.box);
        finish_entry(writer, &e, journaled);
    }
    tp_status status = tp_output_finish(writer->output);
    atomic_store(&writer->cpu_ns, tp_clock_thread_cpu());
    writer->result = result != TP_OK ? result : status;
    return NULL;
}

static tp_status recover_directory(const char *directory, const int *stop)
{
    tp_error error;
    uint64_t steps = 0;
    tp_status status = tp_recover_run(directory, &steps, &error);
    if (status == TP_OK) {
        status = tp_follow_directory(directory, stop, &steps, &error);
    }
    if (status == TP_END) {
        return status; /* this run is ending; the next one goes on */
    }
    if (status != TP_OK) {
        tp_log(TP_LOG_WARNING, "%s, left by an earlier run, is not complete: %s", directory,
               error.message);
    } else if (steps > 0) {
        tp_log(TP_LOG_INFO, "%s, left by an earlier run: %llu step%s brought to its outputs",
               directory, (unsigned long long)steps, tp_plural(steps));
    }
    return status;
}

/* Completes what earlier runs of this rank left when they were killed. */
static void *run_recovery(void *argument)
{
    tp_writer *writer = argument;
    tp_recover_boxes(writer->options.base, &writer->stop_recovery);
    tp_run_visit_unfinished(writer->options.base, writer->options.run.rank, &writer->stop_recovery,
                            recover_directory);
    return NULL;
}

/* Threads of ours take no signals: those are the program's. */
static int start_thread(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

tp_status tp_writer_open(tp_writer **out, const tp_writer_options *options, tp_error *error)
{
    pthread_condattr_t monotonic;
    tp_writer *writer = tp_calloc(1, sizeof *writer);
    if (writer == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for the writer");
    }
    writer->options = *options;
    pthread_mutex_init(&writer->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&writer->work, &monotonic);
    pthread_cond_init(&writer->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    writer->capacity = 64;
    writer->queue = tp_calloc(writer->capacity, sizeof *writer->queue);
    tp_status status = writer->queue != NULL ? TP_OK : TP_ERR_NOMEM;
    if (status == TP_OK) {
        status = tp_output_new(&writer->output, &writer->options);
    }
    if (status != TP_OK) {
        tp_writer_free(writer);
        return tp_fail(error, status, "no memory for the writer");
    }
    int failed = start_thread(&writer->thread, run_writer, writer);
    if (failed != 0) {
        tp_writer_free(writer);
        return tp_fail(error, TP_ERR_IO, "can't start the writer thread: %s", strerror(failed));
    }
    tp_writer_start_recovery(writer);
    *out = writer;
    return TP_OK;
}

void tp_writer_start_recovery(tp_writer *writer)
{
    __atomic_store_n(&writer->stop_recovery, 0, __ATOMIC_RELEASE);
    writer->recovery_started = start_thread(&writer->recovery, run_recovery, writer) == 0;
}

void tp_writer_stop_recovery(tp_writer *writer)
{
    __atomic_store_n(&writer->stop_recovery, 1, __ATOMIC_RELEASE);
    if (writer->recovery_started) {
        pthread_join(writer->recovery, NULL);
        writer->recovery_started = false;
    }
}

tp_status tp_writer_move(tp_writer *writer, const tp_run_info *run, int lock_fd)
{
    tp_status status = TP_ERR_STATE;
    pthread_mutex_lock(&writer->lock);
    if (atomic_load(&writer->steps) == 0 && writer->count == 0 && !writer->stop) {
        writer->options.run = *run;
        tp_output_move(writer->output, run, lock_fd);
        status = TP_OK;
    }
    pthread_mutex_unlock(&writer->lock);
    return status;
}

/* Room for one more entry; the lock is held. */
static bool reserve_entry(tp_writer *writer)
{
    if (writer->count < writer->capacity) {
        return true;
    }
    if (writer->capacity == MAX_QUEUE) {
        return false;
    }
    entry *queue = tp_alloc((size_t)writer->capacity * 2 * sizeof *queue);
    if (queue == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < writer->count; i++) {
        queue[i] = writer->queue[(writer->first + i) % writer->capacity];
    }
    tp_free(writer->queue);
    writer->queue = queue;
    writer->capacity *= 2;
    writer->first = 0;
    return true;
}

/* Whether the end of a step has to wait; the lock is held. */
static bool must_wait(const tp_writer *writer, uint64_t bytes)
{
    if (writer->failing) {
        return false;
    }
    return (writer->unjournaled > 0 && !writer->head_pending) ||
           (writer->queued_bytes > 0 &&
            writer->queued_bytes + bytes > writer->options.config->budget_bytes);
}

void tp_writer_submit(tp_writer *writer, tp_step *step, uint64_t *waited_ns)
{
    const uint64_t start = tp_clock_monotonic();
    const uint64_t deadline = start + writer->options.config->wait_ms * MS;
    const uint64_t count = tp_step_count(step);
    const uint64_t bytes = tp_step_bytes(step);
    *waited_ns = 0;
    pthread_mutex_lock(&writer->lock);
    if (must_wait(writer, bytes)) {
        while (must_wait(writer, bytes) && tp_clock_monotonic() < deadline) {
            wait_for(&writer->done, &writer->lock, deadline);
        }
        *waited_ns = tp_clock_monotonic() - start;
    }
    if ((tp_step_header(step)->flags & TP_BATCH_PARTIAL) == 0) {
        atomic_fetch_add(&writer->steps, 1);
    }
    atomic_fetch_add(&writer->wait_ns, *waited_ns);
    bool too_much = writer->queued_bytes > 0 &&
                    writer->queued_bytes + bytes > writer->options.config->budget_bytes;
    bool room = reserve_entry(writer);
    if (too_much || !room) {
        atomic_fetch_add(&writer->gaps, 1);
    } else {
        atomic_fetch_add(&writer->records, count);
    }
    if (room) {
        entry *e = &writer->queue[(writer->first + writer->count) % writer->capacity];
        *e = (entry){.step = too_much ? NULL : step,
                     .config = writer->options.config,
                     .bytes = too_much ? 0 : bytes};
        if (too_much) {
            e->gap = *tp_step_header(step);
            e->gap.flags |= TP_BATCH_GAP;
            e->gap.count = count;
        }
        writer->count++;
        writer->unjournaled++;
        writer->queued_bytes += e->bytes;
        pthread_cond_signal(&writer->work);
    }
    tp_step *surplus = room && !too_much ? NULL : keep_spare(writer, step, make_empty(step));
    pthread_mutex_unlock(&writer->lock);
    tp_step_abandon(surplus);
}

void tp_writer_configure(tp_writer *writer, const tp_config *config)
{
    pthread_mutex_lock(&writer->lock);
    writer->options.config = config;
    pthread_mutex_unlock(&writer->lock);
}

tp_step *tp_writer_take_spare(tp_writer *writer)
{
    pthread_mutex_lock(&writer->lock);
    tp_step *step = writer->spare_count > 0 ? writer->spare[--writer->spare_count] : NULL;
    pthread_mutex_unlock(&writer->lock);
    return step;
}

void tp_writer_get_counters(tp_writer *writer, tp_monitor_counters *counters)
{
    tp_output_get_counters(writer->output, counters);
    counters->steps = atomic_load(&writer->steps);
    counters->records = atomic_load(&writer->records);
    counters->gaps = atomic_load(&writer->gaps);
    counters->journaled_steps = atomic_load(&writer->journaled);
    counters->wait_ns = atomic_load(&writer->wait_ns);
    counters->writer_cpu_ns = atomic_load(&writer->cpu_ns);
}

tp_status tp_writer_finish(tp_writer *writer)
{
    pthread_mutex_lock(&writer->lock);
    bool running = !writer->stop;
    writer->stop = true;
    pthread_cond_signal(&writer->work);
    pthread_mutex_unlock(&writer->lock);
    if (running) {
        pthread_join(writer->thread, NULL);
        tp_writer_stop_recovery(writer);
    }
    return writer->result;
}

void tp_writer_free(tp_writer *writer)
{
    for (uint32_t i = 0; i < writer->spare_count; i++) {
        tp_step_free(writer->spare[i]);
    }
    pthread_mutex_destroy(&writer->lock);
    pthread_cond_destroy(&writer->work);
    pthread_cond_destroy(&writer->done);
    tp_output_free(writer->output);
    tp_free(writer->queue);
    tp_free(writer);
}

void tp_writer_abandon(tp_writer *writer)
{
    tp_output_abandon(writer->output);
}
