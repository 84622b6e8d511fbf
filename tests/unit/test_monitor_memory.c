/* A whole run in which the n-th request for memory fails and every one after it, for every n; then
 * the same with what it writes. */
#include "monitor_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "monitor/hooks.h"
#include "tensorprobe/tensorprobe.h"

#define STEPS 5

static const char config[] =
    "{\"format\": [\"csv\", \"tensorboard\"], \"step_count_per_record\": 100, "
    "\"wg_distribution\": true, \"alert\": {\"rules\": [{\"rule_name\": \"AnomalyNan\"}]}}";

/* What is in force from the third step on. */
static const char other_config[] =
    "{\"format\": [\"csv\", \"tensorboard\"], \"step_count_per_record\": 100, \"ops\": [\"max\"], "
    "\"wg_distribution\": true, \"alert\": {\"rules\": [{\"rule_name\": \"AnomalyNan\"}]}}";

static char directory[TP_PATH_MAX];

static void open_monitor(tp_monitor **monitor, tp_status *status)
{
    tp_monitor_options options;
    tp_error error = {0};
    tp_monitor_defaults(&options);
    options.config_text = config;
    options.output_dir = base;
    *monitor = NULL;
    *status = tp_monitor_open(monitor, &options, &error);
    assert_int_equal(error.code, *status);
    assert_true(*status == TP_OK ? *monitor != NULL : *monitor == NULL);
    if (*monitor != NULL) {
        strcpy(directory, tp_monitor_directory(*monitor));
    }
}

/* Observes and steps as far as there is memory; how many steps ended. */
static uint64_t train(tp_monitor *monitor)
{
    static const char *const names[] = {"fc1.weight", "fc2.weight"};
    uint64_t steps = 0;
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t k = 0; k < 2; k++) {
            const tp_key key = {names[k], NULL, 0, -1, TP_GRAD_REDUCED, TP_ROLE_NONE, NULL, NULL};
            const double x = step == 3 ? (double)NAN : step;
            const int64_t dims[] = {1};
            const tp_tensor tensor = {&x, dims, NULL, TP_F64, 1};
            uint32_t id;
            tp_status status = tp_monitor_key(monitor, &key, &id);
            if (status == TP_OK) {
                status = tp_monitor_observe(monitor, id, &tensor, 0);
            }
            assert_true(status == TP_OK || status == TP_ERR_NOMEM || status == TP_ERR_STATE);
        }
        if (step == 1 && tp_monitor_is_active(monitor)) {
            tp_error error;
            tp_status status = tp_monitor_configure(monitor, NULL, other_config, &error);
            assert_true(status == TP_OK || status == TP_ERR_NOMEM);
            assert_int_equal(tp_monitor_config(monitor)->ops[0],
                             status == TP_OK ? TP_OP_MAX : TP_OP_NORM);
        }
        tp_status status = tp_monitor_step(monitor);
        /* Without memory for a next step the monitor ends with this one. */
        assert_true(status == TP_OK || status == TP_ERR_NOMEM || status == TP_ERR_STATE);
        steps += status != TP_ERR_STATE;
    }
    return steps;
}

/* Batches and records in the journal. */
static uint64_t count_steps(uint64_t *records)
{
    tp_reader *reader = NULL;
    tp_item item;
    uint64_t steps = 0;
    tp_status status = tp_reader_open(&reader, directory, NULL);
    *records = 0;
    while (status == TP_OK && (status = tp_reader_next(reader, &item, NULL)) == TP_OK) {
        if (item.type == TP_ITEM_BATCH) {
            assert_int_equal(item.batch.step, steps++);
            assert_int_equal(item.batch.flags, 0);
            *records += item.batch.count;
        }
    }
    assert_int_equal(status, TP_END);
    tp_reader_close(&reader);
    return steps;
}

/* Lines of the csv files, without headers. There is one more whenever the columns have changed,
 * which a sink that had no memory may have met more than once. */
static uint64_t count_rows(void)
{
    uint64_t rows = 0;
    const struct dirent *entry;
    DIR *listing = opendir(directory);
    while (listing != NULL && (entry = readdir(listing)) != NULL) {
        char path[TP_PATH_MAX];
        tp_buf text = TP_BUF_INIT;
        const char *end = strrchr(entry->d_name, '.');
        if (end != NULL && strcmp(end, ".csv") == 0 &&
            tp_path_join(path, directory, entry->d_name) == TP_OK &&
            tp_file_read(path, &text, NULL) == TP_OK) {
            assert_true(text.size > 0);
            for (size_t i = 0; i < text.size; i++) {
                rows += text.data[i] == '\n';
            }
            rows--;
        }
        tp_buf_free(&text);
    }
    if (listing != NULL) {
        closedir(listing);
    }
    return rows;
}

/* Memory comes back before the end: what was taken is then in the journal, and in the csv file. */
static void test_memory_comes_back(void **state)
{
    (void)state;
    bool reached = true;
    for (unsigned long n = 1; reached; n++) {
        tp_monitor *monitor;
        tp_status status;
        uint64_t steps = 0;
        uint64_t records = 0;
        tp_mem_fail_after(n);
        open_monitor(&monitor, &status);
        if (status == TP_OK) {
            steps = train(monitor);
        }
        reached = tp_mem_fail_after(0); /* also by the writer, a moment ago */
        if (status != TP_OK) {
            assert_int_equal(status, TP_ERR_NOMEM);
            continue;
        }
        tp_monitor_counters counters;
        assert_int_equal(tp_monitor_finish(monitor), TP_OK);
        tp_monitor_get_counters(monitor, &counters);
        assert_int_equal(tp_monitor_close(&monitor), TP_OK);
        if (steps == 0) {
            continue;
        }
        assert_int_equal(count_steps(&records), steps);
        assert_int_equal(count_rows(), records);
        assert_int_equal(counters.followed_steps, steps);
        if (!reached) {
            assert_int_equal(records, 2 * STEPS);
            assert_int_equal(counters.alerts, 2);
        }
    }
}

/* A step is one write to the journal and two to each output, file and cursor: this is more than a
 * run needs. */
#define WRITES (10 + STEPS * 8)

/* The disk is full from the n-th write on, and has room again before the end: nothing is missing. */
static void test_room_comes_back(void **state)
{
    (void)state;
    for (unsigned long n = 1; n <= WRITES; n++) {
        tp_monitor *monitor;
        tp_monitor_counters counters;
        tp_status status;
        uint64_t records = 0;
        tp_file_fail_after(n, ENOSPC);
        open_monitor(&monitor, &status);
        assert_int_equal(status, TP_OK);
        assert_int_equal(train(monitor), STEPS);
        tp_file_fail_after(0, 0);
        assert_int_equal(tp_monitor_finish(monitor), TP_OK);
        tp_monitor_get_counters(monitor, &counters);
        assert_int_equal(tp_monitor_close(&monitor), TP_OK);
        assert_int_equal(count_steps(&records), STEPS);
        assert_int_equal(records, 2 * STEPS);
        assert_int_equal(count_rows(), 2 * STEPS);
        assert_int_equal(counters.followed_steps, STEPS);
        assert_int_equal(counters.alerts, 2);
    }
}

/* It does not come back: the end says so, and gives up once for all steps that wait. */
static void test_memory_stays_away(void **state)
{
    (void)state;
    tp_monitor *monitor;
    tp_status status;
    open_monitor(&monitor, &status);
    assert_int_equal(status, TP_OK);
    tp_mem_fail_after(20);
    assert_true(train(monitor) > 0);
    assert_int_equal(tp_monitor_close(&monitor), TP_ERR_IO);
    tp_mem_fail_after(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_memory_comes_back, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_memory_stays_away, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_room_comes_back, make_base, remove_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
