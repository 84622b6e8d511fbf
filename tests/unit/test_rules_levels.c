/* The rules about shares, ratios and whole steps: on series whose right answers are plain. */
#include "rules_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N 1000

static double tensor[N];

static tp_record record_of(const char *name, uint32_t quantity, uint32_t role, const double *x,
                           int64_t n)
{
    const tp_key key = {.name = name, .slot = -1, .quantity = quantity, .role = role};
    const tp_tensor view = {x, &n, NULL, TP_F64, 1};
    tp_record record = {.state = TP_SLOT_DONE, .kind = TP_RECORD_STATS};
    assert_int_equal(tp_registry_add_key(registry, &key, &record.key), TP_OK);
    const int64_t dims[] = {n / 10, 10};
    assert_int_equal(tp_registry_add_shape(registry, n > 10 ? 2 : 1, dims, &record.shape), TP_OK);
    assert_int_equal(tp_stats_compute(&view, 1e-8, &record.u.stats), TP_OK);
    return record;
}

/* One step; the alerts stay until the next one. NULL: nothing fires. */
static const tp_record *check_at(tp_rules *rules, uint64_t number, const tp_record *records,
                                 uint64_t count)
{
    static tp_buf alerts;
    return check_step(rules, number, records, count, &alerts) > 0 ? (const void *)alerts.data
                                                                  : NULL;
}

static const tp_record *check(tp_rules *rules, const tp_record *records, uint64_t count)
{
    return check_at(rules, 0, records, count);
}

static const tp_alert *step(tp_rules *rules, uint32_t quantity, uint32_t role)
{
    const tp_record record = record_of("layer", quantity, role, tensor, N);
    const tp_record *alert = check(rules, &record, 1);
    return alert != NULL ? &alert->u.alert : NULL;
}

static tp_rules *make(tp_rule_options options)
{
    static const uint32_t ops[] = {TP_OP_NORM, TP_OP_MEAN, TP_OP_MIN};
    tp_rules *rules = NULL;
    assert_int_equal(tp_rules_new(&rules, &options, 1, ops, 3, registry), TP_OK);
    return rules;
}

/* So many of the thousand are `part`, the others `rest` and -rest in turn. */
static void fill(int count, double part, double rest)
{
    for (int i = 0; i < N; i++) {
        tensor[i] = i < count ? part : i % 2 == 0 ? rest : -rest;
    }
}

/* 96 % zeros for 5 steps, which were 50 % before: once. What was always so is no finding. */
static void test_dead_units(void **state)
{
    (void)state;
    const tp_rule_options options = {
        .rule = TP_RULE_DEAD_UNITS, .threshold = 0.95, .min_samples = 5};
    tp_rules *rules = make(options);
    for (int i = 0; i < 100; i++) {
        const bool dead = i >= 50 && i < 80;
        fill(dead ? 960 : 500, 0, 1);
        const tp_alert *alert = step(rules, TP_ACTIVATION, TP_ROLE_OUTPUT);
        assert_int_equal(alert != NULL, i == 54);
        if (alert != NULL) {
            assert_true(alert->value == 0.96 && alert->samples == 5);
        }
        assert_null(step(rules, TP_ACTIVATION, TP_ROLE_INPUT));
    }
    tp_rules_free(rules);
    rules = make(options);
    for (int i = 0; i < 50; i++) {
        fill(960, 0, 1);
        assert_null(step(rules, TP_ACTIVATION, TP_ROLE_OUTPUT));
    }
    tp_rules_free(rules);
}

/* tanh at its ends, a sigmoid at its ends; what leaves [-1, 1] has no ends. */
static void test_saturated(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        tp_rules *rules =
            make((tp_rule_options){.rule = TP_RULE_SATURATED, .threshold = 0.95, .min_samples = 5});
        for (int i = 0; i < 40; i++) {
            const double end = i < 20 ? 0.5 : 0.99;
            fill(400, end, end);
            for (int k = 0; kind == 1 && k < N; k++) {
                tensor[k] = (tensor[k] + 1) / 2;
            }
            tensor[0] = kind == 2 ? 1.5 : tensor[0];
            const tp_alert *alert = step(rules, TP_ACTIVATION, TP_ROLE_OUTPUT);
            assert_int_equal(alert != NULL, kind < 2 && i == 24);
            if (alert != NULL) {
                assert_true(fabs(alert->value - 0.99 * 0.99) < 1e-9);
            }
        }
        tp_rules_free(rules);
    }
}

static void test_shares_of_the_range(void **state)
{
    (void)state;
    tp_rules *rules = make(
        (tp_rule_options){.rule = TP_RULE_UNDERFLOW_SHARE, .threshold = 0.1, .min_samples = 5});
    for (int i = 0; i < 40; i++) {
        fill(i < 20 ? 90 : 110, 1e-310, 1);
        const tp_alert *alert = step(rules, TP_GRAD_REDUCED, TP_ROLE_NONE);
        assert_int_equal(alert != NULL, i == 24);
        assert_true(alert == NULL || alert->value == 0.11);
    }
    tp_rules_free(rules);
    static const double thresholds[] = {1e-6, 0.0035};
    for (int i = 0; i < 80; i++) { /* not counted: one of a thousand, which is enough or not */
        rules = i % 40 == 0 ? make((tp_rule_options){.rule = TP_RULE_OVERFLOW_SHARE,
                                                     .threshold = thresholds[i / 40],
                                                     .min_samples = 1})
                            : rules;
        fill(1, i % 40 < 20 ? 32767 : -32768, 1);
        tp_record record = record_of("half", TP_ACTIVATION, TP_ROLE_OUTPUT, tensor, N);
        record.dtype = TP_F16;
        const tp_record *alert = check(rules, &record, 1);
        assert_int_equal(alert != NULL, i == 20);
        assert_true(alert == NULL || alert->u.alert.value == 1e-3);
        record = record_of("single", TP_ACTIVATION, TP_ROLE_OUTPUT, tensor, N);
        record.dtype = TP_F32;
        assert_null(check(rules, &record, 1));
        if (i % 40 == 39) {
            tp_rules_free(rules);
        }
    }
}

/* Of `small` elements with the exponent -15, and `large` ones with 15, of f32: what would they be
 * in float16? */
static const tp_record *check_counted(tp_rules *rules, uint64_t small, uint64_t large)
{
    uint64_t arena[3 + 31] = {0};
    const double ends[] = {-15, 16};
    memcpy(arena, ends, sizeof ends);
    arena[2] = 31; /* bins */
    arena[3] = small;
    arena[3 + 15] = N - small - large; /* of 1 */
    arena[3 + 30] = large;
    fill(0, 0, 1);
    tensor[0] = large > 0 ? 40000 : 1;
    tp_record record = record_of("counted", TP_ACTIVATION, TP_ROLE_OUTPUT, tensor, N);
    record.dtype = TP_F32;
    record.flags = TP_RECORD_EXPONENTS;
    static tp_buf alerts;
    const tp_batch batch = {.records = &record,
                            .count = 1,
                            .arena = (const uint8_t *)arena,
                            .arena_size = sizeof arena};
    tp_buf_clear(&alerts);
    assert_int_equal(tp_rules_check(rules, &batch, &alerts), TP_OK);
    return alerts.size > 0 ? (const void *)alerts.data : NULL;
}

static void test_shares_of_another_range(void **state)
{
    (void)state;
    static const uint32_t dtypes[] = {0, TP_F16, TP_BF16, TP_F8_E4M3FN};
    for (size_t d = 0; d < 4; d++) {
        tp_rules *under = make((tp_rule_options){.rule = TP_RULE_UNDERFLOW_SHARE,
                                                 .threshold = 0.1,
                                                 .min_samples = 5,
                                                 .dtype = dtypes[d]});
        tp_rules *over = make((tp_rule_options){.rule = TP_RULE_OVERFLOW_SHARE,
                                                .threshold = 0.003,
                                                .min_samples = 1,
                                                .dtype = dtypes[d]});
        for (int i = 0; i < 40; i++) {
            const tp_record *alert = check_counted(under, i < 20 ? 99 : 100, 0);
            /* below 2^-14, and below 2^-6 as well; not so below 2^-126 */
            assert_int_equal(alert != NULL, i == 24 && dtypes[d] != 0 && dtypes[d] != TP_BF16);
            if (alert != NULL) {
                char text[TP_ALERT_TEXT];
                assert_true(alert->u.alert.value == 0.1 && alert->u.alert.dtype == dtypes[d]);
                tp_alert_describe(&alert->u.alert, text, sizeof text);
                assert_string_equal(text, dtypes[d] == TP_F16
                                              ? "10 % of its values have been below the normal "
                                                "numbers of float16 for 5 steps"
                                              : "10 % of its values have been below the normal "
                                                "numbers of float8_e4m3fn for 5 steps");
            }
            alert = check_counted(over, 0, i < 20 ? 2 : 3);
            assert_int_equal(alert != NULL, i == 20 && dtypes[d] != 0 && dtypes[d] != TP_BF16);
            assert_true(alert == NULL || alert->u.alert.value == 0.003);
        }
        /* without exponents another dtype's underflow isn't known */
        assert_null(step(under, TP_ACTIVATION, TP_ROLE_OUTPUT));
        tp_rules_free(under);
        tp_rules_free(over);
    }
}

static bool is_second_block(const void *context, const tp_key *key)
{
    (void)context;
    return strcmp(key->name, "h.1.weight") == 0;
}

/* Numbers of the check over replicas are for this rule and no other; a target is a parameter. */
static void test_replicas(void **state)
{
    (void)state;
    static const char *const names[] = {"replica_check.different",
                                        "replica_check.differs.h.1.weight",
                                        "replica_check.differs.h.0.weight", "loss"};
    for (int with = 0; with < 3; with++) {
        tp_rules *rules =
            make((tp_rule_options){.rule = with == 0 ? TP_RULE_LOSS_SPIKE : TP_RULE_REPLICA_DRIFT,
                                   .threshold = 6,
                                   .min_samples = 16,
                                   .window = 32,
                                   .applies = with == 2 ? is_second_block : NULL});
        for (int i = 0; i < 40; i++) {
            const double x = i < 30 ? 0 : 3;
            for (int k = 0; k < 4; k++) {
                const tp_record record = record_of(names[k], TP_SCALAR, TP_ROLE_NONE, &x, 1);
                const tp_record *alert = check(rules, &record, 1);
                const bool loss = with == 0 && k == 3;
                const bool drift = (with == 1 && (k == 1 || k == 2)) || (with == 2 && k == 1);
                assert_int_equal(alert != NULL, i >= 30 && (loss || drift));
                assert_true(alert == NULL || alert->u.alert.value == 3);
            }
        }
        tp_rules_free(rules);
    }
}

static void test_momentum(void **state)
{
    (void)state;
    tp_rules *rules = make((tp_rule_options){
        .rule = TP_RULE_MOMENTUM_AGAINST_GRADIENT, .threshold = 0.2, .min_samples = 5});
    for (int i = 0; i < 40; i++) {
        const double share = i % 10 == 9 || i < 20 ? 0.5 : 0.1;
        const tp_record record = record_of("w", TP_MG_DIRECTION, TP_ROLE_NONE, &share, 1);
        assert_int_equal(check(rules, &record, 1) != NULL, i == 24 || i == 34);
    }
    tp_rules_free(rules);
}

/* A norm that grows by 0.1 % a step, then by 30 %, and by 5 %, which is less than the threshold. */
static void test_update_ratio(void **state)
{
    (void)state;
    tp_rules *rules = make((tp_rule_options){
        .rule = TP_RULE_WEIGHT_UPDATE_RATIO, .threshold = 0.1, .min_samples = 16, .window = 32});
    double x = 1;
    for (int i = 0; i < 100; i++) {
        x *= i == 50 ? 1.3 : i == 60 ? 1.05 : i == 70 ? 0.5 : i == 10 ? 2 : 1.001;
        fill(0, 0, x);
        assert_null(step(rules, TP_PARAM_ORIGIN, TP_ROLE_NONE));
        const tp_alert *alert = step(rules, TP_PARAM_UPDATED, TP_ROLE_NONE);
        assert_int_equal(alert != NULL, i == 50 || i == 70);
        if (alert != NULL) {
            assert_true(fabs(alert->value - (i == 50 ? 0.3 : 0.5)) < 1e-9);
            assert_true(fabs(alert->baseline - 0.001) < 1e-9);
        }
    }
    tp_rules_free(rules);
    rules = make((tp_rule_options){
        .rule = TP_RULE_WEIGHT_UPDATE_RATIO, .threshold = 0.1, .min_samples = 16, .window = 32});
    for (int i = 0; i < 60; i++) { /* a bias may do what it likes */
        fill(0, 0, i == 50 ? 3 : 1 + 0.001 * i);
        const tp_record bias = record_of("bias", TP_PARAM_UPDATED, TP_ROLE_NONE, tensor, 10);
        assert_null(check(rules, &bias, 1));
    }
    tp_rules_free(rules);
}

/* Behind a gap a weight has taken many steps at once; where every tenth step is recorded, each has
 * taken ten. */
static void test_update_ratio_behind_a_gap(void **state)
{
    (void)state;
    for (uint64_t stride = 1; stride <= 10; stride += 9) {
        tp_rules *rules = make((tp_rule_options){.rule = TP_RULE_WEIGHT_UPDATE_RATIO,
                                                 .threshold = 0.1,
                                                 .min_samples = 16,
                                                 .window = 32});
        for (uint64_t i = 0; i < 100; i++) {
            if (i >= 40 && i < 60) {
                continue;
            }
            fill(0, 0, i < 40 ? 1 : i < 80 ? 1.5 : 2);
            const tp_record weight = record_of("w", TP_PARAM_UPDATED, TP_ROLE_NONE, tensor, N);
            assert_int_equal(check_at(rules, 5 + i * stride, &weight, 1) != NULL, i == 80);
        }
        tp_rules_free(rules);
    }
}

/* The norm of what becomes constant stays what it was, its deviation doesn't. */
static void test_variance(void **state)
{
    (void)state;
    tp_rules *rules = make((tp_rule_options){
        .rule = TP_RULE_VARIANCE_BOUNDS, .threshold = 100, .min_samples = 16, .window = 32});
    for (int i = 0; i < 60; i++) {
        fill(500, 10, 10);
        for (int k = 0; k < N; k++) {
            const double sign = k % 2 == 0 ? 1 : -1;
            tensor[k] = 10 + sign * (i == 30 ? 0.009 : i == 40 ? 101 : i == 50 ? 30 : 1);
        }
        const tp_alert *alert = step(rules, TP_ACTIVATION, TP_ROLE_OUTPUT);
        assert_int_equal(alert != NULL, i == 30 || i == 40);
        if (alert != NULL) {
            assert_true(fabs(alert->value - (i == 30 ? 0.009 : 101)) < 1e-6);
        }
    }
    tp_rules_free(rules);
}

/* The norm over all gradients, and the one that has grown most. */
static void test_gradient_norm(void **state)
{
    (void)state;
    tp_rules *rules = make((tp_rule_options){
        .rule = TP_RULE_GRAD_NORM_SPIKE, .threshold = 20, .min_samples = 16, .window = 32});
    for (int i = 0; i < 40; i++) {
        const double x[] = {30, i == 20 ? 60 : 3, 4};
        tp_record records[3];
        static const char *const names[] = {"a", "b", "c"};
        for (int k = 0; k < 3; k++) {
            records[k] = record_of(names[k], TP_GRAD_REDUCED, TP_ROLE_NONE, &x[k], 1);
        }
        /* √(900 + 9 + 16) = 30.41, s is a twentieth of it: the bound is 60.8 */
        const tp_record *alert = check(rules, records, 3);
        assert_int_equal(alert != NULL, i == 20);
        if (alert != NULL) {
            assert_int_equal(alert->key, records[1].key);
            assert_true(fabs(alert->u.alert.value - sqrt(900 + 3600 + 16)) < 1e-9);
            assert_true(fabs(alert->u.alert.baseline - sqrt(925)) < 1e-9);
        }
    }
    tp_rules_free(rules);
}

/* msprobe's formula, worked out beside it: for norm and mean, upwards, and a NaN ends it. */
static void test_compat(void **state)
{
    (void)state;
    tp_rules *rules = make((tp_rule_options){
        .rule = TP_RULE_ANOMALY_TURBULENCE, .mode = TP_TURBULENCE_COMPAT, .threshold = 0.5});
    double mean = 0;
    int alerts = 0;
    srand(5);
    for (int i = 0; i < 500; i++) {
        const double x = (rand() % 2 == 0 ? 1 : -1) * (1 + rand() % 100 / 20.0);
        const tp_record record = record_of("compat", TP_ACTIVATION, TP_ROLE_OUTPUT, &x, 1);
        const double before = i == 0 ? fabs(x) : mean;
        const tp_record *alert = check(rules, &record, 1);
        assert_int_equal(alert != NULL, fabs(x) > before * 1.5);
        if (alert != NULL) {
            assert_true(alert->u.alert.baseline == before && alert->u.alert.op == TP_OP_NORM);
            alerts++;
        }
        mean = 0.99 * before + (1 - 0.99) * fabs(x);
    }
    assert_true(alerts > 20);
    const double nan = NAN;
    const double huge = 1e9;
    const tp_record broken = record_of("compat", TP_ACTIVATION, TP_ROLE_OUTPUT, &nan, 1);
    const tp_record loud = record_of("compat", TP_ACTIVATION, TP_ROLE_OUTPUT, &huge, 1);
    assert_non_null(check(rules, &loud, 1));
    assert_null(check(rules, &broken, 1));
    assert_null(check(rules, &loud, 1));
    tp_rules_free(rules);
}

/* Several rules of different quantities keep what they remember apart. */
static void test_together(void **state)
{
    (void)state;
    static const uint32_t ops[] = {TP_OP_NORM};
    const tp_rule_options options[] = {
        {.rule = TP_RULE_GRAD_NORM_SPIKE, .threshold = 20, .min_samples = 16, .window = 32},
        {.rule = TP_RULE_EXPLODING, .threshold = 20, .min_samples = 16, .window = 8},
        {.rule = TP_RULE_UNCHANGED_TENSOR, .min_samples = 3},
        {.rule = TP_RULE_ALL_ZERO, .threshold = 1, .min_samples = 4},
    };
    tp_rules *rules = NULL;
    assert_int_equal(tp_rules_new(&rules, options, 4, ops, 1, registry), TP_OK);
    for (int i = 0; i < 30; i++) {
        const double gradient = i < 20 ? 1 + i % 3 : 0;
        const double weight = i < 10 ? i : 10;
        const tp_record records[] = {
            record_of("w", TP_GRAD_REDUCED, TP_ROLE_NONE, &gradient, 1),
            record_of("w", TP_PARAM_UPDATED, TP_ROLE_NONE, &weight, 1),
        };
        const tp_record *alert = check(rules, records, 2);
        assert_int_equal(alert != NULL, i == 13 || i == 23);
        assert_true(alert == NULL ||
                    alert->u.alert.rule == (i == 13 ? TP_RULE_UNCHANGED_TENSOR : TP_RULE_ALL_ZERO));
    }
    tp_rules_free(rules);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dead_units),
        cmocka_unit_test(test_saturated),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_momentum),
        cmocka_unit_test(test_shares_of_the_range),
        cmocka_unit_test(test_shares_of_another_range),
        cmocka_unit_test(test_update_ratio),
        cmocka_unit_test(test_update_ratio_behind_a_gap),
        cmocka_unit_test(test_variance),
        cmocka_unit_test(test_gradient_norm),
        cmocka_unit_test(test_compat),
        cmocka_unit_test(test_together),
    };
    return cmocka_run_group_tests(tests, make_registry, free_registry);
}
