/* alert.rules: which rules there are, and what each of them may be told. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "config/readers.h"
#include "record/names.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* A rule as written; what must fit together is checked when all of it has been read. */
typedef struct rule_draft {
    uint32_t name;        /* TP_RULE_…; 0: absent */
    uint32_t mode;        /* TP_MODE_…, ABSENT */
    double threshold;     /* NaN: absent */
    uint64_t min_samples; /* 0: absent */
    uint32_t window;      /* 0: absent */
    uint32_t dtype;       /* TP_F16 …; 0: absent */
    tp_rule_config lists; /* ops and targets */
} rule_draft;

#define ABSENT UINT32_MAX
#define FACTOR_MIN_SAMPLES 20
#define WINDOW_MAX 256

/* What a rule may be told besides targets. */
#define MAY_THRESHOLD 1u
#define MAY_MODE 2u
#define MAY_SAMPLES 4u
#define MAY_WINDOW 8u
#define MAY_OPS 16u
#define MAY_DTYPE 32u

static const struct known_rule {
    uint32_t rule;
    unsigned may;
    double threshold; /* when none is written; NaN: none */
    double least;     /* threshold that makes sense */
    uint64_t min_samples;
    uint32_t window;
} known_rules[] = {
    {TP_RULE_ANOMALY_NAN, MAY_THRESHOLD | MAY_OPS, NAN, 0, 1, 0},
    {TP_RULE_ANOMALY_TURBULENCE, MAY_THRESHOLD | MAY_MODE | MAY_SAMPLES | MAY_OPS, NAN, 0, 1, 0},
    {TP_RULE_EXPLODING, MAY_THRESHOLD | MAY_SAMPLES | MAY_WINDOW, 20, 1, 16, 32},
    {TP_RULE_VANISHING, MAY_THRESHOLD | MAY_SAMPLES | MAY_WINDOW, 1000, 1, 16, 32},
    {TP_RULE_LOSS_SPIKE, MAY_THRESHOLD | MAY_SAMPLES | MAY_WINDOW, 6, 1, 16, 32},
    {TP_RULE_ALL_ZERO, MAY_THRESHOLD | MAY_SAMPLES, 1, 0, 5, 0},
    {TP_RULE_UNCHANGED_TENSOR, MAY_SAMPLES, NAN, 0, 5, 0},
    {TP_RULE_DEAD_UNITS, MAY_THRESHOLD | MAY_SAMPLES, 0.95, 0, 5, 0},
    {TP_RULE_SATURATED, MAY_THRESHOLD | MAY_SAMPLES, 0.95, 0, 5, 0},
    {TP_RULE_WEIGHT_UPDATE_RATIO, MAY_THRESHOLD | MAY_SAMPLES | MAY_WINDOW, 0.05, 0, 16, 32},
    {TP_RULE_VARIANCE_BOUNDS, MAY_THRESHOLD | MAY_SAMPLES | MAY_WINDOW, 100, 1, 16, 32},
    {TP_RULE_GRAD_NORM_SPIKE, MAY_THRESHOLD | MAY_SAMPLES | MAY_WINDOW, 60, 1, 16, 32},
    {TP_RULE_UNDERFLOW_SHARE, MAY_THRESHOLD | MAY_SAMPLES | MAY_DTYPE, 0.1, 0, 5, 0},
    {TP_RULE_OVERFLOW_SHARE, MAY_THRESHOLD | MAY_SAMPLES | MAY_DTYPE, 1e-6, 1e-12, 1, 0},
    {TP_RULE_MOMENTUM_AGAINST_GRADIENT, MAY_THRESHOLD | MAY_SAMPLES, 0.2, 0, 5, 0},
    {TP_RULE_STALLED_STEP, MAY_THRESHOLD, 1800, 0.1, 1, 0},
    {TP_RULE_REPLICA_DRIFT, 0, NAN, 0, 1, 0},
    {TP_RULE_COMM_STRAGGLER, MAY_THRESHOLD | MAY_SAMPLES | MAY_WINDOW, 0.1, 0, 8, 32},
};

_Static_assert(LENGTH(known_rules) == TP_RULE_COUNT, "in the order of their numbers");

void tp_config_default_rules(tp_config *config)
{
    /* tp_config_default_rules_text names them, too. bench/diagnosis.py is what chose them. */
    static const uint32_t rules[] = {
        TP_RULE_ANOMALY_NAN,     TP_RULE_LOSS_SPIKE,          TP_RULE_GRAD_NORM_SPIKE,
        TP_RULE_VARIANCE_BOUNDS, TP_RULE_WEIGHT_UPDATE_RATIO, TP_RULE_UNCHANGED_TENSOR,
        TP_RULE_DEAD_UNITS,      TP_RULE_STALLED_STEP,        TP_RULE_REPLICA_DRIFT};
    config->rule_count = LENGTH(rules);
    for (size_t i = 0; i < LENGTH(rules); i++) {
        const struct known_rule *known = &known_rules[rules[i] - 1];
        config->rules[i] = (tp_rule_config){.rule = known->rule,
                                            .threshold = known->threshold,
                                            .min_samples = known->min_samples,
                                            .window = known->window};
    }
}

const char tp_config_default_rules_text[] =
    "[{\"rule_name\": \"AnomalyNan\"}, {\"rule_name\": \"LossSpike\"}, "
    "{\"rule_name\": \"GradNormSpike\"}, {\"rule_name\": \"VarianceBounds\"}, "
    "{\"rule_name\": \"WeightUpdateRatio\"}, {\"rule_name\": \"UnchangedTensor\"}, "
    "{\"rule_name\": \"DeadUnits\"}, {\"rule_name\": \"StalledStep\"}, "
    "{\"rule_name\": \"ReplicaDrift\"}]";

static const char *const dtypes[] = {"float16",         "bfloat16",         "float32",
                                     "float8_e4m3fn",   "float8_e5m2",      "float8_e4m3fnuz",
                                     "float8_e5m2fnuz", "float4_e2m1fn_x2", NULL};
static const uint32_t dtype_numbers[] = {TP_F16,         TP_BF16,        TP_F32,
                                         TP_F8_E4M3FN,   TP_F8_E5M2,     TP_F8_E4M3FNUZ,
                                         TP_F8_E5M2FNUZ, TP_F4_E2M1FN_X2};

static const char *const modes[] = {"relative", "factor", "compat", NULL};

static tp_status read_rule_name(const tp_config_text *text, const tp_config_field *spec,
                                json_t *value, const tp_place *place, void *target)
{
    uint32_t choice = 0;
    tp_status status = tp_config_read_word(text, spec, value, place, &choice);
    *(uint32_t *)target = choice + 1;
    return status;
}

static tp_status read_dtype(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                            const tp_place *place, void *target)
{
    uint32_t choice = 0;
    tp_status status = tp_config_read_word(text, spec, value, place, &choice);
    *(uint32_t *)target = dtype_numbers[choice];
    return status;
}

static tp_status read_ops(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                          const tp_place *place, void *target)
{
    tp_config list = {.op_count = 0};
    tp_status status = tp_config_read_ops(text, spec, value, place, &list);
    for (uint32_t i = 0; status == TP_OK && i < list.op_count; i++) {
        if (list.ops[i] == TP_OP_SHAPE || list.ops[i] == TP_OP_DTYPE) {
            return tp_config_fail(text, place, "a rule looks at numbers: not at shape or dtype");
        }
        *(uint32_t *)target |= 1u << list.ops[i];
    }
    return status;
}

static const tp_config_field argument_fields[] = {
    {.name = "threshold",
     .read = tp_config_read_positive,
     .offset = offsetof(rule_draft, threshold),
     .does = "AnomalyNan: the largest magnitude that is right, none: any number is. "
             "AnomalyTurbulence: how far from its own history a value may be. Exploding (20), "
             "LossSpike (6), GradNormSpike (60): how many standard deviations above the median. "
             "Vanishing (1000): how many times smaller than it. VarianceBounds (100): how many "
             "times smaller or larger. AllZero (1), DeadUnits (0.95): the share of zeros. "
             "Saturated (0.95), UnderflowShare (0.1), OverflowShare (1e-6): the share that is "
             "reached. MomentumAgainstGradient (0.2): the share of equal signs. WeightUpdateRatio "
             "(0.05): the change of a norm in one step. StalledStep (1800): seconds. CommStraggler "
             "(0.1): the share of the time in which a rank was waited for"},
    {.name = "mode",
     .read = tp_config_read_word,
     .offset = offsetof(rule_draft, mode),
     .choices = modes,
     .fallback = "\"relative\"",
     .does = "AnomalyTurbulence: fires when |x − m| > threshold · |m|, m being the mean of the "
             "earlier finite values; or when a norm is above threshold · m or below m / threshold; "
             "or by the formula of msprobe: |x| > m · (1 + threshold), m a moving mean of |x|"},
    {.name = "min_samples",
     .read = tp_config_read_u64,
     .offset = offsetof(rule_draft, min_samples),
     .min = 1,
     .max = 1e9,
     .does =
         "how many earlier finite values a rule needs before it speaks: AnomalyTurbulence 1, "
         "by factor 20; Exploding, Vanishing, LossSpike, GradNormSpike, VarianceBounds, "
         "WeightUpdateRatio 16. AllZero, UnchangedTensor, DeadUnits, Saturated, UnderflowShare, "
         "MomentumAgainstGradient: how many steps it has to last (5); OverflowShare: 1. "
         "CommStraggler: how many collectives of a window have to be known (8)"},
    {.name = "window",
     .read = tp_config_read_u32,
     .offset = offsetof(rule_draft, window),
     .min = 1,
     .max = WINDOW_MAX,
     .does =
         "Exploding, Vanishing, LossSpike, GradNormSpike, VarianceBounds, WeightUpdateRatio: how "
         "many earlier values the median is taken of (32). CommStraggler: how many steps are "
         "looked at together (32)"},
    {.name = "dtype",
     .read = read_dtype,
     .offset = offsetof(rule_draft, dtype),
     .choices = dtypes,
     .does = "UnderflowShare, OverflowShare: whose range counts; none: that of the tensor's own"},
    {.name = "ops",
     .read = read_ops,
     .offset = offsetof(rule_draft, lists.ops),
     .type = "list of ops",
     .schema = "\"type\": \"array\", \"items\": {\"enum\": [\"norm\", \"min\", \"max\", \"mean\", "
               "\"zeros\", \"nans\", \"id\"]}",
     .does =
         "AnomalyNan, AnomalyTurbulence: the statistics it looks at; none: the configured `ops`"},
    {.name = "targets",
     .read = tp_config_read_selection,
     .offset = offsetof(rule_draft, lists.selection),
     .type = "list of names and patterns",
     .schema = "\"type\": \"array\", \"items\": {\"type\": \"string\"}",
     .does = "the modules, parameters and logged numbers it looks at, with all that is inside "
             "them; none: everything"},
};

static const tp_config_members argument_members = {argument_fields, LENGTH(argument_fields)};

static const tp_config_field rule_fields[] = {
    {.name = "rule_name",
     .read = read_rule_name,
     .offset = offsetof(rule_draft, name),
     .choices = tp_rule_names + 1,
     .does = "see [rules.md](rules.md)"},
    {.name = "args",
     .read = tp_config_read_members,
     .nest = TP_NEST_OBJECT,
     .members = &argument_members,
     .does = "what the rule needs to know"},
};

const tp_config_members tp_config_rule_members = {rule_fields, LENGTH(rule_fields)};

/* Arguments that are written and that the rule doesn't have. */
static unsigned superfluous(const rule_draft *draft, unsigned may)
{
    unsigned written =
        (isnan(draft->threshold) ? 0 : MAY_THRESHOLD) | (draft->mode == ABSENT ? 0 : MAY_MODE) |
        (draft->min_samples == 0 ? 0 : MAY_SAMPLES) | (draft->window == 0 ? 0 : MAY_WINDOW) |
        (draft->lists.ops == 0 ? 0 : MAY_OPS) | (draft->dtype == 0 ? 0 : MAY_DTYPE);
    return written & ~may;
}

static tp_status fail_superfluous(const tp_config_text *text, const tp_place *place,
                                  const char *name, unsigned may)
{
    static const char *const arguments[] = {"threshold", "mode", "min_samples",
                                            "window",    "ops",  "dtype"};
    char list[96] = "";
    for (unsigned i = 0; i < LENGTH(arguments); i++) {
        if ((may & (1u << i)) != 0) {
            size_t used = strlen(list);
            snprintf(list + used, sizeof list - used, "%s, ", arguments[i]);
        }
    }
    return tp_config_fail(text, place, "%s takes no arguments but %stargets; remove the others",
                          name, list);
}

static tp_status finish(const tp_config_text *text, const tp_place *place, const rule_draft *draft,
                        tp_rule_config *rule)
{
    if (draft->name == 0) {
        return tp_config_fail(text, place,
                              "rule_name is missing; write \"rule_name\": \"AnomalyNan\"");
    }
    const struct known_rule *known = &known_rules[draft->name - 1];
    const char *name = tp_rule_name(known->rule);
    const bool turbulence = known->rule == TP_RULE_ANOMALY_TURBULENCE;
    const bool factor = draft->mode == TP_MODE_FACTOR;
    if (turbulence && isnan(draft->threshold)) {
        return tp_config_fail(text, place,
                              "threshold is missing; write \"args\": {\"threshold\": 0.5}");
    }
    if (superfluous(draft, known->may) != 0) {
        return fail_superfluous(text, place, name, known->may);
    }
    if ((factor && draft->threshold < 1)) {
        return tp_config_fail(text, place, "a factor is at least 1; write \"threshold\": 10");
    }
    if (draft->threshold < known->least) {
        return tp_config_fail(text, place,
                              "the threshold of %s is at least %g; write "
                              "\"threshold\": %g",
                              name, known->least, known->threshold);
    }
    rule->rule = known->rule;
    rule->mode = draft->mode == ABSENT ? TP_MODE_RELATIVE : draft->mode;
    rule->threshold = isnan(draft->threshold) ? known->threshold : draft->threshold;
    rule->window = draft->window > 0 ? draft->window : known->window;
    rule->ops = draft->lists.ops;
    rule->dtype = draft->dtype;
    rule->min_samples = factor ? FACTOR_MIN_SAMPLES : known->min_samples;
    if (draft->min_samples > 0) {
        rule->min_samples = draft->min_samples;
    }
    if (known->window > 0 && rule->min_samples > rule->window) {
        return tp_config_fail(text, place,
                              "%s needs min_samples (%llu) to be at most its window (%u)", name,
                              (unsigned long long)rule->min_samples, rule->window);
    }
    return TP_OK;
}

static tp_status read_rule(const tp_config_text *text, json_t *value, const tp_place *place,
                           tp_rule_config *rule)
{
    rule_draft draft = {.mode = ABSENT, .threshold = (double)NAN};
    tp_status status = tp_config_read_object(text, &tp_config_rule_members, value, place, &draft);
    /* What was allocated is the rule's, whatever comes. */
    rule->selection = draft.lists.selection;
    return status == TP_OK ? finish(text, place, &draft, rule) : status;
}

tp_status tp_config_read_rules(const tp_config_text *text, const tp_config_field *spec,
                               json_t *value, const tp_place *place, void *target)
{
    tp_config *config = target;
    json_t *member;
    size_t index;
    (void)spec;
    if (!json_is_array(value) || json_array_size(value) > TP_MAX_RULES) {
        return tp_config_fail(
            text, place,
            "must be a list of at most %d rules, as in [{\"rule_name\": \"AnomalyNan\"}]",
            TP_MAX_RULES);
    }
    config->rule_count = 0; /* the defaults own nothing */
    json_array_foreach(value, index, member)
    {
        tp_place here = {place, NULL, index};
        tp_rule_config *rule = &config->rules[config->rule_count++];
        *rule = (tp_rule_config){0};
        tp_status status = read_rule(text, member, &here, rule);
        if (status != TP_OK) {
            return status;
        }
    }
    return TP_OK;
}
