/* Following a journal that has been damaged: what can be had of it gets to the outputs, once. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "journal/writer.h"
#include "monitor/follow.h"
#include "tensorprobe/tensorprobe.h"

#define STEPS 4 /* of an attempt */

static char base[] = "/tmp/tp-follow-XXXXXX";
static char directory[TP_PATH_MAX];

static const tp_key key = {"fc1.weight", NULL, 0, -1, TP_GRAD_REDUCED, TP_ROLE_NONE, NULL, NULL};
static const int64_t dims[] = {1};

/* A run of a monitor: steps 0 … 3 in segment 0, and in both outputs. */
static int run_monitor(void **state)
{
    (void)state;
    const double x = 1;
    const tp_tensor tensor = {&x, dims, NULL, TP_F64, 1};
    tp_monitor_options options;
    tp_monitor *monitor = NULL;
    uint32_t id;
    strcpy(base + strlen(base) - 6, "XXXXXX");
    assert_non_null(mkdtemp(base));
    tp_monitor_defaults(&options);
    options.config_text = "{\"format\": [\"csv\", \"tensorboard\"], \"wg_distribution\": true}";
    options.output_dir = base;
    assert_int_equal(tp_monitor_open(&monitor, &options, NULL), TP_OK);
    strcpy(directory, tp_monitor_directory(monitor));
    assert_int_equal(tp_monitor_key(monitor, &key, &id), TP_OK);
    for (int step = 0; step < STEPS; step++) {
        assert_int_equal(tp_monitor_observe(monitor, id, &tensor, 0), TP_OK);
        assert_int_equal(tp_monitor_step(monitor), TP_OK);
    }
    return tp_monitor_close(&monitor);
}

static int remove_base(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", base);
    return system(command);
}

/* Another process appends an attempt, in a segment of its own, and is killed before it follows.
 * others: so many keys have got their number before ours, and a record. */
static void append_attempt_behind(uint32_t attempt, uint32_t others)
{
    const tp_run_info run = {.run_id = "follow", .attempt = attempt};
    tp_registry *registry;
    tp_journal *journal;
    uint32_t id;
    tp_record records[4] = {0};
    assert_true(others < 4);
    for (uint32_t i = 0; i <= others; i++) {
        records[i] = (tp_record){.state = TP_SLOT_DONE, .kind = TP_RECORD_STATS, .dtype = TP_F64};
        records[i].u.stats.count = 1;
        records[i].key = i;
    }
    assert_int_equal(tp_registry_new(&registry), TP_OK);
    for (uint32_t i = 0; i < others; i++) {
        char name[16];
        snprintf(name, sizeof name, "other%u", i);
        const tp_key other = {name, NULL, 0, -1, TP_GRAD_REDUCED, TP_ROLE_NONE, NULL, NULL};
        assert_int_equal(tp_registry_add_key(registry, &other, &id), TP_OK);
    }
    assert_int_equal(tp_registry_add_key(registry, &key, &id), TP_OK);
    assert_int_equal(tp_registry_add_shape(registry, 1, dims, &id), TP_OK);
    assert_int_equal(tp_journal_open(&journal, directory, &run, registry, 0, NULL), TP_OK);
    for (uint32_t i = 0; i < STEPS; i++) {
        const tp_batch batch = {.step = attempt * STEPS + i,
                                .attempt = attempt,
                                .count = others + 1,
                                .records = records};
        assert_int_equal(tp_journal_append_batch(journal, &batch, NULL), TP_OK);
    }
    assert_int_equal(tp_journal_close(&journal, NULL), TP_OK);
    tp_registry_free(registry);
}

static void append_attempt(uint32_t attempt)
{
    append_attempt_behind(attempt, 0);
}

static void segment_path(char path[TP_PATH_MAX], unsigned segment)
{
    char name[32];
    snprintf(name, sizeof name, "journal/%06u.tpj", segment);
    assert_int_equal(tp_path_join(path, directory, name), TP_OK);
}

static uint64_t follow(void)
{
    uint64_t steps;
    tp_error error = {0};
    if (tp_follow_directory(directory, NULL, &steps, &error) != TP_OK) {
        fail_msg("%s", error.message);
    }
    return steps;
}

/* Lines of the csv file of one step; 0: there is none. */
static unsigned csv_lines(unsigned step)
{
    char name[64];
    char path[TP_PATH_MAX];
    tp_buf text = TP_BUF_INIT;
    unsigned lines = 0;
    snprintf(name, sizeof name, "grad_reduced_%u-%u.csv", step, step);
    tp_path_join(path, directory, name);
    if (tp_file_read(path, &text, NULL) == TP_OK) {
        for (size_t i = 0; i < text.size; i++) {
            lines += text.data[i] == '\n';
        }
    }
    tp_buf_free(&text);
    return lines;
}

static void expect_csv(unsigned first, unsigned last, unsigned lines)
{
    for (unsigned step = first; step <= last; step++) {
        assert_int_equal(csv_lines(step), lines);
    }
}

static void test_lost_end(void **state)
{
    (void)state;
    char path[TP_PATH_MAX];
    segment_path(path, 0);
    append_attempt(1);
    /* Half of the segment is gone, and with it the place where the cursors stand. */
    assert_int_equal(truncate(path, 500), 0);
    assert_int_equal(follow(), STEPS);
    assert_int_equal(follow(), 0);
    expect_csv(0, 2 * STEPS - 1, 2);
}

/* Following ends when it is told to, and goes on there the next time. */
static void test_stop(void **state)
{
    (void)state;
    const int stop = 1;
    uint64_t steps = 99;
    append_attempt(1);
    assert_int_equal(tp_follow_directory(directory, &stop, &steps, NULL), TP_END);
    assert_int_equal(steps, 0);
    assert_int_equal(follow(), STEPS);
    expect_csv(0, 2 * STEPS - 1, 2);
}

static void test_removed_segment(void **state)
{
    (void)state;
    char path[TP_PATH_MAX];
    segment_path(path, 0);
    append_attempt(1);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(follow(), STEPS);
    expect_csv(0, 2 * STEPS - 1, 2);
}

/* Without its definitions a segment's records have no names; the next segment's have. */
static void test_damaged_definitions(void **state)
{
    (void)state;
    char path[TP_PATH_MAX];
    tp_buf bytes = TP_BUF_INIT;
    append_attempt(1);
    append_attempt(2);
    segment_path(path, 1);
    assert_int_equal(tp_file_read(path, &bytes, NULL), TP_OK);
    bytes.data[112 + 40 + 20] ^= 1; /* in the payload of the first frame */
    assert_int_equal(tp_file_replace(path, bytes.data, bytes.size, NULL), TP_OK);
    tp_buf_free(&bytes);
    assert_int_equal(follow(), 2 * STEPS);
    expect_csv(STEPS, 2 * STEPS - 1, 0);
    expect_csv(2 * STEPS, 3 * STEPS - 1, 2);
    assert_int_equal(follow(), 0);
}

/* A key's number is one of its attempt: two that are followed in one go call it 2, and 0. */
static void test_other_numbers(void **state)
{
    (void)state;
    append_attempt_behind(1, 2);
    append_attempt_behind(2, 0);
    assert_int_equal(follow(), 2 * STEPS);
    for (unsigned step = 0; step < 3 * STEPS; step++) {
        char name[64];
        char path[TP_PATH_MAX];
        tp_buf text = TP_BUF_INIT;
        snprintf(name, sizeof name, "grad_reduced_%u-%u.csv", step, step);
        tp_path_join(path, directory, name);
        assert_int_equal(tp_file_read(path, &text, NULL), TP_OK);
        assert_non_null(memmem(text.data, text.size, "\n0,fc1.weight,", 14));
        tp_buf_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lost_end, run_monitor, remove_base),
        cmocka_unit_test_setup_teardown(test_stop, run_monitor, remove_base),
        cmocka_unit_test_setup_teardown(test_removed_segment, run_monitor, remove_base),
        cmocka_unit_test_setup_teardown(test_damaged_definitions, run_monitor, remove_base),
        cmocka_unit_test_setup_teardown(test_other_numbers, run_monitor, remove_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
