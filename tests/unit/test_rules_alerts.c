/* The two rules on series whose right answers are worked out by hand. */
#include "rules_fixture.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

static const uint32_t norm_only[] = {TP_OP_NORM};

/* A tensor of one element; its norm is |x|. */
static tp_record one(uint32_t key, uint64_t order, double x)
{
    tp_record record = {.state = TP_SLOT_DONE, .key = key, .order = order, .kind = TP_RECORD_STATS};
    const int64_t dims[] = {1};
    const tp_tensor tensor = {&x, dims, NULL, TP_F64, 1};
    assert_int_equal(tp_stats_compute(&tensor, 1e-8, &record.u.stats), TP_OK);
    return record;
}

static size_t check_one(tp_rules *rules, double x, tp_buf *alerts)
{
    const tp_record record = one(0, 0, x);
    return check_step(rules, 0, &record, 1, alerts);
}

static void test_relative(void **state)
{
    (void)state;
    const tp_rule_options options = {.rule = TP_RULE_ANOMALY_TURBULENCE,
                                     .mode = TP_TURBULENCE_RELATIVE,
                                     .threshold = 0.5,
                                     .min_samples = 1};
    tp_buf alerts = TP_BUF_INIT;
    tp_rules *rules = NULL;
    assert_int_equal(tp_rules_new(&rules, &options, 1, norm_only, 1, registry), TP_OK);
    assert_int_equal(check_one(rules, 4, &alerts), 0);   /* nothing to compare with */
    assert_int_equal(check_one(rules, 6, &alerts), 0);   /* mean 4: |6 - 4| = 2 is not more */
    assert_int_equal(check_one(rules, 2.4, &alerts), 1); /* mean 5: |2.4 - 5| > 2.5 */
    const tp_alert *alert = &((const tp_record *)(const void *)alerts.data)->u.alert;
    assert_int_equal(alert->rule, TP_RULE_ANOMALY_TURBULENCE);
    assert_int_equal(alert->op, TP_OP_NORM);
    assert_true(alert->value == 2.4 && alert->baseline == 5 && alert->samples == 2);
    /* NaN neither fires nor enters the mean: (4 + 6 + 2.4) / 3 = 4.1333 stays */
    assert_int_equal(check_one(rules, NAN, &alerts), 0);
    assert_int_equal(check_one(rules, INFINITY, &alerts), 0);
    assert_int_equal(check_one(rules, 6.1, &alerts), 0);
    assert_int_equal(check_one(rules, 7.0, &alerts), 1); /* mean 4.625 */
    tp_rules_free(rules);
    tp_buf_free(&alerts);
}

static void test_factor(void **state)
{
    (void)state;
    const uint32_t ops[] = {TP_OP_MIN, TP_OP_NORM, TP_OP_SHAPE};
    const tp_rule_options options = {.rule = TP_RULE_ANOMALY_TURBULENCE,
                                     .mode = TP_TURBULENCE_FACTOR,
                                     .threshold = 10,
                                     .min_samples = 20};
    tp_buf alerts = TP_BUF_INIT;
    tp_rules *rules = NULL;
    assert_int_equal(tp_rules_new(&rules, &options, 1, ops, 3, registry), TP_OK);
    for (int i = 0; i < 20; i++) {
        /* 19 earlier values are too few, whatever comes */
        assert_int_equal(check_one(rules, i == 19 ? 1000 : 1, &alerts), 0);
    }
    /* the mean of the 20 is (19 + 1000) / 20 = 50.95 */
    assert_int_equal(check_one(rules, 509, &alerts), 0);
    assert_int_equal(check_one(rules, 0, &alerts), 1);
    const tp_alert *alert = &((const tp_record *)(const void *)alerts.data)->u.alert;
    assert_int_equal(alert->op, TP_OP_NORM); /* never the minimum, though it comes first */
    assert_int_equal(alert->samples, 21);
    tp_rules_free(rules);
    tp_buf_free(&alerts);
}

static void test_nan(void **state)
{
    (void)state;
    const tp_rule_options options[] = {
        {.rule = TP_RULE_ANOMALY_NAN, .mode = 0, .threshold = NAN, .min_samples = 0},
        {.rule = TP_RULE_ANOMALY_NAN, .mode = 0, .threshold = 100, .min_samples = 0}};
    tp_buf alerts = TP_BUF_INIT;
    tp_rules *rules = NULL;
    assert_int_equal(tp_rules_new(&rules, options, 1, norm_only, 1, registry), TP_OK);
    tp_record records[] = {one(0, 0, 1), one(1, 1, NAN), one(2, 2, -INFINITY), one(3, 3, 1e300),
                           one(4, 4, NAN)};
    assert_int_equal(check_step(rules, 0, records, 5, &alerts), 3);
    const tp_record *fired = (const void *)alerts.data;
    assert_int_equal(fired[0].key, 1);
    assert_int_equal(fired[0].order, 1);
    assert_int_equal(fired[0].kind, TP_RECORD_ALERT);
    assert_int_equal(fired[0].u.alert.op, TP_OP_NANS);
    assert_int_equal(fired[0].u.alert.more, 2);
    assert_int_equal(fired[1].key, 2);
    assert_true(fired[1].u.alert.value == -INFINITY);
    assert_int_equal(fired[1].u.alert.more, 0);
    records[1].state = TP_SLOT_RESERVED; /* not filled: no value to judge */
    assert_int_equal(check_step(rules, 0, records, 5, &alerts), 2);
    tp_rules_free(rules);

    assert_int_equal(tp_rules_new(&rules, options + 1, 1, norm_only, 1, registry), TP_OK);
    assert_int_equal(check_one(rules, 100, &alerts), 0);
    assert_int_equal(check_one(rules, -101, &alerts), 1);
    tp_rules_free(rules);
    tp_buf_free(&alerts);
}

/* Places are kept apart by key, micro step and call, also when their order changes. */
static void test_places(void **state)
{
    (void)state;
    const tp_rule_options options = {.rule = TP_RULE_ANOMALY_TURBULENCE,
                                     .mode = TP_TURBULENCE_RELATIVE,
                                     .threshold = 0.1,
                                     .min_samples = 1};
    tp_buf alerts = TP_BUF_INIT;
    tp_rules *rules = NULL;
    assert_int_equal(tp_rules_new(&rules, &options, 1, norm_only, 1, registry), TP_OK);
    tp_record records[300];
    for (uint32_t i = 0; i < 300; i++) {
        records[i] = one(i / 4, i, i + 1);
        records[i].micro_step = i % 2;
        records[i].call = i / 2 % 2;
    }
    assert_int_equal(check_step(rules, 0, records, 300, &alerts), 0);
    for (int i = 0; i < 150; i++) { /* backwards: other places, same values */
        const tp_record swapped = records[i];
        records[i] = records[299 - i];
        records[299 - i] = swapped;
    }
    assert_int_equal(check_step(rules, 0, records, 300, &alerts), 0);
    records[17].u.stats.sum_sq = 1e12;
    assert_int_equal(check_step(rules, 0, records, 300, &alerts), 1);
    tp_rules_free(rules);
    tp_buf_free(&alerts);
}

/* A loss that falls is no alarm; one that rises is, as the norm of a tensor would be. */
static void test_scalars(void **state)
{
    (void)state;
    const tp_rule_options options = {.rule = TP_RULE_ANOMALY_TURBULENCE,
                                     .mode = TP_TURBULENCE_FACTOR,
                                     .threshold = 10,
                                     .min_samples = 3};
    const tp_key key = {.name = "loss", .slot = -1, .quantity = TP_SCALAR};
    tp_buf alerts = TP_BUF_INIT;
    tp_rules *rules = NULL;
    tp_registry *names = NULL;
    uint32_t id = 1;
    assert_int_equal(tp_registry_new(&names), TP_OK);
    assert_int_equal(tp_registry_add_key(names, &key, &id), TP_OK);
    assert_int_equal(id, 0);
    for (int scalar = 0; scalar < 2; scalar++) {
        assert_int_equal(tp_rules_new(&rules, &options, 1, norm_only, 1, scalar ? names : registry),
                         TP_OK);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(check_one(rules, 4, &alerts), 0);
        }
        assert_int_equal(check_one(rules, 0.125, &alerts), scalar ? 0 : 1);
        assert_int_equal(check_one(rules, 50, &alerts), 1);
        tp_rules_free(rules);
    }
    tp_registry_free(names);
    tp_buf_free(&alerts);
}

static void test_no_memory(void **state)
{
    (void)state;
    const tp_rule_options options = {
        .rule = TP_RULE_ANOMALY_NAN, .mode = 0, .threshold = NAN, .min_samples = 0};
    const tp_record record = one(0, 0, NAN);
    const tp_batch batch = {.records = &record, .count = 1};
    int succeeded = 0;
    for (unsigned long n = 1; n < 20; n++) {
        tp_rules *rules = NULL;
        tp_buf alerts = TP_BUF_INIT;
        tp_mem_fail_after(n);
        tp_status status = tp_rules_new(&rules, &options, 1, norm_only, 1, registry);
        if (status == TP_OK) {
            status = tp_rules_check(rules, &batch, &alerts);
        }
        tp_mem_fail_after(0);
        assert_true(status == TP_OK || status == TP_ERR_NOMEM);
        succeeded += status == TP_OK;
        tp_rules_free(rules);
        tp_buf_free(&alerts);
    }
    assert_in_range(succeeded, 1, 18);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_relative), cmocka_unit_test(test_factor),
        cmocka_unit_test(test_nan),      cmocka_unit_test(test_places),
        cmocka_unit_test(test_scalars),  cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, make_registry, free_registry);
}
