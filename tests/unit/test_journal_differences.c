/* Records come back to the bit, whatever is in them. */
#include "journal_fixture.h"

#include <math.h>

#include "journal/differences.h"

static void assert_comes_back(const tp_record *records, uint64_t count)
{
    tp_record made[64];
    uint64_t time = 0;
    uint64_t half = count / 2; /* in two calls, as the tiles of a batch */
    tp_differences_make(made, records, half, &time);
    tp_differences_make(made + half, records + half, count - half, &time);
    tp_differences_undo(made, count);
    assert_memory_equal(made, records, count * sizeof *records);
}

static void any_bits(void **state)
{
    (void)state;
    uint64_t random = 4200;
    for (int round = 0; round < 2000; round++) {
        tp_record records[64];
        uint64_t *words = (uint64_t *)(void *)records;
        for (size_t w = 0; w < sizeof records / 8; w++) {
            words[w] = random_u64(&random);
        }
        for (size_t i = 0; i < 64; i++) {
            records[i].kind = random_u64(&random) % 3;
            if (records[i].kind == TP_RECORD_STATS) {
                records[i].flags &= UINT32_MAX >> 1; /* the journal's own bit */
            }
        }
        assert_comes_back(records, 1 + random_u64(&random) % 64);
    }
}

/* Fields that are not what the others tell, and where nothing can be told. */
static void odd_numbers(void **state)
{
    (void)state;
    static const double odd[] = {0.0,    -0.0,   1.0,      -1.0,      5e-324,      -5e-324,
                                 1e308,  -1e308, INFINITY, -INFINITY, (double)NAN, -(double)NAN,
                                 1e-160, 3.0,    0.1,      -2.5};
    static const uint64_t counts[] = {0, 1, 2, 3, UINT64_MAX, UINT64_C(1) << 53};
    uint64_t random = 4300;
    for (int round = 0; round < 20000; round++) {
        tp_record record = {.kind = TP_RECORD_STATS, .time_ns = random_u64(&random)};
        double *fields[] = {&record.u.stats.min,        &record.u.stats.max,
                            &record.u.stats.finite_min, &record.u.stats.finite_max,
                            &record.u.stats.abs_max,    &record.u.stats.sum,
                            &record.u.stats.sum_sq,     &record.u.stats.m2};
        for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
            *fields[f] = odd[random_u64(&random) % (sizeof odd / sizeof *odd)];
        }
        record.u.stats.count = counts[random_u64(&random) % (sizeof counts / sizeof *counts)];
        assert_comes_back(&record, 1);
    }
}

/* What is told right is stored as nothing. */
static void what_is_told_is_small(void **state)
{
    (void)state;
    const float values[] = {1, 2, 3, -4};
    const int64_t shape[] = {4};
    const tp_tensor tensor = {.data = values, .shape = shape, .dtype = TP_F32, .ndim = 1};
    tp_record record = {.kind = TP_RECORD_STATS, .time_ns = 1005};
    tp_record made;
    uint64_t time = 1000;
    uint64_t words[17];
    assert_int_equal(tp_stats_compute(&tensor, 1e-8, &record.u.stats), TP_OK);
    tp_differences_make(&made, &record, 1, &time);
    memcpy(words, &made.u.stats, sizeof words);
    assert_int_equal(made.time_ns, 5);
    assert_int_equal(time, 1005);
    assert_int_equal(words[8], 0);      /* finite_min */
    assert_int_equal(words[9], 0);      /* finite_max */
    assert_int_equal(words[10], 0);     /* abs_max */
    assert_in_range(words[15], 0, 255); /* m2 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_bits),
        cmocka_unit_test(odd_numbers),
        cmocka_unit_test(what_is_told_is_small),
    };
    return cmocka_run_group_tests_name("differences", tests, NULL, NULL);
}
