/* A monitor from open to close: what is in the journal, and what happens when things go wrong. */
#include "monitor_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "monitor/follower.h"
#include "monitor/hooks.h"
#include "monitor/run.h"
#include "tensorprobe/tensorprobe.h"

/* What a journal held. */
typedef struct contents {
    uint64_t batches, gaps, partial, alerts, closes, next_step, unfilled, records;
} contents;

/* Reads all of it; steps must follow each other, and step s's values must be s + key + 1. */
static contents read_back(const char *directory, bool check_values)
{
    contents found = {0};
    tp_reader *reader = NULL;
    tp_item item;
    tp_error error;
    tp_status status;
    assert_int_equal(tp_reader_open(&reader, directory, &error), TP_OK);
    while ((status = tp_reader_next(reader, &item, &error)) == TP_OK) {
        if (item.type == TP_ITEM_CLOSE) {
            found.closes++;
        } else if (item.type == TP_ITEM_ALERTS) {
            for (uint64_t i = 0; i < item.batch.count; i++) {
                found.alerts += item.batch.records[i].kind == TP_RECORD_ALERT;
            }
        } else {
            assert_int_equal(item.batch.step, found.next_step);
            assert_int_equal(item.batch.rank, 3);
            found.next_step++;
            found.batches++;
            found.gaps += (item.batch.flags & TP_BATCH_GAP) != 0;
            found.partial += (item.batch.flags & TP_BATCH_PARTIAL) != 0;
            found.unfilled += item.batch.unfilled;
            found.records += item.batch.count;
            for (uint64_t i = 0; item.batch.records != NULL && i < item.batch.count; i++) {
                const tp_record *record = &item.batch.records[i];
                if (check_values) {
                    assert_true(record->u.stats.sum == (double)(item.batch.step + record->key + 1));
                }
            }
        }
    }
    assert_int_equal(status, TP_END);
    tp_reader_close(&reader);
    return found;
}

static void test_plain_run(void **state)
{
    (void)state;
    char directory[TP_PATH_MAX];
    tp_monitor *monitor = fixture_monitor("{\"format\": [\"csv\", \"tensorboard\"]}");
    uint32_t first = fixture_key(monitor, "fc1.weight");
    uint32_t second = fixture_key(monitor, "fc2.weight");
    assert_int_equal(fixture_key(monitor, "fc1.weight"), first);
    strcpy(directory, tp_monitor_directory(monitor));
    assert_non_null(strstr(directory, "-rank3-"));
    assert_int_equal(access(directory, F_OK), -1); /* made at the first step */
    for (uint64_t step = 0; step < 100; step++) {
        fixture_observe(monitor, first, (double)(step + first + 1));
        fixture_observe(monitor, second, (double)(step + second + 1));
        assert_int_equal(tp_monitor_step(monitor), TP_OK);
        /* The end of this step has waited until the one before was in the journal. */
        tp_monitor_counters counters;
        tp_monitor_get_counters(monitor, &counters);
        assert_true(counters.journaled_steps >= step);
        assert_int_equal(counters.steps, step + 1);
    }
    fixture_observe(monitor, first, (double)(100 + first + 1)); /* an unfinished step */
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    assert_null(monitor);
    contents found = read_back(directory, true);
    assert_int_equal(found.batches, 101);
    assert_int_equal(found.partial, 1);
    assert_int_equal(found.closes, 1);
    char lock[TP_PATH_MAX];
    tp_path_join(lock, directory, "lock");
    assert_int_equal(access(lock, F_OK), -1); /* a clean end leaves none */
}

static void test_errors(void **state)
{
    (void)state;
    tp_monitor_options options;
    tp_error error;
    tp_monitor *monitor = NULL;
    memset(&options, 0, sizeof options);
    assert_int_equal(tp_monitor_open(&monitor, &options, &error), TP_ERR_ARGUMENT);
    tp_monitor_defaults(&options);
    options.config_text = "{\"opps\": []}";
    assert_int_equal(tp_monitor_open(&monitor, &options, &error), TP_ERR_CONFIG);
    assert_int_equal(error.line, 1);
    options.config_text = NULL;
    options.config_path = "/nonexistent/config.json";
    assert_int_equal(tp_monitor_open(&monitor, &options, &error), TP_ERR_NOTFOUND);
    options.config_path = NULL;
    options.run_id = "a/b";
    assert_int_equal(tp_monitor_open(&monitor, &options, &error), TP_ERR_ARGUMENT);
    assert_null(monitor);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    monitor = fixture_monitor("{\"format\": \"api\"}");
    const int64_t dims[] = {1};
    const tp_tensor odd = {dims, dims, NULL, 4711, 1};
    uint32_t key = fixture_key(monitor, "x");
    assert_int_equal(tp_monitor_observe(monitor, key, &odd, 0), TP_ERR_UNSUPPORTED);
    assert_int_equal(tp_monitor_observe(monitor, key + 1, &odd, 0), TP_ERR_ARGUMENT);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
}

static void test_alerts(void **state)
{
    (void)state;
    char directory[TP_PATH_MAX];
    tp_monitor *monitor = fixture_monitor(
        "{\"format\": \"api\", \"alert\": {\"rules\": [{\"rule_name\": \"AnomalyNan\"}]}}");
    strcpy(directory, tp_monitor_directory(monitor));
    uint32_t key = fixture_key(monitor, "fc1.weight");
    for (int step = 0; step < 10; step++) {
        fixture_observe(monitor, key, step == 5 ? NAN : 1);
        assert_int_equal(tp_monitor_step(monitor), TP_OK);
    }
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    assert_int_equal(read_back(directory, false).alerts, 1);
}

/* A slot that is filled later holds back its own step, and nobody waits for it. */
static void test_filled_later(void **state)
{
    (void)state;
    char directory[TP_PATH_MAX];
    tp_monitor *monitor = fixture_monitor("{\"format\": \"csv\"}");
    strcpy(directory, tp_monitor_directory(monitor));
    uint32_t key = fixture_key(monitor, "fc1.weight");
    fixture_observe(monitor, key, 1);
    assert_int_equal(tp_monitor_step(monitor), TP_OK);
    tp_step *step;
    tp_record *slot = tp_monitor_reserve(monitor, key, tp_clock_monotonic(), &step);
    assert_int_equal(tp_monitor_step(monitor), TP_OK);
    fixture_observe(monitor, key, 3);
    assert_int_equal(tp_monitor_step(monitor), TP_OK);
    tp_monitor_counters counters;
    tp_monitor_get_counters(monitor, &counters);
    assert_true(counters.journaled_steps <= 1);
    slot->kind = TP_RECORD_STATS;
    slot->u.stats.count = 1;
    slot->u.stats.sum = 2;
    slot->dtype = TP_F64;
    tp_step_fill(step, slot);
    slot = tp_monitor_reserve(monitor, key, tp_clock_monotonic(), &step);
    assert_int_equal(tp_monitor_step(monitor), TP_OK);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    tp_step_fill(step, slot); /* too late, but no harm */
    contents found = read_back(directory, false);
    assert_int_equal(found.batches, 4);
    assert_int_equal(found.unfilled, 1);
    assert_int_equal(found.partial, 1);
}

/* A full disk: training goes on, what does not fit into the budget becomes gaps, and when there is
 * room again everything else is there, in journal and outputs. */
static void test_full_disk(void **state)
{
    (void)state;
    char directory[TP_PATH_MAX];
    tp_monitor *monitor = fixture_monitor("{\"format\": [\"csv\", \"tensorboard\"], \"journal\": "
                                          "{\"budget_bytes\": 5000000, \"wait_ms\": 100}}");
    strcpy(directory, tp_monitor_directory(monitor));
    uint32_t key = fixture_key(monitor, "fc1.weight");
    const uint64_t steps = 300;
    for (uint64_t step = 0; step < steps; step++) {
        if (step == 50) {
            tp_file_fail_after(1, ENOSPC);
        }
        if (step == 250) {
            tp_file_fail_after(0, 0);
            tp_monitor_counters counters = {0};
            while (counters.journaled_steps < step) { /* until the writer has tried again */
                usleep(1000);
                tp_monitor_get_counters(monitor, &counters);
            }
        }
        fixture_observe(monitor, key, (double)(step + key + 1));
        assert_int_equal(tp_monitor_step(monitor), TP_OK);
    }
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    contents found = read_back(directory, true);
    assert_int_equal(found.batches, steps); /* each step is there, as values or as a gap */
    assert_in_range(found.gaps, 1, 199);
    char csv[TP_PATH_MAX];
    uint64_t files = 0;
    for (uint64_t step = 0; step < steps; step++) {
        char name[64];
        snprintf(name, sizeof name, "grad_reduced_%llu-%llu.csv", (unsigned long long)step,
                 (unsigned long long)step);
        tp_path_join(csv, directory, name);
        files += access(csv, F_OK) == 0;
    }
    assert_int_equal(files, steps - found.gaps);
}

static void test_fork(void **state)
{
    (void)state;
    char directory[TP_PATH_MAX];
    tp_monitor *monitor = fixture_monitor("{\"format\": \"csv\"}");
    strcpy(directory, tp_monitor_directory(monitor));
    uint32_t key = fixture_key(monitor, "fc1.weight");
    for (uint64_t step = 0; step < 20; step++) {
        fixture_observe(monitor, key, (double)(step + key + 1));
        pid_t child = fork(); /* at any moment of the writer thread */
        if (child == 0) {
            const tp_monitor_counters none = {0};
            tp_monitor_counters counters;
            uint32_t id;
            const tp_key other = {"other", NULL, 0, -1, TP_GRAD_REDUCED, TP_ROLE_NONE, NULL, NULL};
            bool right = !tp_monitor_is_active(monitor) &&
                         tp_monitor_step(monitor) == TP_ERR_STATE &&
                         tp_monitor_key(monitor, &other, &id) == TP_ERR_STATE;
            tp_monitor_get_counters(monitor, &counters);
            right = right && memcmp(&counters, &none, sizeof none) == 0 &&
                    tp_monitor_close(&monitor) == TP_ERR_STATE && monitor == NULL;
            _exit(right ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        assert_int_equal(tp_monitor_step(monitor), TP_OK);
    }
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    assert_int_equal(read_back(directory, true).batches, 20);
}

/* A process that dies leaves a directory that the next run of the same rank completes. */
static void test_next_start(void **state)
{
    (void)state;
    char directory[TP_PATH_MAX];
    int names[2];
    assert_int_equal(pipe(names), 0);
    pid_t child = fork();
    if (child == 0) {
        tp_monitor *monitor = fixture_monitor("{\"format\": \"csv\"}");
        uint32_t key = fixture_key(monitor, "fc1.weight");
        for (uint64_t step = 0; step < 10; step++) {
            fixture_observe(monitor, key, (double)(step + key + 1));
            tp_monitor_step(monitor);
        }
        ssize_t written = write(names[1], tp_monitor_directory(monitor), TP_PATH_MAX);
        _exit(written == TP_PATH_MAX ? kill(getpid(), SIGKILL) : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(read(names[0], directory, sizeof directory), TP_PATH_MAX);
    close(names[0]);
    close(names[1]);
    char lock[TP_PATH_MAX];
    tp_path_join(lock, directory, "lock");
    assert_int_equal(access(lock, F_OK), 0);
    char csv[TP_PATH_MAX];

    tp_monitor *monitor = fixture_monitor("{\"format\": \"csv\"}");
    uint32_t key = fixture_key(monitor, "fc1.weight");
    fixture_observe(monitor, key, 1);
    assert_int_equal(tp_monitor_step(monitor), TP_OK);
    for (int i = 0; i < 500 && access(lock, F_OK) == 0; i++) {
        usleep(10000);
    }
    assert_int_equal(access(lock, F_OK), -1);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    contents found = read_back(directory, true);
    assert_true(found.batches >= 9);
    tp_path_join(csv, directory, "grad_reduced_0-0.csv");
    assert_int_equal(access(csv, F_OK), 0);
}

#define OBSERVERS 3
#define OBSERVATIONS 20000

typedef struct observer {
    tp_monitor *monitor;
    uint32_t key;
    uint32_t taken; /* observations that succeeded */
    bool ended;
} observer;

static void *observe_often(void *argument)
{
    observer *self = argument;
    const int64_t dims[] = {1};
    const double x = 1;
    const tp_tensor tensor = {&x, dims, NULL, TP_F64, 1};
    for (int i = 0; i < OBSERVATIONS; i++) {
        self->taken += tp_monitor_observe(self->monitor, self->key, &tensor, 0) == TP_OK;
    }
    __atomic_store_n(&self->ended, true, __ATOMIC_RELEASE);
    return NULL;
}

/* Threads that observe while another one ends steps: each record is in one step or in the next. */
static void test_observe_beside_step(void **state)
{
    (void)state;
    char directory[TP_PATH_MAX];
    observer observers[OBSERVERS] = {{0}};
    pthread_t threads[OBSERVERS];
    tp_monitor *monitor =
        fixture_monitor("{\"format\": \"api\", \"journal\": {\"wait_ms\": 60000}}");
    strcpy(directory, tp_monitor_directory(monitor));
    for (int i = 0; i < OBSERVERS; i++) {
        observers[i] = (observer){.monitor = monitor, .key = fixture_key(monitor, "fc1.weight")};
        assert_int_equal(pthread_create(&threads[i], NULL, observe_often, &observers[i]), 0);
    }
    for (int i = 0; i < OBSERVERS; i++) {
        while (!__atomic_load_n(&observers[i].ended, __ATOMIC_ACQUIRE)) {
            assert_int_equal(tp_monitor_step(monitor), TP_OK);
        }
        pthread_join(threads[i], NULL);
        assert_int_equal(observers[i].taken, OBSERVATIONS);
    }
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    contents found = read_back(directory, false);
    assert_int_equal(found.gaps, 0);
    assert_int_equal(found.unfilled, 0);
    assert_int_equal(found.records, OBSERVERS * OBSERVATIONS);
}

/* Two monitors of one process don't take each other for dead. */
static void test_two_at_once(void **state)
{
    (void)state;
    tp_monitor *one = fixture_monitor("{\"format\": \"csv\"}");
    uint32_t key = fixture_key(one, "fc1.weight");
    fixture_observe(one, key, 1);
    assert_int_equal(tp_monitor_step(one), TP_OK);
    fixture_observe(one, key, 2);
    assert_int_equal(tp_monitor_step(one), TP_OK); /* its directory is there now, and locked */
    int fd = -1;
    tp_error error;
    assert_int_equal(tp_run_lock(tp_monitor_directory(one), &fd, &error), TP_ERR_STATE);
    tp_monitor *two = fixture_monitor("{\"format\": \"csv\"}");
    assert_string_not_equal(tp_monitor_directory(one), tp_monitor_directory(two));
    key = fixture_key(two, "fc1.weight");
    fixture_observe(two, key, 1);
    assert_int_equal(tp_monitor_step(two), TP_OK);
    assert_int_equal(tp_monitor_close(&two), TP_OK);
    assert_int_equal(tp_monitor_close(&one), TP_OK);
}

static uint32_t visits;

static tp_status count_visit(const char *directory, const int *stop)
{
    (void)directory;
    (void)stop;
    visits++;
    return TP_OK;
}

/* Recovery leaves alone what only looks like a run: its lock file is somebody else's, or that of a
 * run that has just begun. */
static void test_visits_runs_only(void **state)
{
    (void)state;
    const int stop = 0;
    char run[TP_PATH_MAX];
    char lock[TP_PATH_MAX];
    char journal[TP_PATH_MAX];
    int fd;
    uint64_t size;
    tp_path_join(run, base, "checkpoint-rank3-last");
    tp_path_join(lock, run, "lock");
    tp_path_join(journal, run, "journal");
    assert_int_equal(tp_dir_make(run, NULL), TP_OK);
    assert_int_equal(tp_file_append(lock, &fd, &size, NULL), TP_OK);
    tp_file_close(fd);
    visits = 0;
    tp_run_visit_unfinished(base, 3, &stop, count_visit);
    assert_int_equal(visits, 0);
    assert_int_equal(access(lock, F_OK), 0);
    assert_int_equal(tp_dir_make(journal, NULL), TP_OK);
    tp_run_visit_unfinished(base, 3, &stop, count_visit);
    assert_int_equal(visits, 1);
    assert_int_equal(access(lock, F_OK), -1);
}

/* A child that has a copy of the descriptor keeps nobody out once the lock has been given back. */
static void test_unlock_with_child(void **state)
{
    (void)state;
    int fd = -1;
    int again = -1;
    assert_int_equal(tp_run_lock(base, &fd, NULL), TP_OK);
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    assert_int_equal(tp_run_lock(base, &again, NULL), TP_ERR_STATE);
    tp_run_unlock(base, fd, 0);
    tp_status status = tp_run_lock(base, &again, NULL);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(status, TP_OK);
    tp_run_unlock(base, again, 1);
}

/* Somebody removes the directory of a run that goes on: what comes later is written anew. */
static void test_directory_removed(void **state)
{
    (void)state;
    char directory[TP_PATH_MAX];
    char command[TP_PATH_MAX + 16];
    char csv[TP_PATH_MAX];
    tp_monitor_counters counters = {0};
    tp_monitor *monitor = fixture_monitor("{\"format\": \"csv\"}");
    strcpy(directory, tp_monitor_directory(monitor));
    uint32_t key = fixture_key(monitor, "fc1.weight");
    for (uint64_t step = 0; step < 4; step++) {
        fixture_observe(monitor, key, (double)step);
        assert_int_equal(tp_monitor_step(monitor), TP_OK);
    }
    while (counters.followed_steps < 4) { /* else the writer might make a part of it again */
        usleep(1000);
        tp_monitor_get_counters(monitor, &counters);
    }
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    assert_int_equal(system(command), 0);
    for (uint64_t step = 4; step < 8; step++) {
        fixture_observe(monitor, key, (double)step);
        assert_int_equal(tp_monitor_step(monitor), TP_OK);
    }
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    for (unsigned step = 4; step < 8; step++) {
        char name[64];
        snprintf(name, sizeof name, "grad_reduced_%u-%u.csv", step, step);
        tp_path_join(csv, directory, name);
        assert_int_equal(access(csv, F_OK), 0);
    }
}

/* No descriptor is to be had for a while. */
static void test_no_descriptors(void **state)
{
    (void)state;
    char directory[TP_PATH_MAX];
    struct rlimit before;
    tp_monitor *monitor = fixture_monitor("{\"format\": [\"csv\", \"tensorboard\"]}");
    strcpy(directory, tp_monitor_directory(monitor));
    uint32_t key = fixture_key(monitor, "fc1.weight");
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (uint64_t step = 0; step < 12; step++) {
        if (step == 0 || step == 6) { /* at the beginning, and in the middle */
            const struct rlimit none = {0, before.rlim_max};
            assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        }
        fixture_observe(monitor, key, (double)(step + key + 1));
        assert_int_equal(tp_monitor_step(monitor), TP_OK);
        if (step == 3 || step == 9) {
            assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        }
    }
    tp_monitor_counters counters;
    assert_int_equal(tp_monitor_finish(monitor), TP_OK);
    tp_monitor_get_counters(monitor, &counters);
    assert_int_equal(counters.followed_steps, 12);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    assert_int_equal(read_back(directory, true).batches, 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_plain_run, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_errors, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_alerts, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_filled_later, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_full_disk, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_fork, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_next_start, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_observe_beside_step, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_visits_runs_only, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_unlock_with_child, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_directory_removed, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_no_descriptors, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_two_at_once, make_base, remove_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
