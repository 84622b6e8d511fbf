/* Slots and steps: order, filling later, overflow into chunks, many threads, no memory. */
#include "check.h"

#include <math.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "record/step.h"

#define NOW tp_clock_monotonic()

static tp_step *open_step(uint32_t capacity)
{
    tp_step *step = NULL;
    assert_int_equal(tp_step_new(&step, capacity, NULL), TP_OK);
    tp_step_begin(step, 7);
    return step;
}

static void add(tp_step *step, uint32_t key)
{
    tp_record *slot = tp_step_reserve(step, key, NOW);
    assert_non_null(slot);
    slot->kind = TP_RECORD_STATS;
    slot->u.stats.count = key * 10;
    tp_step_fill(step, slot);
}

static void test_time(void **state)
{
    (void)state;
    tp_step *step = open_step(2);
    const uint64_t begin_ns = tp_step_header(step)->begin_ns;
    tp_record *slot = tp_step_reserve(step, 1, begin_ns + 5);
    assert_int_equal(slot->time_ns, 5);
    tp_step_fill(step, slot);
    slot = tp_step_reserve(step, 1, begin_ns - 5); /* by another clock it isn't later */
    assert_int_equal(slot->time_ns, 0);
    tp_step_fill(step, slot);
    tp_step_close(step);
    tp_step_free(step);
}

static void test_order(void **state)
{
    (void)state;
    /* 5 fit, the others go to chunks: one view has them all, in the order of reserving. */
    tp_step *step = open_step(5);
    for (uint32_t key = 0; key < 3000; key++) {
        add(step, key);
    }
    tp_step_close(step);
    assert_true(tp_step_is_complete(step));
    tp_batch batch;
    assert_int_equal(tp_step_view(step, &batch), TP_OK);
    assert_int_equal(batch.step, 7);
    assert_int_equal(batch.count, 3000);
    assert_int_equal(batch.flags, 0);
    for (uint32_t key = 0; key < 3000; key++) {
        const tp_record *record = &batch.records[key];
        assert_int_equal(record->state, TP_SLOT_DONE);
        assert_int_equal(record->key, key);
        assert_int_equal(record->order, key);
        assert_int_equal(record->u.stats.count, key * 10);
    }
    /* The next step is empty, and has grown. */
    tp_step_begin(step, 8);
    add(step, 1);
    tp_step_close(step);
    assert_int_equal(tp_step_view(step, &batch), TP_OK);
    assert_int_equal(batch.count, 1);
    assert_int_equal(batch.step, 8);
    tp_step_free(step);
}

/* Of record i: i % 40 bins, the k-th with i + k elements. */
static void put_histogram(tp_step *step, tp_record *slot, uint64_t i)
{
    uint64_t bins[40];
    for (uint64_t k = 0; k < 40; k++) {
        bins[k] = i + k;
    }
    const tp_stats_options options = {
        .bins = bins, .bin_count = (uint32_t)(i % 40), .low = -(double)i, .high = 0.25};
    assert_true(tp_step_add_histogram(step, slot, &options));
}

static void check_histogram(const tp_batch *batch, const tp_record *record, uint64_t i)
{
    tp_histogram found;
    assert_int_equal(tp_batch_histogram(batch, record, &found), TP_OK);
    assert_int_equal(found.bin_count, i % 40);
    assert_true(found.low == -(double)i && found.high == 0.25);
    for (uint32_t k = 0; k < found.bin_count; k++) {
        assert_int_equal(found.bins[k], i + k);
    }
}

/* Few histograms lie in one piece of memory, many are joined, and those of slots that are not filled
 * are nobody's business. */
static void test_histograms(void **state)
{
    (void)state;
    static const uint64_t counts[] = {3, 2000, 5};
    tp_step *step = open_step(8);
    tp_batch batch;
    tp_histogram none;
    for (size_t round = 0; round < 3; round++) {
        tp_record *later = NULL;
        for (uint64_t i = 0; i < counts[round]; i++) {
            tp_record *slot = tp_step_reserve(step, 1, NOW);
            put_histogram(step, slot, i);
            if (i == 2) {
                later = slot;
            } else {
                tp_step_fill(step, slot);
            }
        }
        add(step, 2);
        assert_int_equal(tp_step_view(step, &batch), TP_OK); /* not closed yet */
        assert_int_equal(batch.unfilled, 1);
        assert_int_equal(tp_batch_histogram(&batch, &batch.records[2], &none), TP_ERR_NOTFOUND);
        for (uint64_t i = 0; i < counts[round]; i++) {
            if (i != 2) {
                check_histogram(&batch, &batch.records[i], i);
            }
        }
        tp_step_fill(step, later);
        tp_step_close(step);
        assert_int_equal(tp_step_view(step, &batch), TP_OK);
        assert_int_equal(batch.flags, 0);
        for (uint64_t i = 0; i < counts[round]; i++) {
            check_histogram(&batch, &batch.records[i], i);
        }
        assert_int_equal(tp_batch_histogram(&batch, &batch.records[counts[round]], &none),
                         TP_ERR_NOTFOUND);
        tp_step_begin(step, 8 + round);
    }
    tp_step_close(step);
    assert_int_equal(tp_step_view(step, &batch), TP_OK);
    assert_null(batch.arena);
    assert_int_equal(batch.arena_size, 0);
    tp_step_free(step);
}

/* Of record i: i % 50 bins from that of -160 + i % 20 on, the k-th with i + k + 1 elements, in which
 * both signs have a part; and before that, by i % 3, nothing, a histogram or an element. */
static void put_exponents(tp_step *step, tp_record *slot, uint64_t i)
{
    static const double broken[] = {1, 2, (double)NAN};
    static const int64_t size = 3;
    tp_exponents exponents = {.negative = {0}};
    for (uint64_t k = 0; k < i % 50; k++) {
        exponents.positive[i % 20 + k] = 1;
        exponents.negative[i % 20 + k] = i + k;
    }
    if (i % 3 == 1) {
        put_histogram(step, slot, i);
    } else if (i % 3 == 2) {
        const tp_tensor tensor = {broken, &size, NULL, TP_F64, 1};
        tp_step_add_element(step, slot, &tensor);
    }
    assert_true(tp_step_add_exponents(step, slot, &exponents));
}

static void check_exponents(const tp_batch *batch, const tp_record *record, uint64_t i)
{
    tp_histogram found;
    uint64_t index = 0;
    uint64_t bits = 0;
    assert_int_equal(tp_batch_exponents(batch, record, &found), TP_OK);
    assert_int_equal(found.bin_count, i % 50);
    assert_true(i % 50 == 0 || found.low == -160 + (double)(i % 20));
    assert_true(found.high == found.low + found.bin_count);
    for (uint32_t k = 0; k < found.bin_count; k++) {
        assert_int_equal(found.bins[k], i + k + 1);
    }
    if (i % 3 == 1) {
        check_histogram(batch, record, i);
    } else {
        assert_int_equal(tp_batch_histogram(batch, record, &found), TP_ERR_NOTFOUND);
    }
    assert_int_equal(tp_batch_element(batch, record, &index, &bits),
                     i % 3 == 2 ? TP_OK : TP_ERR_NOTFOUND);
    assert_int_equal(index, i % 3 == 2 ? 2 : 0);
}

/* Exponents lie behind what a record has otherwise, also in a step that isn't over. */
static void test_exponents(void **state)
{
    (void)state;
    const uint64_t count = 1000;
    tp_step *step = open_step(8);
    tp_record *later = NULL;
    tp_batch batch;
    tp_histogram none;
    for (uint64_t i = 0; i < count; i++) {
        tp_record *slot = tp_step_reserve(step, 1, NOW);
        put_exponents(step, slot, i);
        if (i == 7) {
            later = slot;
        } else {
            tp_step_fill(step, slot);
        }
    }
    for (int round = 0; round < 2; round++) {
        assert_int_equal(tp_step_view(step, &batch), TP_OK);
        assert_true(batch.arena_size > 3 * 65536);
        for (uint64_t i = 0; i < count; i++) {
            if (i != 7 || round == 1) {
                check_exponents(&batch, &batch.records[i], i);
            }
        }
        if (round == 0) {
            tp_step_fill(step, later);
            tp_step_close(step);
        }
    }
    tp_record torn = batch.records[count - 1];
    batch.arena_size = torn.arena + 24;
    assert_int_equal(tp_batch_exponents(&batch, &torn, &none), TP_ERR_NOTFOUND);
    torn.flags &= ~TP_RECORD_EXPONENTS;
    batch.arena_size += 4096;
    assert_int_equal(tp_batch_exponents(&batch, &torn, &none), TP_ERR_NOTFOUND);
    tp_step_free(step);
}

/* Without memory the record is good, and has no histogram. */
static void test_no_memory_for_histograms(void **state)
{
    (void)state;
    uint64_t bins[1] = {7};
    const tp_stats_options options = {.bins = bins, .bin_count = 1, .low = 0, .high = 1};
    tp_batch batch;
    tp_histogram found;
    tp_step *step = open_step(8);
    tp_record *slot = tp_step_reserve(step, 1, NOW);
    tp_mem_fail_after(1);
    assert_false(tp_step_add_histogram(step, slot, &options));
    tp_mem_fail_after(0);
    tp_step_fill(step, slot);
    slot = tp_step_reserve(step, 1, NOW);
    assert_true(tp_step_add_histogram(step, slot, &options));
    tp_step_fill(step, slot);
    tp_step_close(step);
    assert_int_equal(tp_step_view(step, &batch), TP_OK);
    assert_int_equal(batch.errors, 1);
    assert_int_equal(tp_batch_histogram(&batch, &batch.records[0], &found), TP_ERR_NOTFOUND);
    assert_int_equal(tp_batch_histogram(&batch, &batch.records[1], &found), TP_OK);
    assert_int_equal(found.bins[0], 7);
    tp_step_free(step);
}

/* What a damaged journal may say. */
static void test_wrong_places_of_histograms(void **state)
{
    (void)state;
    uint64_t arena[10] = {0};
    tp_histogram found;
    arena[4] = 6; /* bins of the histogram at 16 */
    const tp_batch batch = {.arena = (const uint8_t *)arena, .arena_size = sizeof arena};
    tp_record record = {.flags = TP_RECORD_HISTOGRAM, .arena = 16};
    assert_int_equal(tp_batch_histogram(&batch, &record, &found), TP_ERR_NOTFOUND);
    arena[4] = 5;
    assert_int_equal(tp_batch_histogram(&batch, &record, &found), TP_OK);
    assert_int_equal(found.bin_count, 5);
    record.flags = 0;
    assert_int_equal(tp_batch_histogram(&batch, &record, &found), TP_ERR_NOTFOUND);
    record.flags = TP_RECORD_HISTOGRAM;
    static const uint64_t places[] = {
        20, 64, 80, 1000, UINT64_MAX, UINT64_MAX - 7, UINT64_MAX - 23};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        record.arena = places[i];
        assert_int_equal(tp_batch_histogram(&batch, &record, &found), TP_ERR_NOTFOUND);
    }
    record.arena = 56;
    assert_int_equal(tp_batch_histogram(&batch, &record, &found), TP_OK);
    const tp_batch small = {.arena = (const uint8_t *)arena, .arena_size = 16};
    assert_int_equal(tp_batch_histogram(&small, &record, &found), TP_ERR_NOTFOUND);
    const tp_batch without = {.arena_size = 0};
    assert_int_equal(tp_batch_histogram(&without, &record, &found), TP_ERR_NOTFOUND);
}

static void test_filled_later(void **state)
{
    (void)state;
    tp_step *step = open_step(8);
    add(step, 0);
    tp_record *later = tp_step_reserve(step, 1, NOW);
    add(step, 2);
    assert_false(tp_step_is_complete(step));
    tp_step_close(step);
    assert_false(tp_step_is_complete(step));

    tp_batch batch;
    assert_int_equal(tp_step_view(step, &batch), TP_OK);
    assert_int_equal(batch.unfilled, 1);
    assert_int_equal(batch.flags, TP_BATCH_PARTIAL);
    assert_int_equal(batch.count, 3);
    assert_int_equal(batch.records[1].state, TP_SLOT_RESERVED);
    assert_int_equal(batch.records[1].key, 1);

    later->u.stats.count = 77;
    tp_step_fill(step, later);
    assert_true(tp_step_is_complete(step));
    assert_int_equal(tp_step_view(step, &batch), TP_OK);
    assert_int_equal(batch.unfilled, 0);
    assert_int_equal(batch.flags, 0);
    assert_int_equal(batch.records[1].u.stats.count, 77);
    tp_step_free(step);
}

static void test_issued(void **state)
{
    (void)state;
    /* Of a collective that runs a view shows what it began with, and nothing of its end. */
    tp_step *step = open_step(2);
    tp_record *slot = tp_step_reserve(step, 4, NOW);
    slot->kind = TP_RECORD_COLLECTIVE;
    slot->shape = 9;
    slot->u.collective =
        (tp_collective){.op = TP_COLLECTIVE_OP_SEND, .peer = 3, .sequence = 17, .location = 2};
    tp_step_issue(slot);
    slot->u.collective.flags = TP_COLLECTIVE_DONE;
    slot->u.collective.done_ns = 5;
    tp_batch batch;
    assert_int_equal(tp_step_view(step, &batch), TP_OK);
    assert_int_equal(batch.count, 1);
    assert_int_equal(batch.unfilled, 1);
    const tp_record *record = &batch.records[0];
    assert_int_equal(record->state, TP_SLOT_RESERVED);
    assert_int_equal(record->kind, TP_RECORD_COLLECTIVE);
    assert_int_equal(record->key, 4);
    assert_int_equal(record->shape, 9);
    assert_int_equal(record->u.collective.op, TP_COLLECTIVE_OP_SEND);
    assert_int_equal(record->u.collective.peer, 3);
    assert_int_equal(record->u.collective.sequence, 17);
    assert_int_equal(record->u.collective.location, 2);
    assert_int_equal(record->u.collective.flags, 0);
    assert_int_equal(record->u.collective.done_ns, 0);
    tp_step_fill(step, slot);
    tp_step_close(step);
    assert_int_equal(tp_step_view(step, &batch), TP_OK);
    assert_int_equal(batch.unfilled, 0);
    assert_int_equal(batch.records[0].u.collective.done_ns, 5);
    tp_step_free(step);
}

static void test_no_memory(void **state)
{
    (void)state;
    for (unsigned long n = 1; n <= 3; n++) {
        tp_step *step = NULL;
        tp_mem_fail_after(n);
        tp_status status = tp_step_new(&step, 2, NULL);
        tp_mem_fail_after(0);
        assert_int_equal(status, n <= 2 ? TP_ERR_NOMEM : TP_OK);
        tp_step_free(step);
    }
    tp_step *step = open_step(2);
    add(step, 0);
    add(step, 1);
    tp_mem_fail_after(1);
    assert_null(tp_step_reserve(step, 2, NOW)); /* no chunk to be had */
    tp_mem_fail_after(0);
    add(step, 3); /* now there is: the lost one leaves no hole */
    tp_step_close(step);
    assert_true(tp_step_is_complete(step));
    tp_batch batch;
    assert_int_equal(tp_step_view(step, &batch), TP_OK);
    assert_int_equal(batch.count, 3);
    assert_int_equal(batch.errors, 1);
    assert_int_equal(batch.records[2].key, 3);
    tp_step_free(step);
}

#define THREADS 4
#define EACH 5000

static void *add_many(void *argument)
{
    for (uint32_t i = 0; i < EACH; i++) {
        tp_record *slot = tp_step_reserve(argument, i, NOW);
        slot->u.stats.count = i;
        put_histogram(argument, slot, i);
        tp_step_fill(argument, slot);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    uint32_t seen[EACH] = {0};
    tp_step *step = open_step(100);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, step), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    tp_step_close(step);
    tp_batch batch;
    assert_int_equal(tp_step_view(step, &batch), TP_OK);
    assert_int_equal(batch.count, THREADS * EACH);
    for (uint64_t i = 0; i < batch.count; i++) {
        assert_int_equal(batch.records[i].order, i);
        assert_int_equal(batch.records[i].u.stats.count, batch.records[i].key);
        check_histogram(&batch, &batch.records[i], batch.records[i].key);
        seen[batch.records[i].key]++;
    }
    for (uint32_t i = 0; i < EACH; i++) {
        assert_int_equal(seen[i], THREADS);
    }
    tp_step_free(step);
}

/* A process is killed between taking a slot's number and writing the slot: there is nothing of it to
 * recover. One slot on, there is. */
static void test_killed_before_its_first_slot(void **state)
{
    (void)state;
    char folder[] = "/tmp/tp-step-XXXXXX";
    char command[64];
    assert_non_null(mkdtemp(folder));
    for (uint64_t slots = 0; slots < 2; slots++) {
        tp_mapping *memory = tp_mapping_open(folder);
        tp_step *step = NULL;
        tp_pieces pieces;
        assert_int_equal(tp_step_new(&step, 4, memory), TP_OK);
        assert_int_equal(tp_mapping_trouble(memory), 0);
        tp_step_begin(step, 7);
        for (uint64_t i = 0; i < slots; i++) {
            add(step, 1);
        }
        tp_step_reserve(step, 2, NOW)->state = TP_SLOT_FREE; /* as it was before the number */
        assert_int_equal(tp_pieces_load(&pieces, folder, NULL), TP_OK);
        uint32_t found = 0;
        for (uint32_t i = 0; i < pieces.count; i++) {
            tp_step *revived = NULL;
            tp_batch batch;
            if (tp_step_revive(&revived, &pieces, &pieces.pieces[i]) == TP_OK) {
                found++;
                assert_int_equal(tp_step_view(revived, &batch), TP_OK);
                assert_int_equal(batch.count, slots);
                tp_step_bury(revived);
            }
        }
        assert_int_equal(found, slots);
        tp_pieces_free(&pieces);
        tp_step_free(step);
        tp_mapping_close(memory);
    }
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_time),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_histograms),
        cmocka_unit_test(test_exponents),
        cmocka_unit_test(test_no_memory_for_histograms),
        cmocka_unit_test(test_wrong_places_of_histograms),
        cmocka_unit_test(test_filled_later),
        cmocka_unit_test(test_issued),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_killed_before_its_first_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
