/* A step that doesn't end. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "tensorprobe/tensorprobe.h"

static char base[] = "/tmp/tp-stall-XXXXXX";

static int make_base(void **state)
{
    (void)state;
    strcpy(base + strlen(base) - 6, "XXXXXX");
    return mkdtemp(base) == NULL;
}

static int remove_base(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", base);
    return system(command);
}

static tp_monitor *open_monitor(const char *config)
{
    tp_monitor_options options;
    tp_error error;
    tp_monitor *monitor = NULL;
    tp_monitor_defaults(&options);
    options.config_text = config;
    options.output_dir = base;
    options.rank = 3;
    assert_int_equal(tp_monitor_open(&monitor, &options, &error), TP_OK);
    return monitor;
}

static uint32_t make_key(tp_monitor *monitor, const char *name)
{
    const tp_key key = {name, NULL, 0, -1, TP_GRAD_REDUCED, TP_ROLE_NONE, NULL, NULL};
    uint32_t id = 99;
    assert_int_equal(tp_monitor_key(monitor, &key, &id), TP_OK);
    return id;
}

static void observe(tp_monitor *monitor, uint32_t key, double x)
{
    const int64_t dims[] = {1};
    const tp_tensor tensor = {&x, dims, NULL, TP_F64, 1};
    assert_int_equal(tp_monitor_observe(monitor, key, &tensor, 0), TP_OK);
}

/* A step that doesn't end is told of while it lasts, with the last tensor of it: in the journal,
 * before the batch of that step. */
static void test_stalled_step(void **state)
{
    (void)state;
    char directory[TP_PATH_MAX];
    tp_reader *reader = NULL;
    tp_item item;
    tp_monitor_counters counters = {0};
    const struct timespec pause = {0, 5000000};
    tp_monitor *monitor = open_monitor(
        "{\"format\": \"api\", \"alert\": {\"rules\": [{\"rule_name\": \"StalledStep\", "
        "\"args\": {\"threshold\": 0.1}}]}}");
    strcpy(directory, tp_monitor_directory(monitor));
    const uint32_t first = make_key(monitor, "fc1.weight");
    const uint32_t last = make_key(monitor, "fc2.weight");
    observe(monitor, first, 1);
    assert_int_equal(tp_monitor_step(monitor), TP_OK);
    observe(monitor, first, 1);
    observe(monitor, last, 1);
    while (counters.alerts == 0) {
        nanosleep(&pause, NULL);
        tp_monitor_get_counters(monitor, &counters);
    }
    assert_int_equal(tp_reader_open(&reader, directory, NULL), TP_OK);
    do {
        assert_int_equal(tp_reader_next(reader, &item, NULL), TP_OK);
    } while (item.type != TP_ITEM_ALERTS);
    assert_int_equal(item.batch.step, 1);
    assert_int_equal(item.batch.count, 2);
    assert_int_equal(item.batch.records[0].u.alert.rule, TP_RULE_STALLED_STEP);
    assert_int_equal(item.batch.records[1].kind, TP_RECORD_INCIDENT);
    assert_string_equal(tp_reader_key(reader, item.batch.records[1].key)->name, "fc2.weight");
    assert_true(item.batch.records[1].u.incident.value >= 0.1);
    tp_reader_close(&reader);
    assert_int_equal(tp_monitor_step(monitor), TP_OK);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stalled_step, make_base, remove_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
