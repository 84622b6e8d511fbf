/* Which groups of quantities are left out, and how often, so that watching takes no more than it
 * may: simulated runs, whose costs are known. */
#include "check.h"

#include <stdlib.h>

#include "monitor/budget.h"

#define ALL ((1u << TP_GROUP_COUNT) - 1)
#define BIT(group) (1u << TP_GROUP_##group)

/* What the groups really cost, and what the hooks cost that can't be left out. */
typedef struct run {
    double cost[TP_GROUP_COUNT];
    double base;
    double step_ns;
    double told; /* how far off the costs are that the frontend can tell */
} model;

typedef struct outcome {
    double own, total;                 /* over the steps behind the first 200 */
    uint64_t recorded[TP_GROUP_COUNT]; /* steps with each group, likewise */
    uint64_t changes;
    uint64_t steps;
} outcome;

static outcome simulate(tp_budget *budget, const model *run, uint64_t steps, unsigned seed)
{
    outcome result = {0};
    srand(seed);
    for (uint64_t number = 0; number < steps; number++) {
        const double noise = 0.9 + 0.2 * rand() / RAND_MAX;
        const bool counts = number >= 200;
        tp_budget_step step = {.left_out = tp_budget_left_out(budget, number)};
        step.own_ns = run->base;
        for (uint32_t group = 0; group < TP_GROUP_COUNT; group++) {
            if ((step.left_out >> group & 1) == 0) {
                step.own_ns += run->cost[group] * noise;
                step.cost[group] = run->cost[group] * (group % 2 == 0 ? run->told : 1 / run->told);
                result.recorded[group] += counts;
            }
        }
        step.step_ns = run->step_ns + step.own_ns;
        result.own += counts ? step.own_ns : 0;
        result.total += counts ? step.step_ns : 0;
        result.steps += counts;
        result.changes += tp_budget_take(budget, &step);
    }
    return result;
}

static void test_enough(void **state)
{
    (void)state;
    const tp_budget_config limit = {.share = 0.05};
    const model cheap = {{1e5, 1e5, 1e5, 1e5, 1e5, 1e5}, 1e5, 1e8, 1};
    tp_budget budget;
    tp_budget_init(&budget, &limit, ALL);
    const outcome result = simulate(&budget, &cheap, 2000, 1);
    assert_int_equal(result.changes, 0);
    for (uint32_t group = 0; group < TP_GROUP_COUNT; group++) {
        assert_int_equal(result.recorded[group], result.steps);
    }
}

/* 12 % without a budget. */
static const model costly = {{2e6, 4e6, 5e5, 1e6, 2e6, 2e6}, 2e5, 1e8, 1};

static void test_budgets_are_kept(void **state)
{
    static const double shares[] = {0.10, 0.05, 0.03, 0.02, 0.01};
    (void)state;
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        for (unsigned seed = 0; seed < 8; seed++) {
            const tp_budget_config limit = {.share = shares[i]};
            model one = costly;
            one.told = seed < 4 ? 1 : 2; /* what is told may be wrong by far */
            tp_budget budget;
            tp_budget_init(&budget, &limit, ALL);
            const outcome result = simulate(&budget, &one, 4200, seed);
            assert_true(result.own <= 1.05 * shares[i] * result.total);
            assert_true(result.own >= 0.2 * shares[i] * result.total); /* not for nothing */
            assert_int_equal(result.recorded[TP_GROUP_GRADIENTS], result.steps);
            assert_false(budget.is_too_small);
            assert_true(result.changes <= 12);
            for (uint32_t group = 0; group < TP_GROUP_COUNT; group++) {
                assert_true(result.recorded[group] >= result.steps / TP_BUDGET_MAX_INTERVAL);
            }
        }
    }
}

/* The costliest goes first; the gradients only when nothing else helps. */
static void test_order(void **state)
{
    (void)state;
    const tp_budget_config some = {.ns = 8e6};
    const tp_budget_config little = {.ns = 4e5};
    tp_budget budget;
    tp_budget_init(&budget, &some, ALL);
    simulate(&budget, &costly, 1000, 3);
    assert_true((budget.thinned & BIT(ACTIVATION_GRADS)) != 0);
    assert_true((budget.thinned & BIT(PARAMETERS)) == 0);
    tp_budget_init(&budget, &little, ALL);
    const outcome result = simulate(&budget, &costly, 4000, 3);
    assert_int_equal(budget.thinned, ALL);
    assert_true(result.own <= 1.05 * little.ns * (double)result.steps);
    /* What a check needs isn't among the groups. */
    tp_budget_init(&budget, &little, ALL & ~BIT(GRADIENTS));
    simulate(&budget, &costly, 4000, 3);
    assert_int_equal(budget.thinned, ALL & ~BIT(GRADIENTS));
    assert_true(budget.is_too_small);
}

/* When the steps become longer, or watching cheaper, everything is recorded again. */
static void test_room_again(void **state)
{
    (void)state;
    const tp_budget_config limit = {.share = 0.05};
    model later = costly;
    tp_budget budget;
    tp_budget_init(&budget, &limit, ALL);
    simulate(&budget, &costly, 500, 5);
    assert_true(budget.interval > 1);
    later.step_ns = 1e9;
    const outcome result = simulate(&budget, &later, 2000, 5);
    assert_int_equal(budget.interval, 1);
    assert_int_equal(budget.thinned, 0);
    assert_int_equal(result.recorded[TP_GROUP_MOMENTS], result.steps);
}

static void test_one_group(void **state)
{
    (void)state;
    const tp_budget_config limit = {.ns = 3e5};
    tp_budget budget;
    tp_budget_init(&budget, &limit, BIT(GRADIENTS));
    model one = costly;
    one.cost[TP_GROUP_ACTIVATIONS] = one.cost[TP_GROUP_ACTIVATION_GRADS] = 0;
    one.cost[TP_GROUP_PARAMETERS] = one.cost[TP_GROUP_MOMENTS] = one.cost[TP_GROUP_UPDATES] = 0;
    const outcome result = simulate(&budget, &one, 4000, 7);
    assert_int_equal(budget.thinned, BIT(GRADIENTS));
    assert_true(result.own <= 1.05 * limit.ns * (double)result.steps);
    /* Nothing may be left out: that is told once. */
    tp_budget_init(&budget, &limit, 0);
    assert_int_equal(simulate(&budget, &one, 1000, 7).changes, 1);
    assert_true(budget.is_too_small);
}

static void test_configurations(void **state)
{
    (void)state;
    tp_config config;
    tp_config_defaults(&config, true);
    const uint32_t groups = tp_budget_groups(&config);
    assert_int_equal(groups, ALL & ~BIT(UPDATES));
    for (uint32_t group = 0; group < TP_GROUP_COUNT; group++) {
        const tp_config lean = tp_budget_config_without(&config, 1u << group);
        assert_int_equal(tp_budget_groups(&lean), groups & ~(1u << group));
    }
    config.self_check = true;
    assert_int_equal(tp_budget_groups(&config), groups & ~BIT(GRADIENTS));
    config.forward_only = config.ur_distribution = true;
    assert_int_equal(tp_budget_groups(&config),
                     (groups | BIT(UPDATES)) & ~(BIT(GRADIENTS) | BIT(ACTIVATION_GRADS)));
    assert_int_equal(tp_budget_quantities(BIT(MOMENTS) | BIT(ACTIVATIONS)),
                     1u << TP_EXP_AVG | 1u << TP_EXP_AVG_SQ | 1u << TP_ACTIVATION);
    tp_config_free(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_enough),    cmocka_unit_test(test_budgets_are_kept),
        cmocka_unit_test(test_order),     cmocka_unit_test(test_room_again),
        cmocka_unit_test(test_one_group), cmocka_unit_test(test_configurations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
