/* Which steps and ranks a configuration leaves out. */
#include "monitor_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "monitor/hooks.h"
#include "tensorprobe/tensorprobe.h"

/* Ten steps from first on, two observations each. Writes the numbers of the steps that are in the
 * journal as text; "" also when there is none. */
static const char *recorded(const char *config, uint32_t rank, uint64_t first)
{
    static char numbers[256];
    char directory[TP_PATH_MAX];
    tp_monitor_options options;
    tp_monitor *monitor = NULL;
    tp_error error;
    tp_monitor_defaults(&options);
    options.config_text = config;
    options.output_dir = base;
    options.rank = rank;
    options.start_step = first;
    assert_int_equal(tp_monitor_open(&monitor, &options, &error), TP_OK);
    strcpy(directory, tp_monitor_directory(monitor));
    const tp_key key = {"fc.weight", NULL, 0, -1, TP_GRAD_REDUCED, TP_ROLE_NONE, NULL, NULL};
    uint32_t id;
    assert_int_equal(tp_monitor_key(monitor, &key, &id), TP_OK);
    const double x = 3;
    const tp_tensor tensor = {.data = &x, .dtype = TP_F64};
    for (int i = 0; i < 10; i++) {
        assert_int_equal(tp_monitor_observe(monitor, id, &tensor, 0), TP_OK);
        assert_int_equal(tp_monitor_observe(monitor, id, &tensor, 1), TP_OK);
        assert_int_equal(tp_monitor_step(monitor), TP_OK);
    }
    tp_monitor_counters counters;
    tp_monitor_get_counters(monitor, &counters);
    assert_int_equal(counters.steps, 10);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);

    tp_reader *reader = NULL;
    tp_item item;
    numbers[0] = '\0';
    if (access(directory, F_OK) != 0) {
        return numbers;
    }
    assert_int_equal(tp_reader_open(&reader, directory, &error), TP_OK);
    while (tp_reader_next(reader, &item, &error) == TP_OK) {
        if (item.type == TP_ITEM_BATCH) {
            const size_t used = strlen(numbers);
            assert_int_equal(item.batch.count, 2);
            assert_int_equal(item.batch.flags, 0);
            snprintf(numbers + used, sizeof numbers - used, "%llu ",
                     (unsigned long long)item.batch.step);
        }
    }
    tp_reader_close(&reader);
    return numbers;
}

static void test_steps(void **state)
{
    (void)state;
    assert_string_equal(recorded("{\"start_step\": 7}", 0, 0), "7 8 9 ");
    assert_string_equal(recorded("{\"step_interval\": 4}", 0, 0), "0 4 8 ");
    assert_string_equal(recorded("{\"collect_times\": 2}", 0, 0), "0 1 ");
    assert_string_equal(recorded("{\"collect_times\": 0}", 0, 0), "");
    assert_string_equal(
        recorded("{\"start_step\": 3, \"step_interval\": 3, \"collect_times\": 2}", 0, 0), "3 6 ");
    assert_string_equal(recorded("{\"start_step\": 3, \"step_interval\": 5}", 0, 10), "13 18 ");
    assert_string_equal(recorded("{\"start_step\": 30}", 0, 10), "");
}

static void test_ranks(void **state)
{
    (void)state;
    const char *config = "{\"module_ranks\": [0, 2], \"collect_times\": 1}";
    assert_string_equal(recorded(config, 0, 0), "0 ");
    assert_string_equal(recorded(config, 1, 0), "");
    assert_string_equal(recorded(config, 2, 0), "0 ");
}

static void test_renumber(void **state)
{
    (void)state;
    tp_monitor_options options;
    tp_monitor *monitor = NULL;
    tp_error error;
    tp_batch batch;
    tp_monitor_defaults(&options);
    options.config_text = "{\"start_step\": 5}";
    options.output_dir = base;
    assert_int_equal(tp_monitor_open(&monitor, &options, &error), TP_OK);
    assert_false(tp_monitor_is_collecting(monitor));
    assert_int_equal(tp_monitor_renumber(monitor, 6), TP_OK);
    assert_true(tp_monitor_is_collecting(monitor));
    assert_int_equal(tp_monitor_view(monitor, &batch), TP_OK);
    assert_int_equal(batch.step, 6);
    assert_int_equal(batch.count, 0);

    const tp_key key = {"fc.weight", NULL, 0, -1, TP_GRAD_REDUCED, TP_ROLE_NONE, NULL, NULL};
    const double x = 3;
    const tp_tensor tensor = {.data = &x, .dtype = TP_F64};
    uint32_t id;
    assert_int_equal(tp_monitor_key(monitor, &key, &id), TP_OK);
    assert_int_equal(tp_monitor_observe(monitor, id, &tensor, 0), TP_OK);
    assert_int_equal(tp_monitor_view(monitor, &batch), TP_OK);
    assert_int_equal(batch.count, 1);
    assert_true(batch.records[0].u.stats.max == 3);
    assert_int_equal(tp_monitor_renumber(monitor, 7), TP_ERR_STATE);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_steps, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_ranks, make_base, remove_base),
        cmocka_unit_test_setup_teardown(test_renumber, make_base, remove_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
