/* Old segments lose their batches: what is left of them, and which ones do. */
#include "journal_fixture.h"

#include <errno.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "journal/cursor.h"
#include "journal/retention.h"
#include "journal/thin.h"

#define STEPS 60u
#define LONG_STEPS 8000u
#define KEYS 3u

static char directory[] = "/tmp/tp-keep-XXXXXX";
static tp_registry *registry;
static uint64_t alert_every = 10; /* steps */

static int set_up(void **state)
{
    (void)state;
    uint32_t id;
    strcpy(directory + strlen(directory) - 6, "XXXXXX");
    assert_non_null(mkdtemp(directory));
    assert_int_equal(tp_registry_new(&registry), TP_OK);
    for (uint32_t i = 0; i < KEYS; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%u", i);
        const tp_key key = {.name = name, .slot = -1, .quantity = TP_GRAD_REDUCED};
        assert_int_equal(tp_registry_add_key(registry, &key, &id), TP_OK);
    }
    return tp_registry_add_shape(registry, 0, NULL, &id);
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    tp_registry_free(registry);
    snprintf(command, sizeof command, "rm -rf %s", directory);
    return system(command);
}

static tp_journal *open_journal(uint64_t segment_bytes, tp_retention limits)
{
    const tp_run_info run = {.run_id = "keep"};
    tp_journal *journal = NULL;
    assert_int_equal(tp_journal_open(&journal, directory, &run, registry, segment_bytes, NULL),
                     TP_OK);
    tp_journal_keep(journal, &limits);
    return journal;
}

/* The norm of key k in a step is (k + 1) · (step + 1), and NaN every 7th step. In every alert_every-th
 * step there is an alert. */
static void write_step(tp_journal *journal, uint64_t step)
{
    tp_record records[KEYS] = {0};
    for (uint32_t i = 0; i < KEYS; i++) {
        const double norm = (double)(i + 1) * (double)(step + 1);
        records[i] =
            (tp_record){.state = TP_SLOT_DONE, .kind = TP_RECORD_STATS, .key = i, .dtype = TP_F64};
        records[i].u.stats.count = 1;
        records[i].u.stats.nan = step % 7 == 0;
        records[i].u.stats.sum_sq = norm * norm;
    }
    const tp_batch batch = {.step = step, .count = KEYS, .records = records};
    assert_int_equal(tp_journal_append_batch(journal, &batch, NULL), TP_OK);
    if (step % alert_every == 0) {
        tp_record alert = {.state = TP_SLOT_DONE, .kind = TP_RECORD_ALERT};
        assert_int_equal(tp_journal_append_alerts(journal, step, &alert, 1, NULL), TP_OK);
    }
}

/* What a reader finds. */
typedef struct found {
    uint64_t first, steps, removed, alerts, segments;
} found;

static found read_all(void)
{
    found f = {.first = UINT64_MAX};
    tp_reader *reader = NULL;
    tp_item item;
    tp_error error;
    tp_status status;
    uint64_t next = 0;
    assert_int_equal(tp_reader_open(&reader, directory, &error), TP_OK);
    while ((status = tp_reader_next(reader, &item, &error)) == TP_OK) {
        if (item.type == TP_ITEM_BATCH) {
            f.first = f.steps == 0 ? item.batch.step : f.first;
            f.steps++;
            assert_int_equal(item.batch.step, next);
            next++;
        } else if (item.type == TP_ITEM_ALERTS) {
            assert_int_equal(item.batch.step, alert_every * f.alerts);
            f.alerts++;
        } else if (item.type == TP_ITEM_REMOVED) {
            assert_int_equal(item.batch.step, next);
            assert_int_equal(item.batch.count, item.removed_last - item.batch.step + 1);
            f.removed += item.batch.count;
            next = item.removed_last + 1;
        }
        f.segments = item.position.segment + 1;
    }
    assert_int_equal(status, TP_END);
    tp_reader_close(&reader);
    return f;
}

/* The overviews of all steps, whether their records are there or not, by the formula above. */
static void check_overview(uint64_t steps, uint64_t width)
{
    tp_reader *reader = NULL;
    tp_item item;
    uint64_t records = 0;
    uint64_t rows = 0;
    uint64_t bad = 0;
    assert_int_equal(tp_reader_open(&reader, directory, NULL), TP_OK);
    tp_reader_overview(reader, width);
    while (tp_reader_next(reader, &item, NULL) == TP_OK) {
        for (uint64_t i = 0; i < item.overview_count; i++) {
            const tp_overview *row = &item.overviews[i];
            const double factor = (double)(row->key + 1);
            uint64_t first = row->first_step;
            uint64_t last = row->last_step;
            rows++;
            records += row->count;
            bad += row->nan;
            while (first < last && first % 7 == 0) {
                first++;
            }
            while (first < last && last % 7 == 0) {
                last--;
            }
            if (first % 7 != 0) {
                assert_true(row->norm_min == factor * (double)(first + 1));
                assert_true(row->norm_max == factor * (double)(last + 1));
            }
            assert_string_equal(tp_reader_key(reader, row->key)->name, row->key == 0   ? "w0"
                                                                       : row->key == 1 ? "w1"
                                                                                       : "w2");
        }
    }
    assert_int_equal(records, steps * KEYS);
    assert_int_equal(bad, (steps + 6) / 7 * KEYS);
    assert_true(rows < records);
    tp_reader_close(&reader);
}

static uint64_t total_size(void)
{
    uint64_t size = 0;
    uint64_t next;
    uint64_t last;
    char folder[TP_PATH_MAX];
    char path[TP_PATH_MAX];
    struct stat info;
    tp_path_join(folder, directory, "journal");
    for (uint64_t from = 0; tp_segment_find(folder, from, &next, &last) == TP_OK; from = next + 1) {
        tp_segment_path(path, folder, next);
        assert_int_equal(stat(path, &info), 0);
        size += (uint64_t)info.st_size;
    }
    return size;
}

static void by_size(void **state)
{
    (void)state;
    tp_journal *journal = open_journal(1024, (tp_retention){0, 0});
    for (uint64_t step = 0; step < STEPS; step++) {
        write_step(journal, step);
    }
    assert_int_equal(tp_journal_close(&journal, NULL), TP_OK);
    const found before = read_all();
    const uint64_t whole = total_size();
    assert_int_equal(before.steps, STEPS);
    assert_true(before.segments > 3);
    assert_int_equal(tear_down(NULL), 0);
    assert_int_equal(set_up(NULL), 0);
    journal = open_journal(1024, (tp_retention){whole * 3 / 4, 0});
    for (uint64_t step = 0; step < STEPS; step++) {
        write_step(journal, step);
    }
    assert_int_equal(tp_journal_close(&journal, NULL), TP_OK);
    const found after = read_all();
    assert_true(after.removed > 0);
    assert_int_equal(after.removed + after.steps, STEPS);
    assert_int_equal(after.first, after.removed);
    assert_int_equal(after.alerts, STEPS / 10);
    assert_int_equal(after.segments, before.segments);
    assert_true(total_size() < whole * 3 / 4 + 2 * 1024);
    check_overview(STEPS, 0);
    check_overview(STEPS, 4);
}

/* A reader that stood in a segment finds its way; a follower that has not passed one keeps it. */
static void followers_wait(void **state)
{
    (void)state;
    char path[TP_PATH_MAX];
    tp_buf blob = TP_BUF_INIT;
    tp_cursor cursor = {.any = true};
    tp_path_join(path, directory, "followers");
    assert_int_equal(tp_dir_make(path, NULL), TP_OK);
    tp_path_join(path, directory, "followers/slow.cursor");
    assert_int_equal(tp_cursor_store(path, &cursor, &blob, NULL), TP_OK);
    tp_journal *journal = open_journal(1024, (tp_retention){1000000, 0});
    for (uint64_t step = 0; step < STEPS; step++) {
        write_step(journal, step);
    }
    char folder[TP_PATH_MAX];
    tp_removed gone;
    tp_waiting waiting;
    tp_path_join(folder, directory, "journal");
    const uint64_t end = tp_journal_position(journal).segment;
    const uint64_t size = total_size();
    const tp_retention limits = {size * 2 / 3, 0};
    assert_int_equal(tp_retention_apply(&limits, folder, end, &waiting, NULL), TP_OK);
    assert_int_equal(read_all().steps, STEPS);
    cursor.position.segment = 1;
    assert_int_equal(tp_cursor_store(path, &cursor, &blob, NULL), TP_OK);
    assert_int_equal(tp_retention_apply(&limits, folder, end, &waiting, NULL), TP_OK);
    assert_true(tp_segment_is_thin(folder, 0, &gone));
    assert_false(tp_segment_is_thin(folder, 1, &gone));
    assert_int_equal(waiting.segments, 0);
    /* One that delivers is waited for as well. */
    cursor.position.segment = 2;
    assert_int_equal(tp_cursor_store(path, &cursor, &blob, NULL), TP_OK);
    tp_path_join(path, directory, "ship");
    assert_int_equal(tp_dir_make(path, NULL), TP_OK);
    tp_path_join(path, directory, "ship/passed-1.cursor");
    cursor.position.segment = 1;
    assert_int_equal(tp_cursor_store(path, &cursor, &blob, NULL), TP_OK);
    assert_int_equal(tp_retention_apply(&limits, folder, end, &waiting, NULL), TP_OK);
    assert_false(tp_segment_is_thin(folder, 1, &gone));
    const uint64_t first = read_all().first;
    const tp_retention small = {size / 4, 0}; /* it is beyond twice of this */
    assert_int_equal(tp_retention_apply(&small, folder, end, &waiting, NULL), TP_OK);
    assert_true(read_all().first > first);
    assert_true(waiting.segments > 0);
    assert_string_equal(waiting.cursor, "ship/passed-1.cursor");
    assert_int_equal(tp_journal_close(&journal, NULL), TP_OK);
    check_overview(STEPS, 0);
}

/* However long a run is: the steps that are kept don't become fewer, what is left of the others
 * stays small and knows all of them. */
static void a_long_run(void **state)
{
    (void)state;
    const uint64_t limit = 60000;
    uint64_t kept = 0;
    alert_every = 1000;
    tp_journal *journal = open_journal(2048, (tp_retention){limit, 0});
    for (uint64_t step = 0; step < LONG_STEPS; step++) {
        write_step(journal, step);
        if (step % (LONG_STEPS / 8) == LONG_STEPS / 8 - 1) {
            const found f = read_all();
            assert_int_equal(f.removed + f.steps, step + 1);
            assert_int_equal(f.alerts, step / alert_every + 1);
            assert_true(total_size() < limit + 2 * 2048);
            if (step > LONG_STEPS / 2) {
                assert_true(f.steps > kept * 3 / 4);
            } else {
                kept = f.steps;
            }
            check_overview(step + 1, 0);
        }
    }
    assert_int_equal(tp_journal_close(&journal, NULL), TP_OK);
    check_overview(LONG_STEPS, 0);
    check_overview(LONG_STEPS, 16);
    alert_every = 10;
}

/* Fills a journal of which all but the last segment lose their steps. Returns its last segment. */
static uint64_t make_thin(char folder[TP_PATH_MAX])
{
    tp_path_join(folder, directory, "journal");
    tp_journal *journal = open_journal(1024, (tp_retention){0, 0});
    for (uint64_t step = 0; step < STEPS; step++) {
        write_step(journal, step);
    }
    const uint64_t end = tp_journal_position(journal).segment;
    assert_int_equal(tp_journal_close(&journal, NULL), TP_OK);
    for (uint64_t segment = 0; segment < end; segment++) {
        assert_int_equal(tp_segment_thin(folder, segment, NULL), TP_OK);
    }
    return end;
}

/* A write or a request for memory that fails leaves both; killed in between, both are there, and
 * the next time tells that one speaks of the other. */
static void joining_fails(void **state)
{
    (void)state;
    char folder[TP_PATH_MAX];
    char path[TP_PATH_MAX];
    tp_waiting waiting;
    tp_removed gone;
    tp_buf bytes = TP_BUF_INIT;
    const uint64_t end = make_thin(folder);
    assert_true(end > 3);
    tp_segment_path(path, folder, 0);
    assert_int_equal(tp_file_read(path, &bytes, NULL), TP_OK);
    tp_file_fail_after(1, ENOSPC);
    assert_int_equal(tp_segment_join(folder, 0, 1, NULL), TP_ERR_NOSPACE);
    tp_file_fail_after(0, 0);
    check_overview(STEPS, 0);
    for (unsigned long n = 1;; n++) {
        tp_mem_fail_after(n);
        const tp_status status = tp_segment_join(folder, 0, 1, NULL);
        tp_mem_fail_after(0);
        if (status == TP_OK) {
            break;
        }
        assert_int_equal(status, TP_ERR_NOMEM);
        assert_true(tp_segment_is_thin(folder, 0, &gone));
    }
    assert_false(tp_segment_is_thin(folder, 0, &gone));
    assert_true(tp_segment_is_thin(folder, 1, &gone));
    assert_int_equal(gone.first_step, 0);
    assert_int_equal(gone.batches, gone.last_step + 1);
    check_overview(STEPS, 0);
    assert_int_equal(tp_segment_join(folder, 2, end, NULL), TP_END); /* that one has its steps */
    assert_int_equal(tp_file_replace(path, bytes.data, bytes.size, NULL), TP_OK);
    tp_buf_free(&bytes);
    const tp_retention limits = {total_size() - 1, 0};
    assert_int_equal(tp_retention_apply(&limits, folder, end, &waiting, NULL), TP_OK);
    check_overview(STEPS, 0);
}

/* Numbers of names mean something in one attempt alone. */
static void attempts_are_not_joined(void **state)
{
    (void)state;
    char folder[TP_PATH_MAX];
    const uint64_t end = make_thin(folder);
    tp_journal *journal = open_journal(1024, (tp_retention){0, 0});
    tp_journal_begin_attempt(journal, 1);
    write_step(journal, STEPS);
    assert_int_equal(tp_journal_close(&journal, NULL), TP_OK);
    assert_int_equal(tp_segment_thin(folder, end, NULL), TP_OK);
    for (uint64_t segment = end + 1; segment <= end + 2; segment++) {
        const tp_status status = tp_segment_thin(folder, segment, NULL);
        assert_int_equal(tp_segment_join(folder, end, segment, NULL), TP_END);
        if (status == TP_OK) {
            return;
        }
    }
    fail_msg("no segment of the second attempt");
}

/* By age; also a segment whose process was killed, which has no overviews of its own. */
static void by_age(void **state)
{
    (void)state;
    char folder[TP_PATH_MAX];
    char path[TP_PATH_MAX];
    tp_removed gone;
    tp_path_join(folder, directory, "journal");
    tp_journal *journal = open_journal(0, (tp_retention){0, 0});
    for (uint64_t step = 0; step < STEPS / 2; step++) {
        write_step(journal, step);
    }
    tp_journal_leave(&journal);
    tp_segment_path(path, folder, 0);
    const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    journal = open_journal(0, (tp_retention){0, 86400});
    for (uint64_t step = STEPS / 2; step < STEPS; step++) {
        write_step(journal, step);
    }
    tp_journal_begin_attempt(journal, 1); /* ends the segment */
    assert_int_equal(tp_journal_close(&journal, NULL), TP_OK);
    const found f = read_all();
    assert_int_equal(f.removed, STEPS / 2);
    assert_int_equal(f.steps, STEPS / 2);
    assert_true(tp_segment_is_thin(folder, 0, &gone));
    check_overview(STEPS, 0);
    assert_int_equal(tp_segment_thin(folder, 0, NULL), TP_END);
}

/* A write that fails leaves the segment as it was. */
static void a_failure_leaves_it(void **state)
{
    (void)state;
    char folder[TP_PATH_MAX];
    tp_path_join(folder, directory, "journal");
    tp_journal *journal = open_journal(0, (tp_retention){0, 0});
    for (uint64_t step = 0; step < STEPS; step++) {
        write_step(journal, step);
    }
    assert_int_equal(tp_journal_close(&journal, NULL), TP_OK);
    tp_file_fail_after(1, ENOSPC);
    assert_int_equal(tp_segment_thin(folder, 0, NULL), TP_ERR_NOSPACE);
    tp_file_fail_after(0, 0);
    assert_int_equal(read_all().steps, STEPS);
    for (unsigned long n = 1;; n++) {
        tp_mem_fail_after(n);
        const tp_status status = tp_segment_thin(folder, 0, NULL);
        tp_mem_fail_after(0);
        if (status == TP_OK) {
            break;
        }
        assert_int_equal(status, TP_ERR_NOMEM);
        assert_int_equal(read_all().steps, STEPS);
    }
    assert_int_equal(read_all().removed, STEPS);
    check_overview(STEPS, 0);
}

/* What another attempt has recorded again from the same step on is no remainder of a join. */
static void earlier_attempts_stay(void **state)
{
    (void)state;
    char folder[TP_PATH_MAX];
    tp_waiting waiting;
    tp_removed gone;
    tp_path_join(folder, directory, "journal");
    tp_journal *journal = open_journal(0, (tp_retention){0, 0});
    for (uint64_t step = 0; step < 10; step++) {
        write_step(journal, step);
    }
    tp_journal_begin_attempt(journal, 1);
    for (uint64_t step = 0; step < 30; step++) {
        write_step(journal, step);
    }
    assert_int_equal(tp_journal_close(&journal, NULL), TP_OK);
    const tp_retention limits = {1, 0};
    assert_int_equal(tp_retention_apply(&limits, folder, 2, &waiting, NULL), TP_OK);
    assert_int_equal(tp_retention_apply(&limits, folder, 2, &waiting, NULL), TP_OK);
    assert_true(tp_segment_is_thin(folder, 0, &gone));
    assert_int_equal(gone.last_step, 9);
    assert_true(tp_segment_is_thin(folder, 1, &gone));
    assert_int_equal(gone.last_step, 29);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(by_size, set_up, tear_down),
        cmocka_unit_test_setup_teardown(followers_wait, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_long_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(joining_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(attempts_are_not_joined, set_up, tear_down),
        cmocka_unit_test_setup_teardown(earlier_attempts_stay, set_up, tear_down),
        cmocka_unit_test_setup_teardown(by_age, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_failure_leaves_it, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
