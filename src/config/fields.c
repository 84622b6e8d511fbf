#include "config/fields.h"

#include <math.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static char no_name[] = "";
tp_target tp_config_everything[1] = {{.name = no_name}};

/* Digits without sign or blank; *end is behind them. False when there are none or too many. */
static bool read_digits(const char *digits, const char **end, uint32_t *number)
{
    uint64_t value = 0;
    *end = digits;
    while (**end >= '0' && **end <= '9' && value <= UINT32_MAX) {
        value = value * 10 + (uint64_t)(**end - '0');
        (*end)++;
    }
    *number = (uint32_t)value;
    return *end > digits && value <= UINT32_MAX;
}

static bool parse_side(const char *word, tp_side_spec *side)
{
    const char *rest;
    *side = (tp_side_spec){.given = true};
    if (strcmp(word, "tensor") == 0) {
        return true;
    }
    if (strncmp(word, "tuple[", 6) != 0 || !read_digits(word + 6, &rest, &side->length) ||
        *rest != ']') {
        return false;
    }
    side->tuple = true;
    if (rest[1] == '\0') {
        return side->length > 0;
    }
    return rest[1] == ':' && read_digits(rest + 2, &rest, &side->index) && *rest == '\0' &&
           side->index < side->length;
}

static tp_status read_side(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                           const tp_place *place, void *target)
{
    (void)spec;
    if (!json_is_string(value) || !parse_side(json_string_value(value), target)) {
        return tp_config_fail(
            text, place,
            "must be \"tensor\", \"tuple[n]\" or \"tuple[n]:i\" with i < n, as in "
            "\"tuple[2]:0\"");
    }
    return TP_OK;
}

static const tp_config_field side_fields[] = {
    {.name = "input", .read = read_side, .offset = offsetof(tp_target, input)},
    {.name = "output", .read = read_side, .offset = offsetof(tp_target, output)},
    {.name = "input_grad", .read = read_side, .offset = offsetof(tp_target, input_grad)},
    {.name = "output_grad", .read = read_side, .offset = offsetof(tp_target, output_grad)},
};

static tp_status read_targets(const tp_config_text *text, const tp_config_field *spec,
                              json_t *value, const tp_place *place, void *target)
{
    tp_config *config = target;
    const char *name;
    json_t *member;
    (void)spec;
    if (!json_is_object(value)) {
        return tp_config_fail(
            text, place,
            "must be an object of module names, as in {\"layers.0\": {}} (everything: {})");
    }
    if (json_object_size(value) == 0) {
        return TP_OK;
    }
    config->targets = tp_calloc(json_object_size(value), sizeof *config->targets);
    config->target_count = 0;
    if (config->targets == NULL) {
        return tp_fail(text->error, TP_ERR_NOMEM, "no memory for targets");
    }
    json_object_foreach(value, name, member)
    {
        tp_place here = {place, name, config->target_count};
        tp_target *one = &config->targets[config->target_count];
        one->name = tp_strdup(name);
        if (one->name == NULL) {
            return tp_fail(text->error, TP_ERR_NOMEM, "no memory for targets");
        }
        config->target_count++;
        tp_status status =
            tp_config_read_object(text, side_fields, LENGTH(side_fields), member, &here, one);
        if (status != TP_OK) {
            return status;
        }
    }
    return TP_OK;
}

static tp_status read_ops(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                          const tp_place *place, void *target)
{
    tp_config *config = target;
    const char *names[TP_OP_COUNT];
    json_t *member;
    size_t index;
    bool seen[TP_OP_COUNT] = {false};
    (void)spec;
    if (!json_is_array(value)) {
        return tp_config_fail(text, place, "must be a list, as in [\"norm\", \"min\", \"max\"]");
    }
    for (uint32_t op = 1; op <= TP_OP_COUNT; op++) {
        names[op - 1] = tp_op_name(op);
    }
    config->op_count = 0;
    json_array_foreach(value, index, member)
    {
        tp_place here = {place, NULL, index};
        uint32_t choice = 0;
        tp_status status =
            tp_config_read_choice(text, names, LENGTH(names), member, &here, &choice);
        if (status != TP_OK) {
            return status;
        }
        if (!seen[choice]) {
            seen[choice] = true;
            config->ops[config->op_count++] = choice + 1;
        }
    }
    if (config->op_count == 0) {
        config->ops[config->op_count++] = TP_OP_NORM;
    }
    return TP_OK;
}

static tp_status read_one_format(const tp_config_text *text, json_t *value, const tp_place *place,
                                 uint32_t *formats)
{
    static const char *const names[] = {"tensorboard", "csv", "api", "database"};
    static const uint32_t bits[] = {TP_FORMAT_TENSORBOARD, TP_FORMAT_CSV, TP_FORMAT_API,
                                    TP_FORMAT_API};
    uint32_t choice = 0;
    tp_status status = tp_config_read_choice(text, names, LENGTH(names), value, place, &choice);
    if (status != TP_OK) {
        return status;
    }
    if (strcmp(names[choice], "database") == 0) {
        tp_config_warn(text, place,
                       "this version writes no database: the journal keeps the values");
    }
    *formats |= bits[choice];
    return TP_OK;
}

static tp_status read_format(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                             const tp_place *place, void *target)
{
    uint32_t formats = 0;
    json_t *member;
    size_t index;
    (void)spec;
    if (!json_is_array(value)) {
        tp_status status = read_one_format(text, value, place, &formats);
        *(uint32_t *)target = formats;
        return status;
    }
    json_array_foreach(value, index, member)
    {
        tp_place here = {place, NULL, index};
        tp_status status = read_one_format(text, member, &here, &formats);
        if (status != TP_OK) {
            return status;
        }
    }
    if (formats == 0) {
        return tp_config_fail(text, place,
                              "is an empty list; write \"api\" for no files but the journal");
    }
    *(uint32_t *)target = formats;
    return TP_OK;
}

static tp_status read_input_grad(const tp_config_text *text, const tp_config_field *spec,
                                 json_t *value, const tp_place *place, void *target)
{
    static const char *const names[] = {"module", "tensor"};
    uint32_t choice = 0;
    (void)spec;
    tp_status status = tp_config_read_choice(text, names, LENGTH(names), value, place, &choice);
    *(bool *)target = choice == 1;
    return status;
}

/* Fields that are accepted whatever they hold. */
static tp_status read_any(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                          const tp_place *place, void *target)
{
    (void)text, (void)spec, (void)value, (void)place, (void)target;
    return TP_OK;
}

static tp_status read_unused_bool(const tp_config_text *text, const tp_config_field *spec,
                                  json_t *value, const tp_place *place, void *target)
{
    bool unused;
    (void)target;
    return tp_config_read_bool(text, spec, value, place, &unused);
}

#define RANK_MAX 16777215

static tp_status fail_ranks(const tp_config_text *text, const tp_place *place)
{
    return tp_config_fail(text, place,
                          "must be a list of ranks from 0 to %d, as in [0, 1] (all ranks: [])",
                          RANK_MAX);
}

/* The first ancestor's "0,1". */
static tp_status read_rank_words(tp_config *config, const tp_config_text *text, const char *words,
                                 const tp_place *place)
{
    const char *rest = words;
    uint32_t rank;
    config->module_ranks = tp_calloc(strlen(words) / 2 + 1, sizeof *config->module_ranks);
    if (config->module_ranks == NULL) {
        return tp_fail(text->error, TP_ERR_NOMEM, "no memory for module_ranks");
    }
    for (bool more = *words != '\0'; more; more = *rest++ == ',') {
        rest += strspn(rest, " ");
        if (!read_digits(rest, &rest, &rank) || rank > RANK_MAX) {
            return fail_ranks(text, place);
        }
        rest += strspn(rest, " ");
        if (*rest != ',' && *rest != '\0') {
            return fail_ranks(text, place);
        }
        config->module_ranks[config->module_rank_count++] = rank;
    }
    return TP_OK;
}

static tp_status read_ranks(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                            const tp_place *place, void *target)
{
    tp_config *config = target;
    json_t *member;
    size_t index;
    (void)spec;
    if (json_is_string(value)) {
        return read_rank_words(config, text, json_string_value(value), place);
    }
    if (!json_is_array(value)) {
        return fail_ranks(text, place);
    }
    if (json_array_size(value) == 0) {
        return TP_OK;
    }
    config->module_ranks = tp_calloc(json_array_size(value), sizeof *config->module_ranks);
    if (config->module_ranks == NULL) {
        return tp_fail(text->error, TP_ERR_NOMEM, "no memory for module_ranks");
    }
    json_array_foreach(value, index, member)
    {
        static const tp_config_field rank = {.name = "rank", .max = RANK_MAX};
        tp_place here = {place, NULL, index};
        tp_status status =
            tp_config_read_u32(text, &rank, member, &here, &config->module_ranks[index]);
        if (status != TP_OK) {
            return status;
        }
        config->module_rank_count++;
    }
    return TP_OK;
}

#define NO_MODE UINT32_MAX
#define FACTOR_MIN_SAMPLES 20

/* A rule as written; what must fit together is checked when all of it has been read. */
typedef struct rule_draft {
    uint32_t rule;        /* TP_RULE_…, 0: absent */
    uint32_t mode;        /* 0 relative, 1 factor, NO_MODE: absent */
    double threshold;     /* NaN: absent */
    uint64_t min_samples; /* 0: absent */
} rule_draft;

static tp_status read_rule_name(const tp_config_text *text, const tp_config_field *spec,
                                json_t *value, const tp_place *place, void *target)
{
    static const uint32_t rules[] = {TP_RULE_ANOMALY_NAN, TP_RULE_ANOMALY_TURBULENCE};
    const char *names[LENGTH(rules)];
    uint32_t choice = 0;
    (void)spec;
    for (size_t i = 0; i < LENGTH(rules); i++) {
        names[i] = tp_rule_name(rules[i]);
    }
    tp_status status = tp_config_read_choice(text, names, LENGTH(names), value, place, &choice);
    *(uint32_t *)target = rules[choice];
    return status;
}

static tp_status read_mode(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                           const tp_place *place, void *target)
{
    static const char *const names[] = {"relative", "factor"};
    (void)spec;
    return tp_config_read_choice(text, names, LENGTH(names), value, place, target);
}

static const tp_config_field argument_fields[] = {
    {.name = "threshold",
     .read = tp_config_read_positive,
     .offset = offsetof(rule_draft, threshold)},
    {.name = "mode", .read = read_mode, .offset = offsetof(rule_draft, mode)},
    {.name = "min_samples",
     .read = tp_config_read_u64,
     .offset = offsetof(rule_draft, min_samples),
     .min = 1,
     .max = 1e9},
};

static tp_status read_arguments(const tp_config_text *text, const tp_config_field *spec,
                                json_t *value, const tp_place *place, void *target)
{
    (void)spec;
    return tp_config_read_object(text, argument_fields, LENGTH(argument_fields), value, place,
                                 target);
}

static const tp_config_field rule_fields[] = {
    {.name = "rule_name", .read = read_rule_name, .offset = offsetof(rule_draft, rule)},
    {.name = "args", .read = read_arguments},
};

static tp_status read_rule(const tp_config_text *text, json_t *value, const tp_place *place,
                           tp_rule_config *rule)
{
    rule_draft draft = {0, NO_MODE, (double)NAN, 0};
    tp_status status =
        tp_config_read_object(text, rule_fields, LENGTH(rule_fields), value, place, &draft);
    if (status != TP_OK) {
        return status;
    }
    bool turbulence = draft.rule == TP_RULE_ANOMALY_TURBULENCE;
    bool factor = draft.mode == 1;
    if (draft.rule == 0) {
        return tp_config_fail(text, place,
                              "rule_name is missing; write \"rule_name\": \"AnomalyNan\"");
    }
    if (turbulence && isnan(draft.threshold)) {
        return tp_config_fail(text, place,
                              "threshold is missing; write \"args\": {\"threshold\": 0.5}");
    }
    if (!turbulence && (draft.mode != NO_MODE || draft.min_samples != 0)) {
        return tp_config_fail(text, place, "AnomalyNan takes no argument but threshold");
    }
    if (factor && draft.threshold < 1) {
        return tp_config_fail(text, place, "a factor is at least 1; write \"threshold\": 10");
    }
    uint64_t samples = factor ? FACTOR_MIN_SAMPLES : 1;
    *rule = (tp_rule_config){draft.rule, factor, draft.threshold,
                             draft.min_samples > 0 ? draft.min_samples : samples};
    return TP_OK;
}

static tp_status read_rules(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                            const tp_place *place, void *target)
{
    tp_config *config = target;
    json_t *member;
    size_t index;
    (void)spec;
    if (!json_is_array(value) || json_array_size(value) > TP_MAX_RULES) {
        return tp_config_fail(text, place, "must be a list of at most %d rules", TP_MAX_RULES);
    }
    config->rule_count = 0;
    json_array_foreach(value, index, member)
    {
        tp_place here = {place, NULL, index};
        tp_status status = read_rule(text, member, &here, &config->rules[config->rule_count++]);
        if (status != TP_OK) {
            return status;
        }
    }
    return TP_OK;
}

static const tp_config_field alert_fields[] = {
    {.name = "rules", .read = read_rules},
    {.name = "dump", .read = read_unused_bool, .ignored = true},
    {.name = "inform", .read = read_any, .ignored = true},
};

static tp_status read_alert(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                            const tp_place *place, void *target)
{
    (void)spec;
    return tp_config_read_object(text, alert_fields, LENGTH(alert_fields), value, place, target);
}

#define STEP_MAX 1e15
#define AT(member) .offset = offsetof(tp_config, member)

static const tp_config_field journal_fields[] = {
    {.name = "segment_bytes",
     .read = tp_config_read_u64,
     AT(segment_bytes),
     .min = 4096,
     .max = 1e15},
    {.name = "budget_bytes", .read = tp_config_read_u64, AT(budget_bytes), .min = 1, .max = 1e15},
    {.name = "wait_ms", .read = tp_config_read_u32, AT(wait_ms), .min = 0, .max = 3600000},
};

static tp_status read_journal(const tp_config_text *text, const tp_config_field *spec,
                              json_t *value, const tp_place *place, void *target)
{
    (void)spec;
    return tp_config_read_object(text, journal_fields, LENGTH(journal_fields), value, place,
                                 target);
}

/* Entries without an offset take the whole configuration. */
static const tp_config_field root_fields[] = {
    {.name = "targets", .read = read_targets},
    {.name = "xy_distribution", .read = tp_config_read_bool, AT(xy_distribution)},
    {.name = "all_xy", .read = tp_config_read_bool, AT(all_xy)},
    {.name = "forward_only", .read = tp_config_read_bool, AT(forward_only)},
    {.name = "backward_only", .read = tp_config_read_bool, AT(backward_only)},
    {.name = "wg_distribution", .read = tp_config_read_bool, AT(wg_distribution)},
    {.name = "param_distribution", .read = tp_config_read_bool, AT(param_distribution)},
    {.name = "mv_distribution", .read = tp_config_read_bool, AT(mv_distribution)},
    {.name = "input_grad", .read = read_input_grad, AT(input_grad_tensor)},
    {.name = "ops", .read = read_ops},
    {.name = "eps", .read = tp_config_read_positive, AT(eps)},
    {.name = "format", .read = read_format, AT(formats)},
    {.name = "ndigits", .read = tp_config_read_u32, AT(ndigits), .max = 20},
    {.name = "step_count_per_record",
     .read = tp_config_read_u64,
     AT(step_count_per_record),
     .min = 1,
     .max = 1e9},
    {.name = "alert", .read = read_alert},
    {.name = "journal", .read = read_journal},
    {.name = "strict", .read = tp_config_read_bool, AT(strict)},
    {.name = "print_struct", .read = tp_config_read_bool, AT(print_struct), .ignored = true},
    {.name = "exit_after_struct", .read = tp_config_read_bool, AT(exit_after_struct)},
    {.name = "module_ranks", .read = read_ranks, .ignored = true},
    {.name = "ur_distribution", .read = tp_config_read_bool, AT(ur_distribution), .ignored = true},
    {.name = "cc_distribution", .read = read_any, .ignored = true},
    {.name = "mg_direction", .read = tp_config_read_bool, AT(mg_direction), .ignored = true},
    /* The same, as the second ancestor's check of the configuration calls it. */
    {.name = "mg_distribution", .read = tp_config_read_bool, AT(mg_direction), .ignored = true},
    {.name = "start_step",
     .read = tp_config_read_u64,
     AT(start_step),
     .max = STEP_MAX,
     .ignored = true},
    {.name = "step_interval",
     .read = tp_config_read_u64,
     AT(step_interval),
     .min = 1,
     .max = STEP_MAX,
     .ignored = true,
     .idle = 1},
    {.name = "collect_times",
     .read = tp_config_read_u64,
     AT(collect_times),
     .max = STEP_MAX,
     .ignored = true,
     .idle = 1e8},
    {.name = "dynamic_on", .read = tp_config_read_bool, AT(dynamic_on), .ignored = true},
    {.name = "append_output", .read = read_any, .ignored = true},
    {.name = "squash_name", .read = tp_config_read_bool, AT(squash_name), .ignored = true},
    {.name = "stack_info", .read = read_unused_bool, .ignored = true},
    {.name = "monitor_mbs_grad",
     .read = tp_config_read_bool,
     AT(monitor_mbs_grad),
     .ignored = true},
    {.name = "l2_targets", .read = read_any, .ignored = true},
    {.name = "recording_l2_features", .read = read_unused_bool, .ignored = true},
    {.name = "sa_order", .read = read_any, .ignored = true},
    {.name = "params_effrank", .read = read_any, .ignored = true},
};

tp_status tp_config_read_fields(tp_config *config, json_t *root, const tp_config_text *text)
{
    const tp_place place = {NULL, NULL, 0};
    tp_status status =
        tp_config_read_object(text, root_fields, LENGTH(root_fields), root, &place, config);
    if (status != TP_OK) {
        return status;
    }
    if (config->forward_only && config->backward_only) {
        tp_log(TP_LOG_WARNING,
               "%s: forward_only and backward_only exclude each other: no activations are recorded",
               text->source);
        config->xy_distribution = false;
    }
    if (json_object_get(root, "all_xy") == NULL) {
        /* Who names no module wants every module, who names some wants these. */
        config->all_xy = config->xy_distribution && config->targets == tp_config_everything;
    }
    return TP_OK;
}
