/* A journal of known content. `test_journal_known DIRECTORY` writes it there for readers in other
 * languages (tests/python/test_journal.py); without an argument, it is written and read back here. */
#include <math.h>

#include "journal_fixture.h"

#define STEPS 40

/* What stands in word w of record i of step s; alerts count as step s + 1000. */
static uint64_t word(uint64_t s, uint64_t i, uint64_t w)
{
    uint64_t mixed = (s * 1000003 + i * 8191 + w + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return mixed >> (8 * (w % 8));
}

static void fill(tp_record *records, uint64_t s, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t *words = (uint64_t *)(void *)&records[i];
        for (uint64_t w = 0; w < sizeof records[i] / 8; w++) {
            words[w] = word(s, i, w);
        }
        records[i].state = i % 2 == 0 ? TP_SLOT_DONE : TP_SLOT_RESERVED;
        records[i].key = (uint32_t)(i % (s % 1000 + 1));
    }
}

/* The first step has one record and one alert with every field set by its name. */
static const tp_record named_record = {.state = TP_SLOT_DONE,
                                       .key = 0,
                                       .order = 1,
                                       .micro_step = 2,
                                       .call = 3,
                                       .kind = TP_RECORD_STATS,
                                       .dtype = TP_BF16,
                                       .shape = 0,
                                       .flags = TP_RECORD_HISTOGRAM,
                                       .time_ns = 4,
                                       .arena = 8,
                                       .u.stats = {.count = 10,
                                                   .nan = 11,
                                                   .pos_inf = 12,
                                                   .neg_inf = 13,
                                                   .zeros = 14,
                                                   .subnormal = 15,
                                                   .min = NAN,
                                                   .max = INFINITY,
                                                   .finite_min = -16.5,
                                                   .finite_max = 17.25,
                                                   .abs_max = 1e308,
                                                   .abs_max_index = 18,
                                                   .sum = 5e-324,
                                                   .sum_abs = 0.1,
                                                   .sum_sq = 19,
                                                   .m2 = 20,
                                                   .sq_exp = -21}};
/* Its arena: 8 bytes that nobody speaks of, then a histogram of 3 bins over [-1, 0.5]. */
static const uint64_t named_arena[] = {
    99, UINT64_C(0xbff0000000000000), UINT64_C(0x3fe0000000000000), 3, 41, 0, UINT64_C(1) << 40};

static const tp_record named_alert = {.state = TP_SLOT_DONE,
                                      .order = 1,
                                      .kind = TP_RECORD_ALERT,
                                      .u.alert = {.rule = TP_RULE_ANOMALY_TURBULENCE,
                                                  .op = TP_OP_MEAN,
                                                  .value = 30.5,
                                                  .baseline = -INFINITY,
                                                  .threshold = NAN,
                                                  .samples = 31,
                                                  .more = 32}};

static const tp_run_info run = {
    .run_id = "known", .rank = 5, .attempt = 2, .start_wall_ns = INT64_C(-1234567890123456789)};

static void define(tp_registry *registry, uint32_t s)
{
    char name[32];
    uint32_t id;
    int64_t dims[4];
    snprintf(name, sizeof name, "层.%u.fc", s);
    const tp_range ranges[] = {{1, 2, s + 3}, {0, 5, 5}};
    const tp_span span = {TP_SPAN_BOX, s % 3, s, s / 2, ranges};
    const tp_key key = {.name = s == 1 ? "" : name,
                        .global_name = s % 2 == 0 ? "global" : NULL,
                        .vpp_stage = (int32_t)s,
                        .slot = (int32_t)s - 1,
                        .quantity = s % 8 + 1,
                        .role = s % 3,
                        .span = s % 4 == 3 ? &span : NULL,
                        .argument = s % 3 == 0   ? "an_argument_longer_than_a_span"
                                    : s % 5 == 0 ? "x"
                                                 : NULL};
    assert_int_equal(tp_registry_add_key(registry, &key, &id), TP_OK);
    assert_int_equal(id, s);
    for (uint32_t d = 0; d < s % 5; d++) {
        dims[d] = (int64_t)s << (8 * d);
    }
    assert_int_equal(tp_registry_add_shape(registry, s % 5, dims, &id), TP_OK);
}

static tp_batch make_batch(uint64_t s, tp_record *records)
{
    tp_batch batch = {.step = s,
                      .rank = 5,
                      .attempt = 2,
                      .pp_stage = s % 2 == 0 ? -1 : (int32_t)s,
                      .flags = s % 10 == 9 ? TP_BATCH_GAP : s % 2,
                      .micro_steps = 1,
                      .unfilled = 2,
                      .begin_ns = 3,
                      .end_ns = 4,
                      .wall_ns = -5,
                      .hook_ns = 6,
                      .wait_ns = 7,
                      .writer_ns = 8,
                      .errors = UINT64_MAX,
                      .bytes = UINT64_MAX - s,
                      .left_out = (uint32_t)s << 1,
                      .zoom = (uint32_t)s % 3,
                      .count = s == 0 ? 1 : s * 7 % 50,
                      .records = s % 10 == 9 ? NULL : records};
    fill(records, s, batch.count);
    if (s == 0) {
        records[0] = named_record;
        batch.arena = (const uint8_t *)named_arena;
        batch.arena_size = sizeof(named_arena);
    }
    return batch;
}

static void write_known(const char *directory)
{
    tp_record records[50];
    tp_registry *registry;
    tp_journal *journal;
    tp_error error;
    assert_int_equal(tp_registry_new(&registry), TP_OK);
    assert_int_equal(tp_journal_open(&journal, directory, &run, registry, 20000, &error), TP_OK);
    for (uint32_t s = 0; s < STEPS; s++) {
        define(registry, s);
        const tp_batch batch = make_batch(s, records);
        assert_int_equal(tp_journal_append_batch(journal, &batch, &error), TP_OK);
        if (s % 5 == 0) {
            uint64_t count = s % 3 + 1;
            fill(records, s + 1000, count);
            if (s == 0) {
                records[0] = named_alert;
            }
            assert_int_equal(tp_journal_append_alerts(journal, s, records, count, &error), TP_OK);
        }
    }
    assert_int_equal(tp_journal_close(&journal, &error), TP_OK);
    tp_registry_free(registry);
}

static void known_content_reads_back(void **state)
{
    (void)state;
    fixture *f = fixture_new(1, 0);
    tp_record records[50];
    tp_error error;
    tp_item item;
    fixture_close(f);
    fixture_free(f);
    f = fixture_new(1, 0);
    fixture_close(f);
    write_known(f->directory);
    tp_reader *reader = fixture_reader(f);
    assert_int_equal(tp_reader_next(reader, &item, &error), TP_OK);
    assert_int_equal(item.type, TP_ITEM_CLOSE);
    for (uint64_t s = 0; s < STEPS; s++) {
        const tp_batch batch = make_batch(s, records);
        assert_int_equal(tp_reader_next(reader, &item, &error), TP_OK);
        const written expected = {
            .type = TP_ITEM_BATCH, .batch = batch, .records = batch.records ? records : NULL};
        assert_true(item_is(&item, &expected));
        tp_histogram histogram;
        if (s == 0) {
            assert_int_equal(tp_batch_histogram(&item.batch, &item.batch.records[0], &histogram),
                             TP_OK);
            assert_true(histogram.low == -1.0 && histogram.high == 0.5);
            assert_int_equal(histogram.bin_count, 3);
            assert_memory_equal(histogram.bins, &named_arena[4], 3 * sizeof(uint64_t));
        }
        if (s % 5 == 0) {
            assert_int_equal(tp_reader_next(reader, &item, &error), TP_OK);
            assert_int_equal(item.type, TP_ITEM_ALERTS);
            assert_int_equal(item.batch.step, s);
            assert_int_equal(item.batch.count, s % 3 + 1);
        }
    }
    tp_reader_close(&reader);
    fixture_free(f);
}

static const char *target;

static void write_for_others(void **state)
{
    (void)state;
    write_known(target);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest here[] = {cmocka_unit_test(known_content_reads_back)};
    const struct CMUnitTest there[] = {cmocka_unit_test(write_for_others)};
    if (argc == 1) {
        return cmocka_run_group_tests_name("known", here, NULL, NULL);
    }
    target = argv[1];
    return cmocka_run_group_tests_name("known", there, NULL, NULL);
}
