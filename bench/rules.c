/* What each rule costs: values judged in a second on one core, over many series whose memory
 * doesn't fit into a cache, and over few whose does. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "rules/rules.h"

#define STEPS 40 /* the window is full */
#define ROUNDS 2
#define EXPONENTS 30 /* that occur in a tensor */

static const struct {
    const char *name;
    tp_rule_options options;
    uint32_t quantity;
} rules[] = {
    {"no rule", {.rule = UINT32_MAX}, TP_ACTIVATION},
    {"AnomalyNan", {.rule = TP_RULE_ANOMALY_NAN, .threshold = NAN}, TP_ACTIVATION},
    {"AnomalyTurbulence",
     {.rule = TP_RULE_ANOMALY_TURBULENCE, .threshold = 1, .min_samples = 1},
     TP_ACTIVATION},
    {"AnomalyTurbulence, factor",
     {.rule = TP_RULE_ANOMALY_TURBULENCE,
      .mode = TP_TURBULENCE_FACTOR,
      .threshold = 10,
      .min_samples = 20},
     TP_ACTIVATION},
    {"AnomalyTurbulence, compat",
     {.rule = TP_RULE_ANOMALY_TURBULENCE, .mode = TP_TURBULENCE_COMPAT, .threshold = 1},
     TP_ACTIVATION},
    {"Exploding",
     {.rule = TP_RULE_EXPLODING, .threshold = 20, .min_samples = 16, .window = 32},
     TP_ACTIVATION},
    {"Vanishing",
     {.rule = TP_RULE_VANISHING, .threshold = 1000, .min_samples = 16, .window = 32},
     TP_ACTIVATION},
    {"VarianceBounds",
     {.rule = TP_RULE_VARIANCE_BOUNDS, .threshold = 100, .min_samples = 16, .window = 32},
     TP_ACTIVATION},
    {"GradNormSpike",
     {.rule = TP_RULE_GRAD_NORM_SPIKE, .threshold = 30, .min_samples = 16, .window = 32},
     TP_GRAD_REDUCED},
    {"WeightUpdateRatio",
     {.rule = TP_RULE_WEIGHT_UPDATE_RATIO, .threshold = 1, .min_samples = 16, .window = 32},
     TP_PARAM_UPDATED},
    {"AllZero", {.rule = TP_RULE_ALL_ZERO, .threshold = 1, .min_samples = 5}, TP_ACTIVATION},
    {"DeadUnits", {.rule = TP_RULE_DEAD_UNITS, .threshold = 1, .min_samples = 5}, TP_ACTIVATION},
    {"Saturated", {.rule = TP_RULE_SATURATED, .threshold = 1, .min_samples = 5}, TP_ACTIVATION},
    {"UnderflowShare",
     {.rule = TP_RULE_UNDERFLOW_SHARE, .threshold = 1, .min_samples = 5},
     TP_ACTIVATION},
    {"OverflowShare",
     {.rule = TP_RULE_OVERFLOW_SHARE, .threshold = 2, .min_samples = 1},
     TP_ACTIVATION},
    {"UnderflowShare, float16",
     {.rule = TP_RULE_UNDERFLOW_SHARE, .threshold = 1, .min_samples = 5, .dtype = TP_F16},
     TP_ACTIVATION},
    {"OverflowShare, float16",
     {.rule = TP_RULE_OVERFLOW_SHARE, .threshold = 1, .min_samples = 1, .dtype = TP_F16},
     TP_ACTIVATION},
    {"ReplicaDrift", {.rule = TP_RULE_REPLICA_DRIFT, .threshold = NAN}, TP_SCALAR},
    {"UnchangedTensor", {.rule = TP_RULE_UNCHANGED_TENSOR, .min_samples = 5}, TP_PARAM_UPDATED},
};

/* Millions of values a second, the best of some rounds; 0: no memory. */
static double measure(size_t number, uint32_t series)
{
    static const uint32_t ops[] = {TP_OP_NORM};
    static uint64_t arena[3 + EXPONENTS]; /* of all records: the same */
    const tp_rule_options *options = &rules[number].options;
    const uint32_t quantity = rules[number].quantity;
    const char *prefix = quantity == TP_SCALAR ? "replica_check.differs." : "";
    const double from_to[] = {-20, EXPONENTS - 20};
    memcpy(arena, from_to, sizeof from_to);
    arena[2] = EXPONENTS;
    tp_registry *registry = NULL;
    tp_rules *judges = NULL;
    tp_buf alerts = TP_BUF_INIT;
    double best = 0;
    tp_record *records = tp_calloc(series, sizeof *records);
    if (records == NULL || tp_registry_new(&registry) != TP_OK ||
        tp_rules_new(&judges, options, 1, ops, 1, registry) != TP_OK) {
        return 0;
    }
    for (uint32_t i = 0; i < series; i++) {
        char name[64];
        snprintf(name, sizeof name, "%slayers.%u", prefix, i);
        const tp_key key = {.name = name, .slot = -1, .quantity = quantity, .role = TP_ROLE_OUTPUT};
        records[i] = (tp_record){.state = TP_SLOT_DONE, .kind = TP_RECORD_STATS, .dtype = TP_F32};
        records[i].flags = options->dtype != 0 ? TP_RECORD_EXPONENTS : 0;
        const int64_t dims[] = {1, 2};
        if (tp_registry_add_key(registry, &key, &records[i].key) != TP_OK ||
            tp_registry_add_shape(registry, 2, dims, &records[i].shape) != TP_OK) {
            return 0;
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int step = 0; step < STEPS; step++) {
            for (uint32_t i = 0; i < series; i++) {
                const double x = 1 + rand() % 1000 / 1e4;
                const double sum = quantity == TP_SCALAR ? -1 : 0.1; /* none differs */
                records[i].u.stats = (tp_stats){.count = 2,
                                                .min = -x,
                                                .max = x,
                                                .finite_min = -x,
                                                .finite_max = x,
                                                .abs_max = x,
                                                .sum = sum,
                                                .sum_abs = 2 * x,
                                                .sum_sq = 2 * x * x,
                                                .m2 = 2 * x * x};
            }
            const tp_batch batch = {.step = (uint64_t)step,
                                    .count = series,
                                    .records = records,
                                    .arena = (const uint8_t *)arena,
                                    .arena_size = sizeof arena};
            const uint64_t begin = tp_clock_thread_cpu();
            if (tp_rules_check(judges, &batch, &alerts) != TP_OK) {
                return 0;
            }
            const double ns = (double)(tp_clock_thread_cpu() - begin);
            best = series / ns * 1e3 > best ? series / ns * 1e3 : best;
            tp_buf_clear(&alerts);
        }
    }
    tp_rules_free(judges);
    tp_registry_free(registry);
    tp_buf_free(&alerts);
    tp_free(records);
    return best;
}

int main(void)
{
    puts("million values a second\n\nrule                        1,000 series  100,000 series");
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        const double few = measure(i, 1000);
        const double many = measure(i, 100000);
        printf("%-26s  %12.1f  %14.1f\n", rules[i].name, few, many);
    }
    return EXIT_SUCCESS;
}
