/* A step that doesn't end. */
#include "monitor_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "monitor/hooks.h"
#include "tensorprobe/tensorprobe.h"

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
    tp_monitor *monitor = fixture_monitor(
        "{\"format\": \"api\", \"alert\": {\"rules\": [{\"rule_name\": \"StalledStep\", "
        "\"args\": {\"threshold\": 0.1}}], \"dump\": true}}");
    strcpy(directory, tp_monitor_directory(monitor));
    const uint32_t first = fixture_key(monitor, "fc1.weight");
    const uint32_t last = fixture_key(monitor, "fc2.weight");
    fixture_observe(monitor, first, 1);
    assert_int_equal(tp_monitor_step(monitor), TP_OK);
    fixture_observe(monitor, first, 1);
    fixture_observe(monitor, last, 1);
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
    /* While it hangs the file is there, too, and once in it when the step has ended after all. */
    char path[TP_PATH_MAX];
    static const char key[] = "\"0:fc2.weight/rank3/post_grad_step_1_call_1_StalledStep_id\": {";
    assert_int_equal(tp_path_join(path, directory, "anomaly.json"), TP_OK);
    for (int round = 0; round < 2; round++) {
        tp_buf text = TP_BUF_INIT;
        while (round == 0 && access(path, R_OK) != 0) {
            nanosleep(&pause, NULL);
        }
        assert_int_equal(tp_file_read(path, &text, NULL), TP_OK);
        tp_buf_put(&text, "", 1);
        const char *found = strstr((const char *)text.data, key);
        assert_non_null(found);
        assert_null(strstr(found + strlen(key), "StalledStep_id"));
        tp_buf_free(&text);
        if (round == 0) {
            assert_int_equal(tp_monitor_step(monitor), TP_OK);
            assert_int_equal(tp_monitor_close(&monitor), TP_OK);
        }
    }
}

/* What it hangs in may be a collective: that has begun, and nothing else of it is known. */
static void test_stalled_in_a_collective(void **state)
{
    (void)state;
    tp_reader *reader = NULL;
    tp_item item;
    tp_step *open = NULL;
    char text[TP_INCIDENT_TEXT];
    tp_monitor_counters counters = {0};
    const struct timespec pause = {0, 5000000};
    tp_monitor *monitor = fixture_monitor(
        "{\"format\": \"api\", \"alert\": {\"rules\": [{\"rule_name\": \"StalledStep\", "
        "\"args\": {\"threshold\": 0.1}}]}}");
    const uint32_t weight = fixture_key(monitor, "fc1.weight");
    const tp_key call = {"all_reduce", "0:0-3", 0, -1, TP_COMM, TP_ROLE_NONE, NULL, NULL};
    uint32_t key;
    assert_int_equal(tp_monitor_key(monitor, &call, &key), TP_OK);
    fixture_observe(monitor, weight, 1);
    assert_int_equal(tp_monitor_step(monitor), TP_OK);
    fixture_observe(monitor, weight, 1);
    tp_record *slot = tp_monitor_reserve(monitor, key, tp_clock_monotonic(), &open);
    assert_non_null(slot);
    slot->kind = TP_RECORD_COLLECTIVE;
    slot->micro_step = 2;
    tp_step_issue(slot);
    while (counters.alerts == 0) {
        nanosleep(&pause, NULL);
        tp_monitor_get_counters(monitor, &counters);
    }
    assert_int_equal(tp_reader_open(&reader, tp_monitor_directory(monitor), NULL), TP_OK);
    do {
        assert_int_equal(tp_reader_next(reader, &item, NULL), TP_OK);
    } while (item.type != TP_ITEM_ALERTS);
    const tp_record *incident = &item.batch.records[1];
    tp_incident_describe(incident, tp_reader_key(reader, incident->key), NULL, text, sizeof text);
    assert_non_null(strstr(text,
                           "the last collective was all_reduce (0:0-3), micro step 2, call 0, "
                           "of step 1."));
    tp_reader_close(&reader);
    tp_step_fill(open, slot);
    assert_int_equal(tp_monitor_step(monitor), TP_OK);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stalled_step, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_stalled_in_a_collective, make_base, remove_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
