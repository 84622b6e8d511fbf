/* A monitor killed at any moment, again and again: the journal and what recovery makes of it. The
 * csv files must be, to the byte, the beginning of those of a run that was left alone. */
#include "check.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "monitor/follow.h"
#include "monitor/recover.h"
#include "tensorprobe/tensorprobe.h"

#define KILLS 100 /* TP_SOAK: ten times as many */
#define STEPS 40
#define STEPS_PER_FILE 16
#define KEYS 3

static const char config[] =
    "{\"format\": [\"csv\", \"tensorboard\"], \"step_count_per_record\": 16,"
    " \"wg_distribution\": true, \"ops\": [\"norm\", \"min\"], \"journal\": {\"segment_bytes\": "
    "4096}}";

static char base[] = "/tmp/tp-kill-XXXXXX";

static tp_monitor *open_monitor(const char *output_dir)
{
    tp_monitor_options options;
    tp_monitor *monitor = NULL;
    tp_monitor_defaults(&options);
    options.config_text = config;
    options.output_dir = output_dir;
    return tp_monitor_open(&monitor, &options, NULL) == TP_OK ? monitor : NULL;
}

/* Every run has the same values. */
static void train(tp_monitor *monitor)
{
    static const char *const names[KEYS] = {"fc1.weight", "fc1", "fc2.weight"};
    uint32_t ids[KEYS];
    for (uint32_t k = 0; k < KEYS; k++) {
        const tp_key key = {.name = names[k],
                            .slot = -1,
                            .quantity = k == 1 ? TP_ACTIVATION : TP_GRAD_REDUCED,
                            .role = k == 1 ? TP_ROLE_OUTPUT : TP_ROLE_NONE};
        tp_monitor_key(monitor, &key, &ids[k]);
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t k = 0; k < KEYS; k++) {
            const double x[2] = {step + 0.25 * k, -0.1 * step};
            const int64_t dims[] = {2};
            const tp_tensor tensor = {x, dims, NULL, TP_F64, 1};
            tp_monitor_observe(monitor, ids[k], &tensor, 0);
        }
        tp_monitor_step(monitor);
    }
}

/* The run directories below path, at most two. */
static uint32_t find_runs(const char *path, char found[2][TP_PATH_MAX])
{
    uint32_t count = 0;
    const struct dirent *entry;
    DIR *listing = opendir(path);
    while (listing != NULL && (entry = readdir(listing)) != NULL) {
        if (entry->d_name[0] != '.') {
            assert_true(count < 2);
            assert_int_equal(tp_path_join(found[count++], path, entry->d_name), TP_OK);
        }
    }
    if (listing != NULL) {
        closedir(listing);
    }
    return count;
}

/* Whole steps in the journal: they must be 0, 1, 2 … Behind them, what the last one had recorded. */
static uint64_t count_steps(const char *directory)
{
    uint64_t steps = 0;
    bool ended = false;
    tp_reader *reader = NULL;
    tp_item item;
    tp_status status = tp_reader_open(&reader, directory, NULL);
    while (status == TP_OK && (status = tp_reader_next(reader, &item, NULL)) == TP_OK) {
        if (item.type == TP_ITEM_BATCH) {
            assert_false(ended);
            assert_int_equal(item.batch.step, steps);
            ended = item.batch.flags == TP_BATCH_PARTIAL;
            if (ended) {
                assert_true(item.batch.count > 0 && item.batch.count <= KEYS);
            } else {
                assert_int_equal(item.batch.flags, 0);
                assert_int_equal(item.batch.count, KEYS);
                steps++;
            }
        }
    }
    assert_true(status == TP_END || (status == TP_ERR_NOTFOUND && steps == 0));
    tp_reader_close(&reader);
    return steps;
}

/* The csv file of one kind and window must be the first `lines` lines of the undisturbed one; with
 * 0, it must not exist. */
static void check_csv(const char *directory, const char *whole, const char *kind, uint64_t first,
                      uint64_t lines)
{
    char name[64];
    char path[TP_PATH_MAX];
    tp_buf expected = TP_BUF_INIT;
    tp_buf found = TP_BUF_INIT;
    snprintf(name, sizeof name, "%s_%u-%u.csv", kind, (unsigned)first,
             (unsigned)first + STEPS_PER_FILE - 1);
    tp_path_join(path, directory, name);
    tp_status status = tp_file_read(path, &found, NULL);
    if (lines == 0) {
        assert_int_equal(status, TP_ERR_NOTFOUND);
        return;
    }
    assert_int_equal(status, TP_OK);
    tp_path_join(path, whole, name);
    assert_int_equal(tp_file_read(path, &expected, NULL), TP_OK);
    size_t size = 0;
    for (; lines > 0; lines--) {
        const uint8_t *end = memchr(expected.data + size, '\n', expected.size - size);
        assert_non_null(end);
        size = (size_t)(end - expected.data) + 1;
    }
    assert_int_equal(found.size, size);
    assert_memory_equal(found.data, expected.data, size);
    tp_buf_free(&expected);
    tp_buf_free(&found);
}

static uint32_t masked_crc(const uint8_t *bytes, size_t size)
{
    uint32_t crc = tp_crc32c(0, bytes, size);
    return ((crc >> 15) | (crc << 17)) + UINT32_C(0xa282ead8);
}

/* The number of a step from an Event: field 2, behind the 9 bytes of field 1; 0 is left out. */
static uint64_t event_step(const uint8_t *event)
{
    uint64_t step = 0;
    if (event[9] == 0x10) {
        step = event[10] & 0x7f;
        step |= event[10] >= 0x80 ? (uint64_t)event[11] << 7 : 0;
    }
    return step;
}

/* One event file, whole frames to its end: the version, what explains the tags, then each step
 * once: what it cost, and its values. */
static void check_events(const char *directory, uint64_t steps)
{
    char path[TP_PATH_MAX];
    tp_buf file = TP_BUF_INIT;
    uint32_t files = 0;
    const struct dirent *entry;
    DIR *listing = opendir(directory);
    assert_non_null(listing);
    while ((entry = readdir(listing)) != NULL) {
        if (strncmp(entry->d_name, "events.", 7) == 0) {
            tp_path_join(path, directory, entry->d_name);
            files++;
        }
    }
    closedir(listing);
    assert_int_equal(files, steps > 0);
    if (steps == 0) {
        return;
    }
    assert_int_equal(tp_file_read(path, &file, NULL), TP_OK);
    uint64_t events = 0;
    for (size_t at = 0; at < file.size; events++) {
        assert_true(file.size - at >= 16);
        const uint8_t *frame = file.data + at;
        uint64_t length = tp_get_u64(frame);
        assert_int_equal(tp_get_u32(frame + 8), masked_crc(frame, 8));
        assert_true(length >= 12 && length <= file.size - at - 16);
        assert_int_equal(tp_get_u32(frame + 12 + length), masked_crc(frame + 12, length));
        if (events > 1) {
            assert_int_equal(event_step(frame + 12), (events - 2) / 2);
        }
        at += 16 + length;
    }
    assert_int_equal(events, 2 + 2 * steps);
    tp_buf_free(&file);
}

/* Recovers a directory and compares all that is in it; returns how many steps it has. */
static uint64_t check_run(const char *directory, const char *whole)
{
    uint64_t added;
    uint64_t recovered;
    tp_error error = {0};
    if (tp_recover_run(directory, &recovered, &error) != TP_OK) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(tp_recover_run(directory, &recovered, &error), TP_OK);
    assert_int_equal(recovered, 0);
    if (tp_follow_directory(directory, NULL, &added, &error) != TP_OK) {
        fail_msg("%s", error.message);
    }
    uint64_t steps = count_steps(directory);
    for (uint64_t first = 0; first < STEPS; first += STEPS_PER_FILE) {
        uint64_t here = steps <= first                   ? 0
                        : steps - first < STEPS_PER_FILE ? steps - first
                                                         : STEPS_PER_FILE;
        check_csv(directory, whole, "grad_reduced", first, here > 0 ? 1 + 2 * here : 0);
        check_csv(directory, whole, "actv", first, here > 0 ? 1 + here : 0);
    }
    check_events(directory, steps);
    assert_int_equal(tp_follow_directory(directory, NULL, &added, &error), TP_OK);
    assert_int_equal(added, 0);
    return steps;
}

static void remove_directory(const char *path)
{
    char command[TP_PATH_MAX + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

static unsigned seed_of_test(void)
{
    const char *given = getenv("TENSORPROBE_TEST_SEED");
    unsigned seed = given != NULL ? (unsigned)strtoul(given, NULL, 10) : (unsigned)time(NULL);
    print_message("TENSORPROBE_TEST_SEED=%u\n", seed);
    return seed;
}

/* Every second run is left as it was, for the recovery of the next one, which is killed as well. */
static void test_kill(void **state)
{
    (void)state;
    char whole[2][TP_PATH_MAX];
    char runs[2][TP_PATH_MAX];
    char folder[TP_PATH_MAX];
    uint64_t sum = 0;
    srandom(seed_of_test());
    assert_non_null(mkdtemp(base));
    setenv("TENSORPROBE_JOURNAL_DIR", base, 1); /* nobody else's processes find the boxes */
    tp_path_join(folder, base, "whole");
    uint64_t duration = tp_clock_monotonic();
    tp_monitor *monitor = open_monitor(folder);
    assert_non_null(monitor);
    train(monitor);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
    duration = tp_clock_monotonic() - duration;
    assert_int_equal(find_runs(folder, whole), 1);
    assert_int_equal(count_steps(whole[0]), STEPS);
    check_events(whole[0], STEPS);
    tp_path_join(folder, base, "killed");
    const int most = getenv("TP_SOAK") != NULL ? 10 * KILLS : KILLS;
    for (int kills = 1; kills <= most; kills++) {
        pid_t child = fork();
        if (child == 0) {
            close(STDERR_FILENO);
            monitor = open_monitor(folder);
            if (monitor != NULL) {
                train(monitor);
                tp_monitor_close(&monitor);
            }
            _exit(0);
        }
        usleep((useconds_t)((uint64_t)random() % (duration / 1000 + 1)));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        if (kills % 2 == 0) {
            const int stop = 0;
            tp_recover_boxes(folder, &stop);
            uint32_t count = find_runs(folder, runs);
            for (uint32_t i = 0; i < count; i++) {
                sum += check_run(runs[i], whole[0]);
            }
            remove_directory(folder);
        }
    }
    print_message("%llu steps in the journals of %d killed runs\n", (unsigned long long)sum, most);
    assert_true(sum > 0);
    remove_directory(base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kill)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
