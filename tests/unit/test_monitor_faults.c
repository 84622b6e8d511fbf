/* Every call that changes a file fails once, or from some call on until there is room again: no step
 * is lost, none is anywhere twice, and the training sees nothing of it. */
#include "check.h"

#include <errno.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mapping.h"
#include "monitor/follow.h"
#include "tensorprobe/tensorprobe.h"

#define STEPS 4u

static const char config[] =
    "{\"format\": [\"csv\", \"tensorboard\", \"sqlite\"], \"step_count_per_record\": 2, "
    "\"wg_distribution\": true, \"ops\": [\"max\"], \"journal\": {\"wait_ms\": 1}, "
    "\"alert\": {\"dump\": true, \"rules\": [{\"rule_name\": \"AnomalyNan\"}]}}";

static char base[] = "/tmp/tp-faults-XXXXXX";
static char directory[TP_PATH_MAX];

static void make_base(void)
{
    strcpy(base + strlen(base) - 6, "XXXXXX");
    assert_non_null(mkdtemp(base));
}

static void remove_base(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", base);
    assert_int_equal(system(command), 0);
}

/* A run; what fails stops to fail before it ends. */
static void run(void)
{
    const tp_key key = {.name = "w", .slot = -1, .quantity = TP_GRAD_REDUCED};
    const int64_t dims[] = {1};
    tp_monitor_options options;
    tp_monitor *monitor = NULL;
    uint32_t id;
    tp_monitor_defaults(&options);
    options.config_text = config;
    options.output_dir = base;
    assert_int_equal(tp_monitor_open(&monitor, &options, NULL), TP_OK);
    strcpy(directory, tp_monitor_directory(monitor));
    assert_int_equal(tp_monitor_key(monitor, &key, &id), TP_OK);
    for (uint32_t step = 0; step < STEPS; step++) {
        const double x = step == 2 ? (double)NAN : step;
        const tp_tensor tensor = {&x, dims, NULL, TP_F64, 1};
        assert_int_equal(tp_monitor_observe(monitor, id, &tensor, 0), TP_OK);
        assert_int_equal(tp_monitor_step(monitor), TP_OK);
    }
    usleep(1000); /* so that the thread meets it, too, and not only the end */
    tp_file_fail_calls_after(0, 0, false);
    tp_mapping_fail_after(0, 0);
    assert_int_equal(tp_monitor_finish(monitor), TP_OK);
    tp_monitor_counters counters;
    tp_monitor_get_counters(monitor, &counters);
    assert_int_equal(counters.gaps, 0);
    assert_int_equal(counters.journaled_steps, STEPS);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
}

static void check_journal(void)
{
    tp_reader *reader = NULL;
    tp_item item;
    uint64_t step = 0;
    uint64_t alerts = 0;
    tp_status status;
    assert_int_equal(tp_reader_open(&reader, directory, NULL), TP_OK);
    while ((status = tp_reader_next(reader, &item, NULL)) == TP_OK) {
        if (item.type == TP_ITEM_BATCH) {
            assert_int_equal(item.batch.step, step);
            assert_int_equal(item.batch.count, 1);
            assert_true(step == 2 || item.batch.records[0].u.stats.max == (double)step);
            step++;
        }
        alerts += item.type == TP_ITEM_ALERTS && item.batch.records[0].kind == TP_RECORD_ALERT;
    }
    assert_int_equal(status, TP_END);
    assert_int_equal(step, STEPS);
    assert_int_equal(alerts, 1);
    tp_reader_close(&reader);
}

static void check_csv(void)
{
    static const char *const expected[2][2] = {
        {"grad_reduced_0-1.csv", "vpp_stage,name,step,max\n0,w,0,0\n0,w,1,1\n"},
        {"grad_reduced_2-3.csv", "vpp_stage,name,step,max\n0,w,2,nan\n0,w,3,3\n"},
    };
    for (int i = 0; i < 2; i++) {
        char path[TP_PATH_MAX];
        tp_buf text = TP_BUF_INIT;
        assert_int_equal(tp_path_join(path, directory, expected[i][0]), TP_OK);
        assert_int_equal(tp_file_read(path, &text, NULL), TP_OK);
        tp_buf_put(&text, "", 1);
        assert_string_equal(text.data, expected[i][1]);
        tp_buf_free(&text);
    }
}

static void check_database(void)
{
    char path[TP_PATH_MAX];
    sqlite3 *db = NULL;
    sqlite3_stmt *ask = NULL;
    static const char sql[] = "SELECT count(*), count(DISTINCT step.step), sum(value.max), "
                              "(SELECT count(*) FROM alert) FROM value JOIN step ON step.id = "
                              "step_id";
    assert_int_equal(tp_path_join(path, directory, "values.sqlite"), TP_OK);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &ask, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(ask), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(ask, 0), STEPS);
    assert_int_equal(sqlite3_column_int(ask, 1), STEPS);
    assert_int_equal(sqlite3_column_int(ask, 2), 0 + 1 + 3);
    assert_int_equal(sqlite3_column_int(ask, 3), 1);
    sqlite3_finalize(ask);
    sqlite3_close(db);
}

static void check_all(void)
{
    uint64_t steps;
    check_journal();
    check_csv();
    check_database();
    /* Nothing is left to do for a recovery. */
    assert_int_equal(tp_follow_directory(directory, NULL, &steps, NULL), TP_OK);
    assert_int_equal(steps, 0);
}

static void every_call_on_files_may_fail(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        unsigned long n = 0;
        bool failed = true;
        while (failed) {
            make_base();
            n++;
            tp_file_fail_calls_after(n, n % 2 == 0 ? ENOSPC : EIO, mode == 0);
            run();
            failed = tp_file_has_failed();
            check_all();
            remove_base();
        }
        assert_in_range(n, 10, 200); /* cursors are written by the clock: more on a slow machine */
    }
}

static void every_mapping_may_fail(void **state)
{
    (void)state;
    for (unsigned long n = 1; n < 8; n++) {
        make_base();
        tp_mapping_fail_after(n, ENOSPC);
        run();
        check_all();
        remove_base();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_on_files_may_fail),
        cmocka_unit_test(every_mapping_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
