/* The rules that remember more than a mean: against medians and counts worked out the slow way. */
#include "rules_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rules/window.h"

#define WINDOW 8

static uint32_t keys[TP_SCALAR + 1]; /* one of each quantity */

static int make_keys(void **state)
{
    assert_int_equal(make_registry(state), 0);
    for (uint32_t quantity = 1; quantity <= TP_SCALAR; quantity++) {
        const tp_key key = {.name = "layers.0", .slot = -1, .quantity = quantity};
        assert_int_equal(tp_registry_add_key(registry, &key, &keys[quantity]), TP_OK);
    }
    return 0;
}

/* Gives the rules one step with one tensor; the alert, NULL when nothing fires. */
static const tp_alert *step(tp_rules *rules, uint32_t quantity, const double *x, int64_t n)
{
    static tp_buf alerts;
    const tp_tensor tensor = {x, &n, NULL, TP_F64, 1};
    tp_record record = {.state = TP_SLOT_DONE, .kind = TP_RECORD_STATS, .key = keys[quantity]};
    assert_int_equal(tp_stats_compute(&tensor, 1e-8, &record.u.stats), TP_OK);
    assert_true(check_step(rules, 0, &record, 1, &alerts) <= 1);
    return alerts.size > 0 ? &((const tp_record *)(const void *)alerts.data)->u.alert : NULL;
}

static tp_rules *make(tp_rule_options options)
{
    static const uint32_t ops[] = {TP_OP_NORM};
    tp_rules *rules = NULL;
    assert_int_equal(tp_rules_new(&rules, &options, 1, ops, 1, registry), TP_OK);
    return rules;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(const double *values, uint32_t count)
{
    double sorted[64];
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare);
    return sorted[(count - 1) / 2];
}

static double deviation_of(const double *values, uint32_t count)
{
    double distances[64];
    double median = median_of(values, count);
    for (uint32_t i = 0; i < count; i++) {
        distances[i] = fabs(values[i] - median);
    }
    return median_of(distances, count);
}

/* 15 sizes, with many equal values among them. */
static void test_window(void **state)
{
    (void)state;
    srand(7);
    for (uint32_t size = 1; size <= 15; size++) {
        double memory[64] = {0};
        double seen[1000];
        tp_window *window = (void *)memory;
        assert_true(tp_window_memory(size) <= sizeof memory);
        for (uint32_t i = 0; i < 1000; i++) {
            seen[i] = rand() % (i < 500 ? 10 : 1000000) - 5;
            tp_window_add(window, size, seen[i]);
            uint32_t count = i + 1 < size ? i + 1 : size;
            assert_int_equal(window->count, count);
            assert_true(tp_window_median(window, size) == median_of(seen + i + 1 - count, count));
            assert_true(tp_window_deviation(window, size) ==
                        deviation_of(seen + i + 1 - count, count));
        }
    }
}

/* A norm that wanders, with spikes: what fires, and with which median, as the header says. */
static void test_exploding(void **state)
{
    (void)state;
    tp_rules *rules = make((tp_rule_options){
        .rule = TP_RULE_EXPLODING, .threshold = 5, .min_samples = 4, .window = WINDOW});
    double kept[4000];
    uint32_t count = 0;
    uint32_t spikes = 0;
    srand(3);
    for (uint32_t i = 0; i < 3000; i++) {
        double x = 10 + 0.001 * i + (rand() % 1000) / 1000.0;
        if (i % 7 == 3) {
            x *= 1 + rand() % 3;
        }
        uint32_t held = count < WINDOW ? count : WINDOW;
        const double *last = kept + count - held;
        bool fires = false;
        if (held >= 4) {
            double median = median_of(last, held);
            double deviation = 1.4826 * deviation_of(last, held);
            fires = x > median + 5 * fmax(deviation, 0.05 * median);
        }
        const tp_alert *alert = step(rules, TP_GRAD_REDUCED, &x, 1);
        assert_int_equal(alert != NULL, fires);
        if (alert != NULL) {
            assert_true(alert->baseline == median_of(last, held) && alert->value == x);
            assert_int_equal(alert->samples, held);
            spikes++;
        } else {
            kept[count++] = x;
        }
    }
    assert_in_range(spikes, 50, 1000);
    tp_rules_free(rules);
}

/* A level that stays is the new normal after as many steps as the window holds. */
static void test_new_level(void **state)
{
    (void)state;
    tp_rules *rules = make((tp_rule_options){
        .rule = TP_RULE_EXPLODING, .threshold = 5, .min_samples = 4, .window = WINDOW});
    uint32_t alerts = 0;
    const double nan = NAN;
    for (uint32_t i = 0; i < 100; i++) {
        double x = i < 50 ? 1 : 100;
        alerts += step(rules, TP_ACTIVATION, &x, 1) != NULL;
        assert_null(step(rules, TP_ACTIVATION, &nan, 1)); /* neither fires nor enters */
    }
    assert_int_equal(alerts, WINDOW);
    tp_rules_free(rules);
}

static void test_vanishing(void **state)
{
    (void)state;
    tp_rules *rules = make((tp_rule_options){
        .rule = TP_RULE_VANISHING, .threshold = 100, .min_samples = 4, .window = WINDOW});
    for (uint32_t i = 0; i < 20; i++) {
        double x = 4;
        assert_null(step(rules, TP_ACTIVATION, &x, 1));
    }
    double x = 0.041;
    assert_null(step(rules, TP_ACTIVATION, &x, 1));
    x = 0.039;
    assert_non_null(step(rules, TP_ACTIVATION, &x, 1));
    tp_rules_free(rules);
}

/* A loss may be negative, and may fall as it likes; other series are not its affair. */
static void test_loss_spike(void **state)
{
    (void)state;
    tp_rules *rules = make((tp_rule_options){
        .rule = TP_RULE_LOSS_SPIKE, .threshold = 10, .min_samples = 4, .window = WINDOW});
    for (int i = 0; i < 40; i++) {
        double x = 4 - 0.3 * i;
        assert_null(step(rules, TP_SCALAR, &x, 1));
    }
    double x = 12;
    assert_null(step(rules, TP_ACTIVATION, &x, 1));
    const tp_alert *alert = step(rules, TP_SCALAR, &x, 1);
    assert_non_null(alert);
    assert_int_equal(alert->op, TP_OP_ID);
    assert_true(alert->value == 12);
    tp_rules_free(rules);
}

/* By factor: a spike fires once and leaves the mean alone; a level that stays is normal after as many
 * steps as the rule needs to speak. Of a second moment the factor is that of what it is made of. */
static void test_factor(void **state)
{
    (void)state;
    const tp_rule_options options = {.rule = TP_RULE_ANOMALY_TURBULENCE,
                                     .mode = TP_TURBULENCE_FACTOR,
                                     .threshold = 10,
                                     .min_samples = 5};
    tp_rules *rules = make(options);
    for (int i = 0; i < 100; i++) {
        double x = i == 30 ? 1e6 : i < 60 ? 1 : 50;
        bool fires = i == 30 || (i >= 60 && i < 65);
        assert_int_equal(step(rules, TP_GRAD_REDUCED, &x, 1) != NULL, fires);
        x = i < 60 ? 1 : 99;
        assert_null(step(rules, TP_EXP_AVG_SQ, &x, 1));
    }
    tp_rules_free(rules);
    rules = make(options);
    for (int i = 0; i < 21; i++) {
        double x = i < 20 ? 1 : 101;
        assert_int_equal(step(rules, TP_EXP_AVG_SQ, &x, 1) != NULL, i == 20);
    }
    tp_rules_free(rules);
}

static void test_all_zero(void **state)
{
    (void)state;
    static const double zeros[4] = {0};
    static const double alive[4] = {0, 0, 0, 1};
    tp_rules *rules =
        make((tp_rule_options){.rule = TP_RULE_ALL_ZERO, .threshold = 1, .min_samples = 3});
    for (int round = 0; round < 3; round++) {
        for (int i = 1; i < 10; i++) { /* once, in the third step */
            assert_int_equal(step(rules, TP_ACTIVATION, zeros, 4) != NULL, i == 3);
            assert_null(step(rules, TP_EXP_AVG, zeros, 4));
            assert_null(step(rules, TP_ACTIVATION_GRAD, zeros, 0));
        }
        assert_null(step(rules, TP_ACTIVATION, alive, 4));
    }
    tp_rules_free(rules);
}

static void test_unchanged(void **state)
{
    (void)state;
    double x[4] = {1, 2, 3, 4};
    tp_rules *rules = make((tp_rule_options){.rule = TP_RULE_UNCHANGED_TENSOR, .min_samples = 3});
    for (int round = 0; round < 4; round++) {
        x[round] += 0x1p-40;
        for (int i = 0; i < 10; i++) { /* the first one is a change; before any it was frozen */
            assert_int_equal(step(rules, TP_PARAM_UPDATED, x, 4) != NULL, i == 3 && round > 0);
            assert_null(step(rules, TP_PARAM_ORIGIN, x, 4));
        }
    }
    tp_rules_free(rules);
}

static bool is_gradient(const void *context, const tp_key *key)
{
    return strcmp(key->name, "layers.0") == 0 && key->quantity == *(const uint32_t *)context;
}

static void test_scope(void **state)
{
    (void)state;
    const uint32_t wanted = TP_GRAD_REDUCED;
    const double nan = NAN;
    tp_rules *rules = make((tp_rule_options){
        .rule = TP_RULE_ANOMALY_NAN, .threshold = NAN, .applies = is_gradient, .context = &wanted});
    assert_null(step(rules, TP_ACTIVATION, &nan, 1));
    assert_non_null(step(rules, TP_GRAD_REDUCED, &nan, 1));
    assert_null(step(rules, TP_ACTIVATION, &nan, 1));
    tp_rules_free(rules);

    /* An op that is not configured, for one rule alone. */
    static const uint32_t ops[] = {TP_OP_NORM};
    static const double x[] = {-5, 3};
    const tp_rule_options both[] = {
        {.rule = TP_RULE_ANOMALY_NAN, .threshold = 4, .ops = 1u << TP_OP_MIN},
        {.rule = TP_RULE_ANOMALY_NAN, .threshold = 5.5},
    };
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tp_rules_new(&rules, &both[i], 1, ops, 1, registry), TP_OK);
        const tp_alert *alert = step(rules, TP_ACTIVATION, x, 2);
        assert_non_null(alert);
        assert_int_equal(alert->op, i == 0 ? TP_OP_MIN : TP_OP_NORM);
        tp_rules_free(rules);
    }
}

/* Rules say which of them know too little yet, and until when; what they have learned counts. */
static void test_warming_up(void **state)
{
    (void)state;
    static const uint32_t ops[] = {TP_OP_NORM};
    static const double x[] = {1, 2};
    const tp_rule_options options[] = {
        {.rule = TP_RULE_ANOMALY_NAN, .threshold = NAN},
        {.rule = TP_RULE_LOSS_SPIKE, .threshold = 6, .min_samples = 3, .window = WINDOW},
        {.rule = TP_RULE_EXPLODING, .threshold = 6, .min_samples = 5, .window = WINDOW},
        {.rule = TP_RULE_EXPLODING, .threshold = 9, .min_samples = 5, .window = WINDOW},
        {.rule = TP_RULE_VANISHING, .threshold = 6, .min_samples = 3, .window = WINDOW},
        {.rule = TP_RULE_UNCHANGED_TENSOR, .min_samples = 5},
        {.rule = TP_RULE_DEAD_UNITS, .threshold = 1, .min_samples = 5},
    };
    static const char *const right[] = {
        "LossSpike, Vanishing before step 103; Exploding before step 105; DeadUnits before step "
        "116",
        "LossSpike, Vanishing before step 105; Exploding before step 109; DeadUnits before step "
        "131",
        "LossSpike, Vanishing before step 103; Exploding before step 107; DeadUnits before step "
        "129",
        "Exploding before step 105; DeadUnits before step 127"};
    tp_rules *rules = NULL;
    assert_int_equal(tp_rules_new(&rules, options, 7, ops, 1, registry), TP_OK);
    for (uint64_t steps = 0; steps < 18; steps++) {
        tp_buf text = TP_BUF_INIT;
        tp_rules_put_warming(rules, 100 + (steps > 0), steps > 0 ? 2 : 1, &text);
        tp_buf_put(&text, "", 1);
        if (steps < 4) {
            assert_string_equal((const char *)text.data, right[steps]);
        } else if (steps >= 16) {
            assert_string_equal((const char *)text.data, "");
        }
        tp_buf_free(&text);
        step(rules, TP_ACTIVATION, x, 2);
    }
    tp_rules_free(rules);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_window),     cmocka_unit_test(test_exploding),
        cmocka_unit_test(test_new_level),  cmocka_unit_test(test_vanishing),
        cmocka_unit_test(test_loss_spike), cmocka_unit_test(test_factor),
        cmocka_unit_test(test_all_zero),   cmocka_unit_test(test_unchanged),
        cmocka_unit_test(test_scope),      cmocka_unit_test(test_warming_up),
    };
    return cmocka_run_group_tests(tests, make_keys, free_registry);
}
