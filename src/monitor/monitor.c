#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "monitor/box.h"
#include "monitor/configs.h"
#include "monitor/console.h"
#include "monitor/forks.h"
#include "monitor/hooks.h"
#include "monitor/resume.h"
#include "monitor/run.h"
#include "monitor/writer.h"

#define LONG_RUN_NS UINT64_C(10000000000) /* at its end the cost is told */
#define FIRST_CAPACITY 1024               /* records of a step before memory is asked for again */

struct tp_monitor {
    tp_configs *configs;
    bool watch_defaults;
    tp_registry *registry;
    tp_box *box; /* NULL: there is no place for one */
    tp_writer *writer;
    pthread_mutex_t step_lock; /* held while a slot is reserved, and while steps change places */
    tp_step *step;             /* the open one; NULL: there was no memory for it */
    uint64_t step_number;
    uint64_t first_step;    /* steps are chosen from this one on */
    uint64_t collected;     /* steps that have been recorded, as the configuration counts them */
    bool paused;            /* no step is wanted */
    atomic_bool collecting; /* the open step is one that the configuration wants */
    tp_run_info run;
    int32_t pp_stage;
    uint32_t micro_steps;
    uint32_t flags;     /* TP_BATCH_… of the open step */
    uint32_t left_out;  /* as in a tp_batch */
    uint32_t zoom;      /* likewise */
    uint64_t opened_ns; /* monotonic clock */
    atomic_bool closing;
    atomic_ullong hook_ns, errors, skipped;
    char base[TP_PATH_MAX];
    char directory[TP_PATH_MAX];
    tp_fork_link fork;
};

static bool is_inherited(const tp_monitor *monitor)
{
    return tp_forks_is_inherited(&monitor->fork);
}

/* In a forked child. */
static void abandon(void *context)
{
    const tp_monitor *monitor = context;
    tp_writer_abandon(monitor->writer);
    tp_box_abandon(monitor->box);
}

void tp_monitor_defaults(tp_monitor_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_size = sizeof *options;
    options->pp_stage = -1;
}

static const tp_config *config_of(const tp_monitor *monitor)
{
    return &monitor->configs->config;
}

static void free_monitor(tp_monitor *monitor)
{
    tp_step_free(monitor->step);
    pthread_mutex_destroy(&monitor->step_lock);
    tp_box_close(monitor->box);
    tp_registry_free(monitor->registry);
    tp_configs_free(monitor->configs);
    tp_free(monitor);
}

static bool is_watched_rank(const tp_monitor *monitor)
{
    return tp_config_has_rank(config_of(monitor), monitor->run.rank);
}

static bool is_wanted_step(const tp_monitor *monitor)
{
    return monitor->step_number >= monitor->first_step &&
           (monitor->zoom != 0 ||
            (monitor->step_number - monitor->first_step) % config_of(monitor)->step_interval ==
                0) &&
           !tp_monitor_is_done(monitor);
}

/* A step to be filled next: the given one, or a new one. NULL without memory. */
static tp_step *begin_step(tp_monitor *monitor, tp_step *step)
{
    if (step == NULL && tp_step_new(&step, FIRST_CAPACITY, tp_box_memory(monitor->box)) != TP_OK) {
        return NULL;
    }
    tp_step_begin(step, monitor->step_number);
    atomic_store(&monitor->collecting, is_wanted_step(monitor));
    tp_batch *header = tp_step_header(step);
    header->rank = monitor->run.rank;
    header->attempt = monitor->run.attempt;
    header->pp_stage = monitor->pp_stage;
    header->left_out = monitor->left_out;
    header->zoom = monitor->zoom;
    return step;
}

static bool peek(void *context, uint64_t *step, tp_record *last)
{
    tp_monitor *monitor = context;
    pthread_mutex_lock(&monitor->step_lock);
    const bool found = monitor->step != NULL && tp_step_last(monitor->step, last);
    *step = monitor->step != NULL ? tp_step_header(monitor->step)->step : monitor->step_number;
    pthread_mutex_unlock(&monitor->step_lock);
    return found;
}

tp_status tp_monitor_open(tp_monitor **out, const tp_monitor_options *options, tp_error *error)
{
    if (out == NULL || options == NULL || options->struct_size != sizeof *options) {
        return tp_fail(error, TP_ERR_ARGUMENT,
                       "options must be filled by tp_monitor_defaults of this version");
    }
    *out = NULL;
    tp_monitor *monitor = tp_calloc(1, sizeof *monitor);
    if (monitor == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for a monitor");
    }
    monitor->opened_ns = tp_clock_monotonic();
    monitor->watch_defaults = options->watch_defaults != 0;
    tp_status status = tp_configs_read(&monitor->configs, monitor->watch_defaults,
                                       options->config_path, options->config_text, error);
    if (status != TP_OK) {
        tp_free(monitor);
        return status;
    }
    monitor->first_step = config_of(monitor)->start_step;
    tp_forks_begin(&monitor->fork);
    pthread_mutex_init(&monitor->step_lock, NULL);
    monitor->step_number = options->start_step;
    monitor->run.rank = options->rank;
    monitor->pp_stage = options->pp_stage;
    status = tp_run_name(&monitor->run, monitor->base, monitor->directory, options->output_dir,
                         options->run_id, error);
    if (status == TP_OK && is_watched_rank(monitor)) { /* the others may have no place to write */
        status = tp_run_check_base(monitor->base, error);
    }
    int lock_fd = -1;
    if (status == TP_OK && is_watched_rank(monitor)) {
        status = tp_resume_begin(options->resume, config_of(monitor)->append_output, monitor->base,
                                 monitor->directory, &monitor->run, &lock_fd, &monitor->step_number,
                                 error);
    }
    if (status == TP_OK && tp_registry_new(&monitor->registry) != TP_OK) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory for a monitor");
    }
    if (status == TP_OK) {
        const tp_plan plan = tp_plan_of(config_of(monitor), monitor->run.rank);
        monitor->box = tp_box_open(monitor->directory, &monitor->run, &plan, monitor->registry);
        monitor->step = begin_step(monitor, NULL);
        if (monitor->step == NULL) {
            status = tp_fail(error, TP_ERR_NOMEM, "no memory for a step");
        }
    }
    if (status == TP_OK) {
        const tp_writer_options writer = {monitor->base,
                                          monitor->directory,
                                          monitor->run,
                                          monitor->pp_stage,
                                          config_of(monitor),
                                          monitor->registry,
                                          monitor->box,
                                          lock_fd,
                                          peek,
                                          monitor};
        status = tp_writer_open(&monitor->writer, &writer, error);
    }
    if (status != TP_OK) {
        tp_run_unlock(monitor->directory, lock_fd, 0);
        free_monitor(monitor);
        return status;
    }
    monitor->fork.abandon = abandon;
    monitor->fork.context = monitor;
    tp_forks_add(&monitor->fork);
    *out = monitor;
    return TP_OK;
}

bool tp_monitor_is_active(const tp_monitor *monitor)
{
    return !is_inherited(monitor) && !atomic_load_explicit(&monitor->closing, memory_order_relaxed);
}

tp_record *tp_monitor_reserve(tp_monitor *monitor, uint32_t key, uint64_t now_ns, tp_step **step)
{
    tp_record *slot = NULL;
    if (is_inherited(monitor)) {
        return NULL; /* the lock may have been held when the process forked */
    }
    pthread_mutex_lock(&monitor->step_lock);
    if (monitor->step != NULL) {
        *step = monitor->step;
        slot = tp_step_reserve(monitor->step, key, now_ns);
    }
    pthread_mutex_unlock(&monitor->step_lock);
    return slot;
}

tp_step *tp_monitor_open_step(const tp_monitor *monitor)
{
    return monitor->step;
}

bool tp_monitor_is_collecting(const tp_monitor *monitor)
{
    return atomic_load_explicit(&monitor->collecting, memory_order_relaxed);
}

bool tp_monitor_is_done(const tp_monitor *monitor)
{
    return monitor->paused || monitor->collected >= config_of(monitor)->collect_times ||
           !is_watched_rank(monitor);
}

tp_registry *tp_monitor_registry(tp_monitor *monitor)
{
    return monitor->registry;
}

const tp_config *tp_monitor_config(const tp_monitor *monitor)
{
    return config_of(monitor);
}

void tp_monitor_add_hook_time(tp_monitor *monitor, uint64_t ns)
{
    if (is_inherited(monitor)) {
        return;
    }
    atomic_fetch_add_explicit(&monitor->hook_ns, ns, memory_order_relaxed);
    pthread_mutex_lock(&monitor->step_lock);
    if (monitor->step != NULL) {
        tp_step_add_hook_time(monitor->step, ns);
    }
    pthread_mutex_unlock(&monitor->step_lock);
}

void tp_monitor_count_error(tp_monitor *monitor)
{
    if (is_inherited(monitor)) {
        return;
    }
    atomic_fetch_add_explicit(&monitor->errors, 1, memory_order_relaxed);
    pthread_mutex_lock(&monitor->step_lock);
    if (monitor->step != NULL) {
        tp_step_count_error(monitor->step);
    }
    pthread_mutex_unlock(&monitor->step_lock);
}

void tp_monitor_mark_skipped(tp_monitor *monitor)
{
    monitor->flags |= TP_BATCH_SKIPPED;
}

void tp_monitor_set_left_out(tp_monitor *monitor, uint32_t quantities)
{
    monitor->left_out = quantities;
    if (monitor->step != NULL) {
        tp_step_header(monitor->step)->left_out = quantities;
    }
}

void tp_monitor_set_micro_steps(tp_monitor *monitor, uint32_t micro_steps)
{
    monitor->micro_steps = micro_steps;
}

tp_status tp_monitor_key(tp_monitor *monitor, const tp_key *key, uint32_t *id)
{
    if (monitor == NULL || key == NULL || id == NULL) {
        return TP_ERR_ARGUMENT;
    }
    return is_inherited(monitor) ? TP_ERR_STATE : tp_registry_add_key(monitor->registry, key, id);
}

/* Puts next (may be NULL) in the place of the open step, which is returned: from then on nobody
 * reserves a slot in it. */
static tp_step *exchange_step(tp_monitor *monitor, tp_step *next)
{
    pthread_mutex_lock(&monitor->step_lock);
    tp_step *step = monitor->step;
    monitor->step = next;
    pthread_mutex_unlock(&monitor->step_lock);
    return step;
}

/* Closes the open step and hands it to the writer. The next one is open before that: other threads
 * may observe while this one waits for the writer. */
static tp_status end_step(tp_monitor *monitor, uint32_t flags)
{
    uint64_t waited_ns;
    monitor->collected += atomic_load(&monitor->collecting);
    monitor->step_number++;
    tp_step *next = begin_step(monitor, tp_writer_take_spare(monitor->writer));
    tp_step *step = exchange_step(monitor, next);
    tp_step_header(step)->micro_steps = monitor->micro_steps;
    tp_step_header(step)->flags |= flags | monitor->flags;
    tp_step_close(step);
    tp_writer_submit(monitor->writer, step, &waited_ns);
    monitor->micro_steps = 0;
    monitor->flags = 0;
    if (next == NULL) {
        /* Nothing to record into, and no way to go on: the monitor ends, training does not. */
        atomic_store(&monitor->closing, true);
        return TP_ERR_NOMEM;
    }
    tp_step_header(next)->wait_ns = waited_ns;
    return TP_OK;
}

uint64_t tp_monitor_step_number(const tp_monitor *monitor)
{
    return monitor->step_number;
}

tp_status tp_monitor_renumber(tp_monitor *monitor, uint64_t step)
{
    tp_status status = TP_ERR_STATE;
    if (!tp_monitor_is_active(monitor)) {
        return status;
    }
    pthread_mutex_lock(&monitor->step_lock);
    if (monitor->step != NULL && tp_step_count(monitor->step) == 0) {
        monitor->step_number = step;
        begin_step(monitor, monitor->step);
        status = TP_OK;
    }
    pthread_mutex_unlock(&monitor->step_lock);
    return status;
}

const tp_run_info *tp_monitor_run(const tp_monitor *monitor)
{
    return &monitor->run;
}

static tp_status move(tp_monitor *monitor, tp_resumption *found, tp_error *error)
{
    tp_run_info run = monitor->run;
    char directory[TP_PATH_MAX];
    int lock_fd = -1;
    tp_writer_stop_recovery(monitor->writer);
    tp_status status = tp_resume_enter(found, monitor->base, directory, &run, &lock_fd, error);
    if (status == TP_OK && tp_writer_move(monitor->writer, &run, lock_fd) != TP_OK) {
        tp_run_unlock(directory, lock_fd, 0);
        status = tp_fail(error, TP_ERR_STATE, "steps have been recorded in another directory");
    }
    if (status == TP_OK) {
        monitor->run = run;
        memcpy(monitor->directory, directory, sizeof directory); /* the writer has no step yet */
        tp_box_move(monitor->box, directory, &run);
        status = tp_monitor_renumber(monitor, monitor->step_number);
    }
    tp_writer_start_recovery(monitor->writer);
    return status;
}

tp_status tp_monitor_go_on(tp_monitor *monitor, const char *run, tp_error *error)
{
    tp_resumption found;
    char own[TP_PATH_MAX];
    char other[TP_PATH_MAX];
    if (!tp_monitor_is_active(monitor)) {
        return tp_fail(error, TP_ERR_STATE, "the monitor is closed");
    }
    if (monitor->step == NULL || tp_step_count(monitor->step) > 0) {
        return tp_fail(error, TP_ERR_STATE, "something has been recorded in this step already");
    }
    if (!is_watched_rank(monitor)) {
        return TP_OK;
    }
    tp_monitor_counters counters;
    tp_monitor_get_counters(monitor, &counters);
    if (strcmp(run, monitor->run.run_id) == 0 ||
        (tp_path_absolute(own, monitor->directory) == TP_OK &&
         tp_path_absolute(other, run) == TP_OK && strcmp(own, other) == 0)) {
        monitor->run.attempt += counters.records > 0 || counters.gaps > 0;
        return tp_monitor_renumber(monitor, monitor->step_number);
    }
    tp_status status = tp_resume_choose(&found, monitor->base, monitor->run.rank, run, NULL, error);
    return status == TP_OK ? move(monitor, &found, error) : status;
}

/* Whether the open step is wanted, anew; one that holds records stays so. */
static void choose_again(tp_monitor *monitor)
{
    pthread_mutex_lock(&monitor->step_lock);
    if (monitor->step != NULL && tp_step_count(monitor->step) == 0) {
        atomic_store(&monitor->collecting, is_wanted_step(monitor));
    }
    pthread_mutex_unlock(&monitor->step_lock);
}

void tp_monitor_set_zoom(tp_monitor *monitor, uint32_t incident)
{
    monitor->zoom = incident;
    if (monitor->step != NULL) {
        tp_step_header(monitor->step)->zoom = incident;
    }
    choose_again(monitor);
}

bool tp_monitor_take_incident(tp_monitor *monitor, tp_record *incident)
{
    return tp_writer_take_incident(monitor->writer, incident);
}

void tp_monitor_pause(tp_monitor *monitor)
{
    monitor->paused = true;
    choose_again(monitor);
}

void tp_monitor_resume(tp_monitor *monitor)
{
    monitor->paused = false;
    monitor->collected = 0;
    monitor->first_step = monitor->step_number;
    choose_again(monitor);
}

tp_status tp_monitor_set_ops(tp_monitor *monitor, const uint32_t *ops, uint32_t count)
{
    if (tp_configs_set_ops(&monitor->configs, ops, count) != TP_OK) {
        return TP_ERR_NOMEM;
    }
    tp_writer_configure(monitor->writer, config_of(monitor));
    return TP_OK;
}

tp_status tp_monitor_configure(tp_monitor *monitor, const char *path, const char *text,
                               tp_error *error)
{
    tp_status status =
        tp_configs_read(&monitor->configs, monitor->watch_defaults, path, text, error);
    if (status == TP_OK) {
        tp_writer_configure(monitor->writer, config_of(monitor));
    }
    return status;
}

tp_status tp_monitor_step(tp_monitor *monitor)
{
    if (monitor == NULL) {
        return TP_ERR_ARGUMENT;
    }
    if (!tp_monitor_is_active(monitor)) {
        return TP_ERR_STATE;
    }
    /* What another thread recorded while the step before ended is kept, wanted or not. */
    if (tp_monitor_is_collecting(monitor) ||
        tp_monitor_renumber(monitor, monitor->step_number + 1) != TP_OK) {
        return end_step(monitor, 0);
    }
    monitor->micro_steps = 0;
    monitor->flags = 0;
    atomic_fetch_add(&monitor->skipped, 1);
    return TP_OK;
}

tp_status tp_monitor_view(tp_monitor *monitor, tp_batch *batch)
{
    tp_status status = TP_ERR_STATE;
    if (!tp_monitor_is_active(monitor)) {
        return status;
    }
    pthread_mutex_lock(&monitor->step_lock);
    if (monitor->step != NULL) {
        status = tp_step_view(monitor->step, batch);
    }
    pthread_mutex_unlock(&monitor->step_lock);
    return status;
}

void tp_monitor_get_counters(const tp_monitor *monitor, tp_monitor_counters *counters)
{
    memset(counters, 0, sizeof *counters);
    if (is_inherited(monitor)) {
        return;
    }
    tp_writer_get_counters(monitor->writer, counters);
    counters->steps += atomic_load(&monitor->skipped);
    counters->hook_ns = atomic_load(&monitor->hook_ns);
    counters->errors = atomic_load(&monitor->errors);
}

const char *tp_monitor_directory(const tp_monitor *monitor)
{
    return monitor->directory;
}

tp_status tp_monitor_finish(tp_monitor *monitor)
{
    if (monitor == NULL) {
        return TP_ERR_ARGUMENT;
    }
    if (is_inherited(monitor)) {
        return TP_ERR_STATE;
    }
    bool first = !atomic_exchange(&monitor->closing, true);
    if (first && monitor->step != NULL && tp_step_count(monitor->step) > 0) {
        end_step(monitor, TP_BATCH_PARTIAL);
    }
    const tp_status status = tp_writer_finish(monitor->writer);
    const uint64_t run_ns = tp_clock_monotonic() - monitor->opened_ns;
    tp_monitor_counters counters;
    tp_monitor_get_counters(monitor, &counters);
    if (first && counters.records > 0 && counters.steps > 0 && run_ns >= LONG_RUN_NS) {
        tp_console_cost(&counters, run_ns);
    }
    return status;
}

tp_status tp_monitor_close(tp_monitor **out)
{
    if (out == NULL || *out == NULL) {
        return TP_OK;
    }
    tp_monitor *monitor = *out;
    *out = NULL;
    if (is_inherited(monitor)) {
        return TP_ERR_STATE; /* all of it belongs to the parent, locked mutexes included */
    }
    tp_status status = tp_monitor_finish(monitor);
    tp_forks_remove(&monitor->fork);
    tp_writer_free(monitor->writer);
    free_monitor(monitor);
    return status;
}
