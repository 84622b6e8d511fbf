/* What goes in comes out: every bit, across segments, while it is being written, and after writes and
 * requests for memory have failed. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>

#include "base/mem.h"
#include "journal_fixture.h"

static void reads_back_what_was_written(void **state)
{
    (void)state;
    static const uint64_t segment_bytes[] = {0, 20000, 1};
    for (size_t i = 0; i < sizeof segment_bytes / sizeof segment_bytes[0]; i++) {
        fixture *f = fixture_new(100 + i, segment_bytes[i]);
        for (int step = 0; step < 60; step++) {
            fixture_step(f, 200);
        }
        fixture_close(f);
        tp_reader *reader = fixture_reader(f);
        const tp_run_info *run = tp_reader_run(reader);
        assert_string_equal(run->run_id, RUN_ID);
        assert_int_equal(run->rank, 3);
        assert_int_equal(run->attempt, 1);
        assert_int_equal(run->start_wall_ns, fixture_run()->start_wall_ns);
        assert_reads_back(reader, f, 0);
        tp_reader_close(&reader);
        fixture_free(f);
    }
}

static void segments_roll_by_size_and_stand_alone(void **state)
{
    (void)state;
    fixture *f = fixture_new(200, 20000);
    char path[TP_PATH_MAX];
    uint64_t first;
    uint64_t last;
    for (int step = 0; step < 60; step++) {
        fixture_step(f, 40);
    }
    fixture_close(f);
    assert_int_equal(tp_segment_find(f->folder, 0, &first, &last), TP_OK);
    assert_int_equal(first, 0);
    assert_in_range(last, 4, 60);

    /* Without the segments before it, each one is read, with all the names it needs. */
    uint64_t bytes = 0;
    for (uint64_t segment = 0; segment <= last; segment++) {
        size_t from = 0;
        tp_buf file = TP_BUF_INIT;
        while (f->items[from].type != TP_ITEM_CLOSE && f->items[from].end.segment < segment) {
            from++;
        }
        tp_reader *reader = fixture_reader(f);
        assert_reads_back(reader, f, from);
        tp_reader_close(&reader);
        assert_int_equal(tp_segment_path(path, f->folder, segment), TP_OK);
        assert_int_equal(tp_file_read(path, &file, NULL), TP_OK);
        if (segment < last) {
            assert_true(file.size >= 20000);
        }
        bytes += file.size;
        tp_buf_free(&file);
        unlink(path);
    }
    assert_true(bytes > 20000 * last);
    tp_reader *reader;
    tp_error error;
    assert_int_equal(tp_reader_open(&reader, f->directory, &error), TP_ERR_NOTFOUND);
    fixture_free(f);
}

static void opening_again_goes_on_in_a_new_segment(void **state)
{
    (void)state;
    fixture *f = fixture_new(300, 0);
    fixture_step(f, 20);
    fixture_close(f);
    fixture_open(f, 0);
    assert_int_equal(tp_journal_position(f->journal).segment, 1);
    assert_int_equal(tp_journal_position(f->journal).offset, TP_SEGMENT_HEADER_SIZE);
    assert_int_equal(tp_journal_bytes(f->journal), TP_SEGMENT_HEADER_SIZE);
    fixture_step(f, 20);
    fixture_close(f);
    tp_reader *reader = fixture_reader(f);
    assert_reads_back(reader, f, 0);
    tp_reader_close(&reader);
    fixture_free(f);
}

/* However often opening fails on a full disk, no heap of empty segments stays behind. */
static void opening_on_a_full_disk_can_be_repeated(void **state)
{
    (void)state;
    fixture *f = fixture_new(350, 0);
    tp_error error;
    fixture_step(f, 20);
    fixture_close(f);
    for (int i = 0; i < 3; i++) {
        tp_file_fail_after(1, ENOSPC);
        assert_int_equal(
            tp_journal_open(&f->journal, f->directory, fixture_run(), f->registry, 0, &error),
            TP_ERR_NOSPACE);
        tp_file_fail_after(0, 0);
    }
    fixture_open(f, 0);
    assert_int_equal(tp_journal_position(f->journal).segment, 1);
    fixture_step(f, 20);
    fixture_close(f);
    tp_reader *reader = fixture_reader(f);
    assert_reads_back(reader, f, 0);
    tp_reader_close(&reader);
    fixture_free(f);
}

/* A run that is started again may give an id another name; what was handed out stays as it was. */
static void ids_belong_to_their_segment(void **state)
{
    (void)state;
    fixture *f = fixture_new(400, 0);
    tp_error error;
    tp_item item;
    uint32_t id;
    const tp_key keys[] = {{.name = "first"}, {.name = "second"}, {.name = "third"}};
    const tp_batch batch = {.step = 7, .flags = TP_BATCH_GAP, .count = 5};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tp_registry_add_key(f->registry, &keys[i], &id), TP_OK);
    }
    assert_int_equal(tp_journal_append_batch(f->journal, &batch, &error), TP_OK);
    assert_int_equal(tp_journal_close(&f->journal, &error), TP_OK);
    tp_registry_free(f->registry);
    assert_int_equal(tp_registry_new(&f->registry), TP_OK);
    assert_int_equal(tp_registry_add_key(f->registry, &keys[2], &id), TP_OK);
    fixture_open(f, 0);
    assert_int_equal(tp_journal_append_batch(f->journal, &batch, &error), TP_OK);
    assert_int_equal(tp_journal_close(&f->journal, &error), TP_OK);

    tp_reader *reader = fixture_reader(f);
    assert_int_equal(tp_reader_next(reader, &item, &error), TP_OK);
    assert_int_equal(tp_reader_key_count(reader), 2);
    const tp_key *first = tp_reader_key(reader, 0);
    assert_string_equal(first->name, "first");
    assert_int_equal(tp_reader_next(reader, &item, &error), TP_OK);
    assert_int_equal(item.type, TP_ITEM_CLOSE);
    assert_int_equal(tp_reader_next(reader, &item, &error), TP_OK);
    assert_int_equal(tp_reader_key_count(reader), 1);
    assert_string_equal(tp_reader_key(reader, 0)->name, "third");
    assert_null(tp_reader_key(reader, 1));
    assert_string_equal(first->name, "first");
    tp_reader_close(&reader);
    fixture_free(f);
}

static void seeks_to_every_item(void **state)
{
    (void)state;
    fixture *f = fixture_new(500, 15000);
    tp_error error;
    tp_item item;
    for (int step = 0; step < 30; step++) {
        fixture_step(f, 30);
    }
    tp_reader *reader = fixture_reader(f);
    for (int n = 0; n < 100; n++) {
        size_t i = random_u64(&f->random) % f->count;
        assert_int_equal(tp_reader_seek(reader, f->items[i].end, &error), TP_OK);
        assert_definitions(reader, f, f->items[i].keys);
        if (i + 1 < f->count) {
            assert_int_equal(tp_reader_next(reader, &item, &error), TP_OK);
            assert_item(&item, &f->items[i + 1]);
        } else {
            assert_int_equal(tp_reader_next(reader, &item, &error), TP_END);
        }
    }
    const tp_position end = tp_journal_position(f->journal);
    const tp_position wrong[] = {{end.segment, end.offset + 1}, {end.segment, end.offset - 1},
                                 {end.segment, UINT64_MAX},     {0, 1},
                                 {end.segment + 1, 0},          {UINT64_MAX, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(tp_reader_seek(reader, wrong[i], &error), TP_ERR_ARGUMENT);
        assert_int_equal(error.code, TP_ERR_ARGUMENT);
    }
    assert_int_equal(tp_reader_seek(reader, (tp_position){0, 0}, &error), TP_OK);
    fixture_close(f);
    assert_reads_back(reader, f, 0);
    tp_reader_close(&reader);
    fixture_free(f);
}

/* The writing thread of the next test. The items are fixed before it starts. */
typedef struct writing {
    fixture *f;
    size_t count;
} writing;

static void *write_items(void *argument)
{
    const writing *w = argument;
    for (size_t i = 0; i < w->count; i++) {
        const written *item = &w->f->items[i];
        tp_status status = item->type == TP_ITEM_BATCH
                               ? tp_journal_append_batch(w->f->journal, &item->batch, NULL)
                               : tp_journal_append_alerts(w->f->journal, item->batch.step,
                                                          item->records, item->batch.count, NULL);
        if (status != TP_OK) {
            break;
        }
    }
    tp_journal_close(&w->f->journal, NULL);
    return NULL;
}

static void follows_while_it_grows(void **state)
{
    (void)state;
    fixture *f = fixture_new(600, 30000);
    writing w = {f, 0};
    pthread_t thread;
    tp_error error;
    tp_item item;
    uint64_t ends = 0;
    for (; f->count < 400; f->count++) {
        if (f->count % 20 == 0) {
            fixture_define(f, 5);
        }
        fixture_make(f, f->count % 5 == 4 ? TP_ITEM_ALERTS : TP_ITEM_BATCH, 60);
    }
    w.count = f->count;
    tp_reader *reader = fixture_reader(f);
    assert_int_equal(pthread_create(&thread, NULL, write_items, &w), 0);
    for (size_t i = 0; i <= f->count;) {
        tp_status status = tp_reader_next(reader, &item, &error);
        if (status == TP_END) {
            ends++;
            sched_yield();
            continue;
        }
        assert_int_equal(status, TP_OK);
        if (i < f->count) {
            assert_true(item_is(&item, &f->items[i]));
        } else {
            assert_int_equal(item.type, TP_ITEM_CLOSE);
        }
        i++;
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_in_range(item.position.segment, 3, 400);
    printf("the reader was ahead %" PRIu64 " times\n", ends);
    tp_reader_close(&reader);
    fixture_free(f);
}

#define TINY_STEPS 4000

static void *write_tiny_steps(void *argument)
{
    fixture *f = argument;
    for (uint64_t step = 0; step < TINY_STEPS; step++) {
        const tp_batch batch = {.step = step, .flags = TP_BATCH_GAP, .count = 1};
        if (tp_journal_append_batch(f->journal, &batch, NULL) != TP_OK) {
            break;
        }
    }
    tp_journal_close(&f->journal, NULL);
    return NULL;
}

/* Segments of two or three steps each: the reader, which is faster, is always at the end of one when
 * the writer goes on. */
static void follows_from_segment_to_segment(void **state)
{
    (void)state;
    fixture *f = fixture_new(650, 360);
    pthread_t thread;
    tp_error error;
    tp_item item = {0};
    uint64_t step = 0;
    tp_reader *reader = fixture_reader(f);
    assert_int_equal(pthread_create(&thread, NULL, write_tiny_steps, f), 0);
    while (item.type != TP_ITEM_CLOSE) {
        tp_status status = tp_reader_next(reader, &item, &error);
        if (status == TP_OK && item.type == TP_ITEM_BATCH) {
            assert_int_equal(item.batch.step, step++);
        } else {
            assert_in_range(status, TP_OK, TP_END);
        }
    }
    assert_int_equal(step, TINY_STEPS);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_in_range(item.position.segment, TINY_STEPS / 4, TINY_STEPS);
    tp_reader_close(&reader);
    fixture_free(f);
}

/* Every write fails once, half done: a repeated append is all it takes, in old and new segments. */
static void failed_writes_leave_no_trace(void **state)
{
    (void)state;
    fixture *f = fixture_new(700, 3000);
    tp_error error;
    tp_item item;
    tp_reader *reader = fixture_reader(f);
    unsigned failures = 0;
    for (int step = 0; step < 60; step++) {
        fixture_define(f, 3);
        fixture_make(f, step % 3 == 2 ? TP_ITEM_ALERTS : TP_ITEM_BATCH, 10);
        tp_position before = tp_journal_position(f->journal);
        uint64_t bytes = tp_journal_bytes(f->journal);
        tp_file_fail_after(1 + (unsigned long)step % 2, step % 5 == 0 ? EIO : ENOSPC);
        tp_status status = fixture_append(f, &error);
        if (status != TP_OK) {
            failures++;
            assert_int_equal(status, step % 5 == 0 ? TP_ERR_IO : TP_ERR_NOSPACE);
            assert_int_equal(error.code, status);
            assert_int_equal(tp_journal_position(f->journal).segment, before.segment);
            assert_true(step % 2 == 1 || tp_journal_bytes(f->journal) == bytes);
            assert_int_equal(tp_reader_next(reader, &item, &error), TP_END);
            tp_file_fail_after(0, 0);
            assert_int_equal(fixture_append(f, &error), TP_OK);
        }
        tp_file_fail_after(0, 0);
        assert_int_equal(tp_reader_next(reader, &item, &error), TP_OK);
        assert_item(&item, &f->items[f->count - 1]);
    }
    assert_in_range(failures, 30, 60);
    tp_reader_close(&reader);

    tp_file_fail_after(1, ENOSPC);
    assert_int_equal(tp_journal_close(&f->journal, &error), TP_ERR_NOSPACE);
    assert_null(f->journal);
    tp_file_fail_after(0, 0);
    reader = fixture_reader(f);
    assert_reads_back(reader, f, 0);
    tp_reader_close(&reader);
    fixture_free(f);
}

/* What got into the file can't be cut off again: the journal goes on in another segment. So it does
 * where somebody has put a link. */
static void goes_on_when_a_segment_cannot_be_cut_back(void **state)
{
    (void)state;
    fixture *f = fixture_new(800, 1);
    tp_error error;
    char path[TP_PATH_MAX];
    fixture_step(f, 5);
    uint64_t dead = tp_journal_position(f->journal).segment + 1;
    assert_int_equal(tp_segment_path(path, f->folder, dead + 1), TP_OK);
    assert_int_equal(symlink("elsewhere", path), 0);
    fixture_make(f, TP_ITEM_BATCH, 5);
    tp_file_fail_calls_after(4, ENOSPC,
                             false); /* behind the mark of the old one, folder and open */
    assert_int_equal(fixture_append(f, &error), TP_ERR_NOSPACE);
    tp_file_fail_calls_after(0, 0, false);
    assert_int_equal(fixture_append(f, &error), TP_OK);
    assert_int_equal(tp_journal_position(f->journal).segment, dead + 2);
    fixture_close(f);
    unlink(path);
    tp_reader *reader = fixture_reader(f);
    assert_reads_back(reader, f, 0);
    tp_reader_close(&reader);
    fixture_free(f);
}

/* Writes and reads a small journal; the n-th request for memory of each call fails, and all after it,
 * until the call is repeated. Returns how many calls failed. */
static unsigned run_short_of_memory(unsigned long n)
{
    fixture *f = fixture_new(900, 2000);
    tp_error error;
    tp_item item;
    tp_reader *reader;
    tp_status status;
    unsigned failures = 0;
    assert_int_equal(tp_journal_close(&f->journal, &error), TP_OK);
    f->items[f->count++].type = TP_ITEM_CLOSE;

    tp_mem_fail_after(n);
    status = tp_journal_open(&f->journal, f->directory, fixture_run(), f->registry, 2000, &error);
    tp_mem_fail_after(0);
    if (status != TP_OK) {
        failures++;
        assert_int_equal(status, TP_ERR_NOMEM);
        assert_int_equal(error.code, TP_ERR_NOMEM);
        fixture_open(f, 2000);
    }
    for (int step = 0; step < 4; step++) {
        fixture_define(f, 6);
        fixture_make(f, step == 3 ? TP_ITEM_ALERTS : TP_ITEM_BATCH, 30);
        tp_mem_fail_after(n);
        status = fixture_append(f, &error);
        tp_mem_fail_after(0);
        if (status != TP_OK) {
            failures++;
            assert_int_equal(status, TP_ERR_NOMEM);
            assert_int_equal(error.code, TP_ERR_NOMEM);
            assert_int_equal(fixture_append(f, &error), TP_OK);
        }
    }
    fixture_close(f);

    tp_mem_fail_after(n);
    status = tp_reader_open(&reader, f->directory, &error);
    tp_mem_fail_after(0);
    if (status != TP_OK) {
        failures++;
        assert_int_equal(status, TP_ERR_NOMEM);
        reader = fixture_reader(f);
    }
    for (size_t i = 0; i < f->count; i++) {
        tp_mem_fail_after(n);
        status = tp_reader_next(reader, &item, &error);
        tp_mem_fail_after(0);
        if (status != TP_OK) {
            failures++;
            assert_int_equal(status, TP_ERR_NOMEM);
            assert_int_equal(tp_reader_next(reader, &item, &error), TP_OK);
        }
        assert_true(item_is(&item, &f->items[i]));
        assert_definitions(reader, f, f->items[i].keys);
        assert_shapes(reader, f, &item);
    }
    assert_int_equal(tp_reader_next(reader, &item, &error), TP_END);
    tp_reader_close(&reader);
    fixture_free(f);
    return failures;
}

static void failed_requests_for_memory_leave_no_trace(void **state)
{
    (void)state;
    unsigned long n = 1;
    unsigned all = 0;
    for (unsigned failures = 1; failures > 0; n++) {
        failures = run_short_of_memory(n);
        all += failures;
    }
    printf("%u calls failed, of at most %lu requests each\n", all, n - 2);
    assert_in_range(all, 40, 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_back_what_was_written),
        cmocka_unit_test(segments_roll_by_size_and_stand_alone),
        cmocka_unit_test(opening_again_goes_on_in_a_new_segment),
        cmocka_unit_test(opening_on_a_full_disk_can_be_repeated),
        cmocka_unit_test(ids_belong_to_their_segment),
        cmocka_unit_test(seeks_to_every_item),
        cmocka_unit_test(follows_while_it_grows),
        cmocka_unit_test(follows_from_segment_to_segment),
        cmocka_unit_test(failed_writes_leave_no_trace),
        cmocka_unit_test(goes_on_when_a_segment_cannot_be_cut_back),
        cmocka_unit_test(failed_requests_for_memory_leave_no_trace),
    };
    return cmocka_run_group_tests_name("writing", tests, NULL, NULL);
}
