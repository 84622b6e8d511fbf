/* Going on in the directory of an earlier start: what is found, and which steps count. */
#include "monitor_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "monitor/follow.h"
#include "monitor/hooks.h"
#include "tensorprobe/tensorprobe.h"

#define FIELDS                                                                                     \
    "\"wg_distribution\": true, \"format\": [\"csv\", \"tensorboard\", \"sqlite\"], "              \
    "\"step_count_per_record\": 4, \"ops\": [\"max\"], \"alert\": {\"dump\": true, \"rules\": "    \
    "[{\"rule_name\": \"AnomalyNan\"}]}"

static tp_status try_open(tp_monitor **monitor, const char *resume, uint64_t start_step,
                          const char *config, tp_error *error)
{
    tp_monitor_options options;
    tp_monitor_defaults(&options);
    options.config_text = config;
    options.output_dir = base;
    options.rank = 3;
    options.resume = resume;
    options.start_step = start_step;
    return tp_monitor_open(monitor, &options, error);
}

static tp_monitor *open_monitor(const char *resume, uint64_t start_step)
{
    tp_monitor *monitor = NULL;
    tp_error error = {0};
    if (try_open(&monitor, resume, start_step, "{" FIELDS "}", &error) != TP_OK) {
        fail_msg("%s", error.message);
    }
    return monitor;
}

/* Records steps whose one value is 1000 · attempt + step; those divisible by 3 also a NaN. */
static void train(tp_monitor *monitor, uint32_t attempt, unsigned steps)
{
    const tp_key keys[] = {{.name = "weight", .slot = -1, .quantity = TP_GRAD_REDUCED},
                           {.name = "bad", .slot = -1, .quantity = TP_GRAD_REDUCED}};
    const int64_t dims[] = {1};
    uint32_t ids[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tp_monitor_key(monitor, &keys[i], &ids[i]), TP_OK);
    }
    for (unsigned i = 0; i < steps; i++) {
        const uint64_t step = tp_monitor_step_number(monitor);
        const double x = 1000.0 * attempt + (double)step;
        const double nan = (double)NAN;
        const tp_tensor tensor = {&x, dims, NULL, TP_F64, 1};
        const tp_tensor other = {&nan, dims, NULL, TP_F64, 1};
        assert_int_equal(tp_monitor_observe(monitor, ids[0], &tensor, 0), TP_OK);
        if (step % 3 == 0) {
            assert_int_equal(tp_monitor_observe(monitor, ids[1], &other, 0), TP_OK);
        }
        assert_int_equal(tp_monitor_step(monitor), TP_OK);
    }
}

/* The journal's steps are 0 … count - 1, each once; attempts[i] is the one that step i is of. */
static void check_journal(const char *directory, const uint32_t *attempts, uint64_t count)
{
    tp_reader *reader = NULL;
    tp_item item;
    uint64_t next = 0;
    uint64_t alerts = 0;
    tp_status status;
    assert_int_equal(tp_reader_open(&reader, directory, NULL), TP_OK);
    while ((status = tp_reader_next(reader, &item, NULL)) == TP_OK) {
        if (item.type == TP_ITEM_BATCH) {
            assert_int_equal(item.batch.step, next);
            assert_int_equal(item.batch.attempt, attempts[next]);
            assert_true(item.batch.records[0].u.stats.max ==
                        1000.0 * attempts[next] + (double)next);
            next++;
        } else if (item.type == TP_ITEM_ALERTS &&
                   item.batch.records[0].kind == TP_RECORD_ALERT) { /* else it is an incident */
            assert_int_equal(item.batch.step, 3 * alerts);
            alerts++;
        }
    }
    assert_int_equal(status, TP_END);
    assert_int_equal(next, count);
    assert_int_equal(alerts, (count + 2) / 3);
    tp_reader_close(&reader);
}

/* An overview of spans of two steps says the same. */
static void check_overview(const char *directory, const uint32_t *attempts, uint64_t count)
{
    tp_reader *reader = NULL;
    tp_item item;
    uint64_t records = 0;
    assert_int_equal(tp_reader_open(&reader, directory, NULL), TP_OK);
    tp_reader_overview(reader, 0);
    while (tp_reader_next(reader, &item, NULL) == TP_OK) {
        for (uint64_t i = 0; item.type == TP_ITEM_OVERVIEW && i < item.overview_count; i++) {
            const tp_overview *row = &item.overviews[i];
            if (strcmp(tp_reader_key(reader, row->key)->name, "weight") == 0) {
                records += row->count;
                assert_true(row->norm_max ==
                            1000.0 * attempts[row->last_step] + (double)row->last_step);
            }
        }
    }
    assert_int_equal(records, count);
    tp_reader_close(&reader);
}

static void read_file(const char *directory, const char *name, tp_buf *text)
{
    char path[TP_PATH_MAX];
    assert_int_equal(tp_path_join(path, directory, name), TP_OK);
    if (tp_file_read(path, text, NULL) != TP_OK) {
        fail_msg("can't read %s", path);
    }
    tp_buf_put(text, "", 1);
}

/* The csv files have each step once, from its attempt. */
static void check_csv(const char *directory, const uint32_t *attempts, uint64_t count)
{
    tp_buf text = TP_BUF_INIT;
    for (uint64_t window = 0; window < count; window += 4) {
        char name[64];
        tp_buf expected = TP_BUF_INIT;
        snprintf(name, sizeof name, "grad_reduced_%u-%u.csv", (unsigned)window,
                 (unsigned)window + 3);
        tp_buf_printf(&expected, "vpp_stage,name,step,max\n");
        for (uint64_t step = window; step < count && step < window + 4; step++) {
            tp_buf_printf(&expected, "0,weight,%u,%u\n", (unsigned)step,
                          1000 * attempts[step] + (unsigned)step);
            if (step % 3 == 0) {
                tp_buf_printf(&expected, "0,bad,%u,nan\n", (unsigned)step);
            }
        }
        read_file(directory, name, &text);
        assert_string_equal(text.data, expected.data);
        tp_buf_free(&expected);
    }
    tp_buf_free(&text);
}

static void check_anomalies(const char *directory, uint64_t count)
{
    tp_buf text = TP_BUF_INIT;
    uint64_t found = 0;
    read_file(directory, "anomaly.json", &text);
    for (const char *at = (const char *)text.data; (at = strstr(at, "\"step\": ")) != NULL; at++) {
        assert_int_equal(strtoull(at + 8, NULL, 10), 3 * found);
        found++;
    }
    assert_int_equal(found, (count + 2) / 3);
    tp_buf_free(&text);
}

static void check_all(const char *directory, const uint32_t *attempts, uint64_t count)
{
    check_journal(directory, attempts, count);
    check_overview(directory, attempts, count);
    check_csv(directory, attempts, count);
    check_anomalies(directory, count);
}

static const uint32_t three_attempts[12] = {0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 2, 2};

/* Steps 0 … 9, from 6 on again up to 8, and from 8 on once more. */
static void test_three_attempts(void **state)
{
    (void)state;
    char directory[TP_PATH_MAX];
    tp_monitor *monitor = open_monitor(NULL, 0);
    char run[64];
    strcpy(directory, tp_monitor_directory(monitor));
    strcpy(run, tp_monitor_run(monitor)->run_id);
    train(monitor, 0, 10);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    monitor = open_monitor(run, 6);
    assert_string_equal(tp_monitor_directory(monitor), directory);
    assert_string_equal(tp_monitor_run(monitor)->run_id, run);
    train(monitor, 1, 3);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    monitor = open_monitor(directory, 8);
    train(monitor, 2, 2);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    check_all(directory, three_attempts, 10);
    /* Without a number it goes on behind the last one. */
    monitor = open_monitor(run, 0);
    assert_int_equal(tp_monitor_step_number(monitor), 10);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    /* Made anew from the journal, the files are the same. */
    uint64_t steps;
    assert_int_equal(tp_follow_anew(directory, "csv", &steps, NULL), TP_OK);
    assert_int_equal(tp_follow_anew(directory, "anomaly", &steps, NULL), TP_OK);
    check_all(directory, three_attempts, 10);
}

/* A killed process leaves an unfinished step 5: it is brought in before the next attempt. */
static void test_after_a_kill(void **state)
{
    static const uint32_t attempts[] = {0, 0, 0, 0, 0, 1, 1, 1};
    (void)state;
    char directory[TP_PATH_MAX];
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    const pid_t child = fork();
    if (child == 0) {
        tp_monitor *monitor = open_monitor(NULL, 0);
        const double x = 5;
        const int64_t dims[] = {1};
        const tp_tensor tensor = {&x, dims, NULL, TP_F64, 1};
        train(monitor, 0, 5);
        if (tp_monitor_observe(monitor, 0, &tensor, 0) != TP_OK ||
            write(pipes[1], tp_monitor_directory(monitor), TP_PATH_MAX) < 0) {
            _exit(1);
        }
        pause();
    }
    size_t got = 0;
    while (got < TP_PATH_MAX) {
        const ssize_t part = read(pipes[0], directory + got, TP_PATH_MAX - got);
        assert_true(part > 0);
        got += (size_t)part;
    }
    tp_monitor *monitor = NULL;
    tp_error error = {0};
    assert_int_equal(try_open(&monitor, directory, 0, "{" FIELDS "}", &error), TP_ERR_STATE);
    assert_non_null(strstr(error.message, "is in use by a running process"));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    monitor = open_monitor(directory, 0);
    assert_int_equal(tp_monitor_step_number(monitor), 5);
    train(monitor, 1, 3);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    check_all(directory, attempts, 8);
    close(pipes[0]);
    close(pipes[1]);
}

/* By the times in the names of directories; the latest of several; another rank has none. */
static void test_by_times(void **state)
{
    (void)state;
    char first[TP_PATH_MAX];
    char moved[TP_PATH_MAX];
    char second[TP_PATH_MAX];
    tp_monitor *monitor = open_monitor(NULL, 0);
    strcpy(first, tp_monitor_directory(monitor));
    train(monitor, 0, 2);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    snprintf(moved, sizeof moved, "%s/Dec31_23-59-58-rank3-older", base);
    assert_int_equal(rename(first, moved), 0);
    monitor = open_monitor(NULL, 0);
    strcpy(first, tp_monitor_directory(monitor));
    train(monitor, 0, 2);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    snprintf(second, sizeof second, "%s/Jan01_00-00-01-rank3-younger", base);
    assert_int_equal(rename(first, second), 0);
#define BETWEEN(a, b) "{" FIELDS ", \"append_output\": [\"" a "\", \"" b "\"]}"
    static const struct {
        const char *config;
        int expected; /* 0: a new one, 1: the older, 2: the younger one */
    } cases[] = {
        {BETWEEN("Dec31_23-59-58", "Dec31_23-59-58"), 1},
        {BETWEEN("Dec31_23-59-59", "Jan01_00-00-01"), 2},
        {BETWEEN("Dec31_00-00-00", "Jan02_00-00-00"), 2},
        {BETWEEN("Jan01_00-00-02", "Dec31_23-59-57"), 0},
        {BETWEEN("Jan01_00-00-01", "Jan01_00-00-01"), 2},
        {BETWEEN("Feb01_00-00-00", "Jan01_00-00-00"), 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const paths[] = {"", moved, second};
        assert_int_equal(try_open(&monitor, NULL, 0, cases[i].config, NULL), TP_OK);
        const char *directory = tp_monitor_directory(monitor);
        if (cases[i].expected > 0) {
            assert_string_equal(directory, paths[cases[i].expected]);
            assert_int_equal(tp_monitor_run(monitor)->attempt, 1);
        } else {
            assert_string_not_equal(directory, moved);
            assert_string_not_equal(directory, second);
            assert_int_equal(tp_monitor_run(monitor)->attempt, 0);
        }
        assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    }
}

/* Any rank's directory names the run, and a rank that has none gets one of it. */
static void test_other_rank(void **state)
{
    (void)state;
    tp_monitor_options options;
    tp_monitor *monitor = open_monitor(NULL, 0);
    char directory[TP_PATH_MAX];
    char run[64];
    char expected[TP_PATH_MAX];
    strcpy(directory, tp_monitor_directory(monitor));
    strcpy(run, tp_monitor_run(monitor)->run_id);
    train(monitor, 0, 2);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    tp_monitor_defaults(&options);
    options.output_dir = base;
    options.rank = 4;
    options.resume = directory;
    for (uint32_t attempt = 0; attempt < 2; attempt++) {
        assert_int_equal(tp_monitor_open(&monitor, &options, NULL), TP_OK);
        snprintf(expected, sizeof expected, "-rank4-%s", run);
        assert_non_null(strstr(tp_monitor_directory(monitor), expected));
        assert_int_equal(tp_monitor_run(monitor)->attempt, attempt);
        assert_int_equal(tp_monitor_step_number(monitor), 2 * attempt);
        train(monitor, attempt, 2);
        assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    }
    tp_error error = {0};
    options.resume = "/nowhere/Dec03_21-34-40-rank4-x";
    assert_int_equal(tp_monitor_open(&monitor, &options, &error), TP_ERR_NOTFOUND);
    assert_non_null(strstr(error.message, "no journal is there"));
}

/* The state of a checkpoint: another monitor goes on, and so does the same one after going back. */
static void test_go_on(void **state)
{
    static const uint32_t attempts[] = {0, 0, 1, 1, 2, 2};
    (void)state;
    char directory[TP_PATH_MAX];
    char run[64];
    tp_error error;
    tp_monitor *monitor = open_monitor(NULL, 0);
    strcpy(directory, tp_monitor_directory(monitor));
    strcpy(run, tp_monitor_run(monitor)->run_id);
    train(monitor, 0, 4);
    assert_int_equal(tp_monitor_go_on(monitor, run, &error), TP_OK);
    assert_int_equal(tp_monitor_renumber(monitor, 2), TP_OK);
    train(monitor, 1, 4);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    monitor = open_monitor(NULL, 0);
    assert_string_not_equal(tp_monitor_directory(monitor), directory);
    assert_int_equal(tp_monitor_go_on(monitor, run, &error), TP_OK);
    assert_int_equal(tp_monitor_renumber(monitor, 4), TP_OK);
    assert_string_equal(tp_monitor_directory(monitor), directory);
    train(monitor, 2, 2);
    assert_int_equal(tp_monitor_go_on(monitor, "another", &error), TP_ERR_STATE);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    check_all(directory, attempts, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_three_attempts, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_after_a_kill, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_by_times, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_other_rank, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_go_on, make_base, remove_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
