#include "config/fields.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "config/readers.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define AT(member) .offset = offsetof(tp_config, member)
#define SIDE(member) .offset = offsetof(tp_target, member)
#define STEP_MAX 1e15

#define SIDE_TYPE "`\"tensor\"`, `\"tuple[n]\"` or `\"tuple[n]:i\"`"
#define SIDE_SCHEMA                                                                                \
    "\"type\": \"string\", \"pattern\": \"^(tensor|(tuple|list)\\\\[[0-9]+\\\\](:[0-9]+)?)$\""
#define INPUT_TYPE SIDE_TYPE " or `\"keyword:NAME\"`"
#define INPUT_SCHEMA                                                                               \
    "\"type\": \"string\", "                                                                       \
    "\"pattern\": \"^(tensor|(tuple|list)\\\\[[0-9]+\\\\](:[0-9]+)?|keyword:.+)$\""
static const tp_config_field side_fields[] = {
    {.name = "input",
     .read = tp_config_read_side,
     SIDE(input),
     .type = INPUT_TYPE,
     .schema = INPUT_SCHEMA,
     .does = "which tensor of the module's arguments"},
    {.name = "output",
     .read = tp_config_read_side,
     SIDE(output),
     .type = SIDE_TYPE,
     .schema = SIDE_SCHEMA,
     .does = "which tensor of what the module returns"},
    {.name = "input_grad",
     .read = tp_config_read_side,
     SIDE(input_grad),
     .type = INPUT_TYPE,
     .schema = INPUT_SCHEMA,
     .does = "which gradient of an input"},
    {.name = "output_grad",
     .read = tp_config_read_side,
     SIDE(output_grad),
     .type = SIDE_TYPE,
     .schema = SIDE_SCHEMA,
     .does = "which gradient of an output"},
};
static const tp_config_members side_members = {side_fields, LENGTH(side_fields)};

static const tp_config_field cc_fields[] = {
    {.name = "enable",
     .read = tp_config_read_bool,
     AT(cc_enable),
     .is_switch = true,
     .fallback = "false",
     .does = "watch collectives"},
    {.name = "cc_codeline",
     .read = tp_config_read_texts,
     AT(cc_codeline),
     .fallback = "[]",
     .does = "only calls from these lines, as in `train.py\\\\[23\\\\]`; empty: from everywhere"},
    {.name = "cc_pre_hook",
     .read = tp_config_read_bool,
     AT(cc_pre_hook),
     .fallback = "false",
     .does = "what goes into a collective, too"},
    {.name = "cc_log_only",
     .read = tp_config_read_bool,
     AT(cc_log_only),
     .fallback = "false",
     .does = "only print which collectives are called from where, and end"},
};
static const tp_config_members cc_members = {cc_fields, LENGTH(cc_fields)};

static const tp_config_field alert_fields[] = {
    {.name = "rules",
     .read = tp_config_read_rules,
     .nest = TP_NEST_LIST,
     .members = &tp_config_rule_members,
     .max = TP_MAX_RULES,
     .type = "list of at most 32 rules",
     .fallback = "[]",
     .for_watch = tp_config_default_rules_text,
     .does = "what raises alerts; a list that is given replaces the default"},
    {.name = "dump",
     .read = tp_config_read_bool,
     AT(alert_dump),
     .fallback = "false",
     .does = "write alerts to `anomaly_detected/rank<R>/anomaly.json`, which `python -m "
             "tensorprobe.anomaly_analyse` puts in order"},
    {.name = "inform",
     .read = tp_config_read_inform,
     AT(inform),
     .nest = TP_NEST_OBJECT,
     .members = &tp_config_inform_members,
     .fallback = "{}",
     .does = "tell somebody of alerts"},
};
static const tp_config_members alert_members = {alert_fields, LENGTH(alert_fields)};

static const tp_config_field journal_fields[] = {
    {.name = "segment_bytes",
     .read = tp_config_read_u64,
     AT(segment_bytes),
     .min = 4096,
     .max = 1e15,
     .fallback = "33554432",
     .does = "a segment of the journal is closed when it has grown to this size"},
    {.name = "budget_bytes",
     .read = tp_config_read_u64,
     AT(budget_bytes),
     .min = 1,
     .max = 1e15,
     .fallback = "268435456",
     .does = "memory for records that wait for the writer"},
    {.name = "wait_ms",
     .read = tp_config_read_u32,
     AT(wait_ms),
     .max = 3600000,
     .fallback = "1000",
     .does = "how long the end of a step waits for the writer before the step becomes a recorded "
             "gap"},
    {.name = "keep_bytes",
     .read = tp_config_read_u64,
     AT(keep_bytes),
     .max = 1e15,
     .fallback = "0",
     .does = "above this size the oldest segments lose their steps and keep names, alerts and "
             "overviews; 0: all is kept"},
    {.name = "keep_days",
     .read = tp_config_read_u64,
     AT(keep_days),
     .max = 1e6,
     .fallback = "0",
     .does = "so do segments that are older than this; both are looked at when a segment ends"},
};
static const tp_config_members journal_members = {journal_fields, LENGTH(journal_fields)};

static const tp_config_field zoom_fields[] = {
    {.name = "steps",
     .read = tp_config_read_u64,
     AT(zoom.steps),
     .max = 1e6,
     .fallback = "0",
     .does = "for so many steps every module and parameter is recorded; 0: none more than is "
             "configured"},
    {.name = "bytes",
     .read = tp_config_read_bytes,
     AT(zoom.bytes),
     .max = 1e15,
     .type = "bytes, as in `\"64MiB\"` or `67108864`",
     .schema = "\"anyOf\": [{\"type\": \"integer\", \"minimum\": 0}, {\"type\": \"string\", "
               "\"pattern\": \"^[0-9]+(\\\\.[0-9]+)? *([KMG]i?)?B$\"}]",
     .fallback = "\"64MiB\"",
     .does = "when records and tensors of one incident have grown to this, the steps end early"},
    {.name = "tensors",
     .read = tp_config_read_bool,
     AT(zoom.tensors),
     .fallback = "false",
     .does = "the values of the tensors that the incident speaks of, too, as `zoom/*.safetensors`"},
};
static const tp_config_members zoom_members = {zoom_fields, LENGTH(zoom_fields)};

static const char *const format_words[] = {"tensorboard", "csv", "sqlite", "api", "database", NULL};
static const char *const input_grad_words[] = {"module", "tensor", NULL};
static const char *const device_path_words[] = {"native", "torch", NULL};

/* Entries without an offset take the whole configuration. */
static const tp_config_field root_fields[] = {
    {.name = "targets",
     .read = tp_config_read_targets,
     .nest = TP_NEST_MAP,
     .members = &side_members,
     .type = "object: name → object",
     .fallback = "{}",
     .does = "the modules (exact names) and parameters (beginnings of names) that are watched; "
             "`{}`: all"},
    {.name = "xy_distribution",
     .read = tp_config_read_bool,
     AT(xy_distribution),
     .is_switch = true,
     .fallback = "false",
     .for_watch = "true",
     .does = "activations and their gradients"},
    {.name = "all_xy",
     .read = tp_config_read_bool,
     AT(all_xy),
     .type = "boolean; not given: whether no target is named",
     .does = "those of every module, whatever the targets"},
    {.name = "forward_only",
     .read = tp_config_read_bool,
     AT(forward_only),
     .fallback = "false",
     .does = "of `xy_distribution` only the activations"},
    {.name = "backward_only",
     .read = tp_config_read_bool,
     AT(backward_only),
     .fallback = "false",
     .does = "of `xy_distribution` only the gradients"},
    {.name = "wg_distribution",
     .read = tp_config_read_bool,
     AT(wg_distribution),
     .is_switch = true,
     .fallback = "false",
     .for_watch = "true",
     .does = "parameter gradients, before and after the data-parallel reduction"},
    {.name = "param_distribution",
     .read = tp_config_read_bool,
     AT(param_distribution),
     .is_switch = true,
     .fallback = "false",
     .for_watch = "true",
     .does = "parameters, before and after the optimizer's step"},
    {.name = "mv_distribution",
     .read = tp_config_read_bool,
     AT(mv_distribution),
     .is_switch = true,
     .fallback = "false",
     .for_watch = "true",
     .does = "the optimizer's moments `exp_avg` and `exp_avg_sq`"},
    {.name = "mg_direction",
     .read = tp_config_read_bool,
     AT(mg_direction),
     .is_switch = true,
     .fallback = "false",
     .does = "the share of elements whose gradient and first moment have the same sign"},
    {.name = "mg_distribution",
     .read = tp_config_read_bool,
     AT(mg_direction),
     .fallback = "false",
     .does = "another name of `mg_direction`"},
    {.name = "ur_distribution",
     .read = tp_config_read_bool,
     AT(ur_distribution),
     .is_switch = true,
     .fallback = "false",
     .does =
         "the update that Adam's moments make before the step, and their ratio, with histograms"},
    {.name = "monitor_mbs_grad",
     .read = tp_config_read_bool,
     AT(monitor_mbs_grad),
     .fallback = "false",
     .does =
         "with `wg_distribution`: the gradients before their reduction as each micro step leaves "
         "them, summed up so far"},
    {.name = "cc_distribution",
     .read = tp_config_read_members,
     .nest = TP_NEST_OBJECT,
     .members = &cc_members,
     .fallback = "{}",
     .does = "the tensors of collectives, and their times"},
    {.name = "input_grad",
     .read = tp_config_read_input_grad,
     AT(input_grad_tensor),
     .choices = input_grad_words,
     .fallback = "\"module\"",
     .does = "what flows back through this module, or the input tensor's total gradient"},
    {.name = "ops",
     .read = tp_config_read_ops,
     .type = "list of `norm min max mean zeros nans id shape dtype`",
     .schema = "\"type\": \"array\", \"items\": {\"enum\": [\"norm\", \"min\", \"max\", \"mean\", "
               "\"zeros\", \"nans\", \"id\", \"shape\", \"dtype\"]}",
     .fallback = "[\"norm\"]",
     .for_watch = "[\"norm\", \"min\", \"max\", \"mean\", \"zeros\", \"nans\"]",
     .does = "the statistics, in the order of the columns"},
    {.name = "exponents",
     .read = tp_config_read_bool,
     AT(all_exponents),
     .fallback = "false",
     .does = "count how many elements of a tensor have which exponent; without it those of "
             "activations and gradients, where a rule OverflowShare, or an UnderflowShare with a "
             "dtype, asks for it"},
    {.name = "eps",
     .read = tp_config_read_positive,
     AT(eps),
     .fallback = "1e-8",
     .does = "`zeros` is the share of elements with |x| < eps"},
    {.name = "device_path",
     .read = tp_config_read_word,
     AT(device_path),
     .choices = device_path_words,
     .fallback = "\"native\"",
     .does = "how statistics are computed: by the kernels, in place, and by torch operations for "
             "tensors on devices; or by torch operations for all"},
    {.name = "format",
     .read = tp_config_read_format,
     AT(formats),
     .choices = format_words,
     .type = "`\"tensorboard\"`, `\"csv\"`, `\"sqlite\"`, `\"api\"` (no files but the journal), "
             "`\"database\"`, or a list of them",
     .schema = "\"anyOf\": [{\"enum\": [\"tensorboard\", \"csv\", \"sqlite\", \"api\", "
               "\"database\"]}, {\"type\": \"array\", \"minItems\": 1, \"items\": {\"enum\": "
               "[\"tensorboard\", \"csv\", \"sqlite\", \"api\", \"database\"]}}]",
     .fallback = "\"tensorboard\"",
     .for_watch = "[\"csv\", \"tensorboard\"]",
     .does = "the files that are written beside the journal; `\"database\"`: the server of "
             "`database.url`, without one `\"sqlite\"`"},
    {.name = "ndigits",
     .read = tp_config_read_u32,
     AT(ndigits),
     .max = 20,
     .fallback = "0",
     .does = "decimals in CSV files; 0: every number reads back to the same double"},
    {.name = "step_count_per_record",
     .read = tp_config_read_u64,
     AT(step_count_per_record),
     .min = 1,
     .max = 1e9,
     .fallback = "1",
     .for_watch = "1000",
     .does = "steps in one CSV file"},
    {.name = "tensorboard_tags",
     .read = tp_config_read_u64,
     AT(tensorboard_tags),
     .max = 1e9,
     .fallback = "20000",
     .does = "tags in the TensorBoard files at most, 0: no limit; of further series each step has "
             "the smallest and largest value, under `others/`"},
    {.name = "append_output",
     .read = tp_config_read_stamps,
     AT(append_output),
     .type = "`[]`, or two times as in `[\"Dec03_21-34-40\", \"Dec03_21-34-41\"]`",
     .schema = "\"type\": \"array\", \"items\": {\"type\": \"string\", \"pattern\": "
               "\"^[A-Z][a-z]{2}[0-9]{2}_[0-9]{2}-[0-9]{2}-[0-9]{2}$\"}, \"maxItems\": 2",
     .fallback = "[]",
     .does = "go on in the latest directory of each rank from between these times, as another "
             "attempt; a rank without one gets a new one"},
    {.name = "module_ranks",
     .read = tp_config_read_ranks,
     .type = "list of ranks, or a text as in `\"0,1\"`",
     .schema = "\"anyOf\": [{\"type\": \"array\", \"items\": {\"type\": \"integer\", \"minimum\": "
               "0, \"maximum\": 16777215}}, {\"type\": \"string\", \"pattern\": \"^( *[0-9]+ *(, "
               "*[0-9]+ *)*)?$\"}]",
     .fallback = "[]",
     .does = "the ranks that are watched; `[]`: all"},
    {.name = "start_step",
     .read = tp_config_read_u64,
     AT(start_step),
     .max = STEP_MAX,
     .fallback = "0",
     .does = "the first step that is recorded"},
    {.name = "step_interval",
     .read = tp_config_read_u64,
     AT(step_interval),
     .min = 1,
     .max = STEP_MAX,
     .fallback = "1",
     .does = "record one step of so many"},
    {.name = "collect_times",
     .read = tp_config_read_u64,
     AT(collect_times),
     .max = STEP_MAX,
     .fallback = "100000000",
     .does = "record so many steps, then no more"},
    {.name = "string_prefix",
     .read = tp_config_read_bool,
     AT(string_prefix),
     .fallback = "false",
     .does = "a target takes every parameter whose name begins with it, as in both older "
             "tools: `layers.1` those of `layers.10`, too"},
    {.name = "squash_name",
     .read = tp_config_read_bool,
     AT(squash_name),
     .fallback = "false",
     .does = "shorten names to what stands behind wrappers and containers"},
    {.name = "dynamic_on",
     .read = tp_config_read_bool,
     AT(dynamic_on),
     .fallback = "false",
     .does = "with `DYNAMIC_MONITOR=true`, where this file is read again when it changes: record "
             "from the next step on; `false`: stop"},
    {.name = "print_struct",
     .read = tp_config_read_bool,
     AT(print_struct),
     .is_switch = true,
     .fallback = "false",
     .does = "print what each module takes and returns, from which targets can be copied"},
    {.name = "exit_after_struct",
     .read = tp_config_read_bool,
     AT(exit_after_struct),
     .fallback = "true",
     .does = "`print_struct` ends the training after the first step"},
    {.name = "alert",
     .read = tp_config_read_members,
     .nest = TP_NEST_OBJECT,
     .members = &alert_members,
     .does = "what to say when something goes wrong"},
    {.name = "database",
     .read = tp_config_read_database,
     AT(database),
     .nest = TP_NEST_OBJECT,
     .members = &tp_config_database_members,
     .fallback = "{}",
     .does = "a server to which a process beside the training carries all that is recorded"},
    {.name = "self_check",
     .read = tp_config_read_bool,
     AT(self_check),
     .fallback = "false",
     .does = "compare the norm of all reduced gradients with the one that the framework computed: "
             "one small all-reduce a step"},
    {.name = "replica_check",
     .read = tp_config_read_u64,
     AT(replica_check),
     .max = STEP_MAX,
     .fallback = "0",
     .does = "every so many steps compare the parameters that several ranks have, bit by bit, by "
             "one small all-gather; 0: never"},
    {.name = "budget",
     .read = tp_config_read_budget,
     AT(budget),
     .type = "a share or a time, as in `\"1%\"` or `\"5ms\"`",
     .schema =
         "\"type\": \"string\", \"pattern\": \"^(?=.*[1-9])(([0-9]{1,2}(\\\\.[0-9]+)?|100) *%|"
         "[0-9]+(\\\\.[0-9]+)? *(us|ms|s))$\"",
     .does = "what watching may take of each step in the training's thread: costly quantities are "
             "recorded in fewer steps to keep it; not given: all in every step"},
    {.name = "zoom",
     .read = tp_config_read_members,
     .nest = TP_NEST_OBJECT,
     .members = &zoom_members,
     .fallback = "{}",
     .does = "what to record in addition when something goes wrong: see "
             "[rules.md](rules.md#a-closer-look)"},
    {.name = "strict",
     .read = tp_config_read_bool,
     AT(strict),
     .fallback = "false",
     .does = "errors of the monitor itself end the training"},
    {.name = "journal",
     .read = tp_config_read_members,
     .nest = TP_NEST_OBJECT,
     .members = &journal_members,
     .does = "the file that everything else is made from"},
    {.name = "stack_info",
     .read = tp_config_read_unused_bool,
     .fallback = "false",
     .does = "where modules are called from",
     .ignored = "no call stack is recorded"},
    {.name = "l2_targets",
     .read = tp_config_read_any,
     .type = "object",
     .schema = "\"type\": \"object\"",
     .fallback = "{}",
     .does = "attention, linear and router layers for finer measurements",
     .ignored = "nothing but the statistics is recorded"},
    {.name = "recording_l2_features",
     .read = tp_config_read_unused_bool,
     .fallback = "false",
     .does = "switches `l2_targets` on",
     .ignored = "nothing but the statistics is recorded"},
    {.name = "sa_order",
     .read = tp_config_read_any,
     .type = "`\"s,b,h,d\"` or `\"b,s,h,d\"`",
     .schema = "\"type\": \"string\"",
     .does = "the order of an attention input's dimensions",
     .ignored = "nothing but the statistics is recorded"},
    {.name = "params_effrank",
     .read = tp_config_read_any,
     .type = "list of parameters",
     .schema = "\"type\": \"array\"",
     .fallback = "[]",
     .does = "the effective rank of parameters",
     .ignored = "no rank is computed"},
    {.name = "$schema",
     .read = tp_config_read_any,
     .type = "text",
     .schema = "\"type\": \"string\"",
     .does = "for editors: where the JSON Schema is"},
};
const tp_config_members tp_config_root_members = {root_fields, LENGTH(root_fields)};

/* Who configures a monitor that records nothing is told what to write. */
static void warn_of_nothing(const tp_config *config, const tp_config_text *text)
{
    char names[256] = "";
    for (size_t i = 0; i < LENGTH(root_fields); i++) {
        const tp_config_field *field = &root_fields[i];
        if (!field->is_switch || field->ignored != NULL) {
            continue;
        }
        if (*(const bool *)((const char *)config + field->offset)) {
            return;
        }
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", field->name);
    }
    tp_log(
        TP_LOG_WARNING,
        "%s: nothing is switched on, so that nothing will be recorded; set one of these to true: "
        "%s",
        text->source, names);
}

/* The quantities of which exponents are counted. */
static uint32_t exponents_of(const tp_config *config)
{
    uint32_t wanted = 0;
    for (uint32_t i = 0; i < config->rule_count; i++) {
        const tp_rule_config *rule = &config->rules[i];
        if (rule->rule == TP_RULE_OVERFLOW_SHARE ||
            (rule->rule == TP_RULE_UNDERFLOW_SHARE && rule->dtype != 0)) {
            wanted |= 1u << TP_ACTIVATION | 1u << TP_ACTIVATION_GRAD | 1u << TP_GRAD_UNREDUCED |
                      1u << TP_GRAD_REDUCED;
        }
    }
    for (uint32_t quantity = TP_ACTIVATION; quantity <= TP_EXP_AVG_SQ; quantity++) {
        wanted |= (uint32_t)config->all_exponents << quantity;
    }
    return wanted;
}

tp_status tp_config_read_fields(tp_config *config, json_t *root, const tp_config_text *text)
{
    const tp_place place = {NULL, NULL, 0};
    tp_status status = tp_config_read_object(text, &tp_config_root_members, root, &place, config);
    if (status != TP_OK) {
        return status;
    }
    if (config->dynamic_on || json_object_get(root, "dynamic_on") == NULL) {
        warn_of_nothing(config, text); /* else it waits until it is switched on */
    }
    if ((config->formats & TP_FORMAT_DATABASE) != 0) {
        config->formats &= ~TP_FORMAT_DATABASE;
        config->formats |= config->database.url != NULL ? TP_FORMAT_API : TP_FORMAT_SQLITE;
    }
    if (config->forward_only && config->backward_only) {
        tp_log(TP_LOG_WARNING,
               "%s: forward_only and backward_only exclude each other: no activations are recorded",
               text->source);
        config->xy_distribution = false;
    }
    config->exponents = exponents_of(config);
    if (json_object_get(root, "all_xy") == NULL) {
        /* Who names no module wants every module, who names some wants these. */
        config->all_xy = config->xy_distribution && config->targets == tp_config_everything;
    } else {
        config->integers = config->all_xy;
    }
    return TP_OK;
}
