/* `tensorprobe check`: is this configuration right, and what will it do? */
#include "tools/tool.h"

#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/text.h"
#include "config/config.h"
#include "config/schema.h"
#include "config/url.h"

static const char help[] =
    "usage: tensorprobe check [--watch] CONFIG\n"
    "       tensorprobe check --schema | --fields\n"
    "\n"
    "Reads and validates a configuration (JSON) as the monitor would. Prints `CONFIG: OK` and "
    "what\n"
    "it will do, and ends with 0; or prints the error as FILE:LINE:COLUMN: FIELD: MESSAGE and "
    "ends\n"
    "with 1. What is read otherwise than it is written, and what this version does not act on, is\n"
    "named in warnings.\n"
    "\n"
    "  --watch   over the defaults of tensorprobe.watch() instead of TrainerMon's\n"
    "  --schema  print a JSON Schema of the configuration, for editors\n"
    "  --fields  print every field: what to write, its defaults, what it does\n"
    "  --help    this text\n";

static const char *kind_of(const tp_target *target)
{
    switch (tp_pattern_kind_of(target->name)) {
    case TP_PATTERN_GLOB:
        return " (a glob)";
    case TP_PATTERN_REGEX:
        return " (a regular expression)";
    default:
        return "";
    }
}

static void print_targets(const tp_config *config)
{
    if (config->target_count == 1 && config->targets[0].name[0] == '\0') {
        puts("watches every module and every parameter");
        return;
    }
    printf("watches");
    for (uint32_t i = 0; i < config->target_count && i < 4; i++) {
        printf("%s \"%s\"%s", i > 0 ? "," : "", config->targets[i].name,
               kind_of(&config->targets[i]));
    }
    if (config->target_count > 4) {
        printf(" and %" PRIu32 " more", config->target_count - 4);
    }
    puts(config->string_prefix ? ", and every parameter whose name begins so" : "");
}

static void print_ranks(const tp_config *config)
{
    if (config->module_rank_count == 0 || !tp_config_acts_on("module_ranks")) {
        return;
    }
    printf("on rank");
    for (uint32_t i = 0; i < config->module_rank_count && i < 8; i++) {
        printf("%s %" PRIu32, i > 0 ? "," : "", config->module_ranks[i]);
    }
    puts(config->module_rank_count > 8 ? " and more" : "");
}

static void print_steps(const tp_config *config)
{
    uint64_t interval = tp_config_acts_on("step_interval") ? config->step_interval : 1;
    if (interval == 1) {
        printf("in every step");
    } else {
        printf("in one step of %" PRIu64, interval);
    }
    if (config->start_step > 0 && tp_config_acts_on("start_step")) {
        printf(", from step %" PRIu64 " on", config->start_step);
    }
    if (config->collect_times < 100000000 && tp_config_acts_on("collect_times")) {
        printf(", %" PRIu64 " time%s", config->collect_times, tp_plural(config->collect_times));
    }
    puts("");
    if (config->dynamic_on) {
        puts("begins with DYNAMIC_MONITOR=true in the step after this file has changed");
    }
}

/* Returns how often that reads the memory of what it names, in a step. */
static int print_recorded(const char *what, bool is_on, int reads)
{
    if (is_on) {
        printf("  %s\n", what);
    }
    return is_on ? reads : 0;
}

static void print_quantities(const tp_config *config)
{
    bool xy = config->xy_distribution;
    int reads = 0;
    puts("records");
    print_recorded(config->all_xy ? "activations of all modules" : "activations of the targets",
                   xy && !config->backward_only, 0);
    print_recorded(config->all_xy ? "activation gradients of all modules"
                                  : "activation gradients of the targets",
                   xy && !config->forward_only, 0);
    reads += print_recorded("parameter gradients", config->wg_distribution, 1);
    reads += print_recorded("parameters before and after the optimizer's step",
                            config->param_distribution, 2);
    reads += print_recorded("the optimizer's moments", config->mv_distribution, 2);
    reads += print_recorded("Adam's update and ratio", config->ur_distribution, 2);
    reads += print_recorded("agreement of gradients and moments", config->mg_direction, 2);
    if (!xy && reads == 0) {
        puts("  nothing");
        return;
    }
    printf("which costs a step");
    if (reads > 0) {
        printf(" %d read%s of all watched parameters' memory%s", reads, tp_plural((uint64_t)reads),
               xy ? " and" : "");
    }
    puts(xy ? " one read of each activation and gradient that is recorded" : "");
}

static void print_ops(const tp_config *config)
{
    for (uint32_t i = 0; i < config->op_count; i++) {
        printf("%s %s", i > 0 ? "," : "", tp_op_name(config->ops[i]));
    }
}

static void print_files(const tp_config *config)
{
    puts("keeps all statistics in the journal");
    if ((config->formats & TP_FORMAT_CSV) != 0) {
        printf("writes csv files of %" PRIu64 " step%s", config->step_count_per_record,
               tp_plural(config->step_count_per_record));
        if (config->ndigits > 0) {
            printf(" with %" PRIu32 " decimals:", config->ndigits);
        } else {
            printf(" with exact numbers:");
        }
        print_ops(config);
        puts("");
        if (config->step_count_per_record == 1) {
            puts("  which makes a file of every step and quantity; \"step_count_per_record\": 1000 "
                 "puts 1000 steps into one");
        }
    }
    if ((config->formats & TP_FORMAT_SQLITE) != 0) {
        puts("writes an SQLite database with all statistics");
    }
    if ((config->formats & TP_FORMAT_TENSORBOARD) != 0) {
        printf("writes event files for TensorBoard:");
        print_ops(config);
        puts("");
    }
}

/* A URL without its secrets, or what stands for it. */
static void print_url(const char *text)
{
    char shown[512];
    tp_url url;
    if (tp_secret_is_elsewhere(text) || tp_url_parse(&url, text, NULL) != TP_OK) {
        snprintf(shown, sizeof shown, "%s", tp_secret_is_elsewhere(text) ? text : "a server");
    } else {
        tp_url_describe(&url, shown, sizeof shown);
        tp_url_free(&url);
    }
    printf("%s", shown);
}

static void print_database(const tp_database_config *database)
{
    if (database->url == NULL) {
        return;
    }
    printf("carries them to ");
    print_url(database->url);
    printf(", beside the training:");
    if (database->step_interval > 0) {
        const tp_texts *targets = &database->selection.targets;
        for (uint32_t i = 0; i < targets->count; i++) {
            printf("%s%s", i == 0 ? " of " : ", ", targets->items[i]);
        }
        printf("%s every ", targets->count == 0 ? " of all" : "");
        if (database->step_interval > 1) {
            printf("%" PRIu64 " steps", database->step_interval);
        } else {
            printf("step");
        }
    }
    if (database->rollup_steps > 0) {
        printf("%s a summary of every series each %" PRIu64 " step%s",
               database->step_interval > 0 ? ", and" : "", database->rollup_steps,
               tp_plural(database->rollup_steps));
    }
    puts("");
}

static void print_inform(const tp_inform_config *inform)
{
    switch (inform->recipient) {
    case TP_INFORM_DATABASE:
        printf("tells a database (");
        print_url(inform->connection_str);
        puts(") of alerts");
        break;
    case TP_INFORM_EMAIL:
        printf("tells %s of alerts by mail\n", inform->receive_email_address);
        break;
    case TP_INFORM_COMMAND:
        printf("tells the program %s of alerts\n", inform->command.items[0]);
        break;
    case TP_INFORM_WEBHOOK:
        printf("tells ");
        print_url(inform->url);
        puts(" of alerts");
        break;
    default:
        break;
    }
}

static void print_rule(const tp_rule_config *rule)
{
    switch (rule->rule) {
    case TP_RULE_ANOMALY_NAN:
        printf("a value is NaN");
        if (!isnan(rule->threshold)) {
            printf(" or its magnitude is above %g", rule->threshold);
        }
        break;
    case TP_RULE_ANOMALY_TURBULENCE:
        if (rule->mode == TP_MODE_COMPAT) {
            printf("a norm or mean is above its moving mean by more than %g %%",
                   100 * rule->threshold);
        } else if (rule->mode == TP_MODE_FACTOR) {
            printf("a norm is %g times its mean, or the mean %g times the norm, after %" PRIu64
                   " value%s",
                   rule->threshold, rule->threshold, rule->min_samples,
                   tp_plural(rule->min_samples));
        } else {
            printf("a value is off its mean by more than %g %%, after %" PRIu64 " value%s",
                   100 * rule->threshold, rule->min_samples, tp_plural(rule->min_samples));
        }
        break;
    case TP_RULE_EXPLODING:
    case TP_RULE_LOSS_SPIKE:
        printf("a %s is %g standard deviations above the median of its last %" PRIu32
               ", after %" PRIu64 " value%s",
               rule->rule == TP_RULE_EXPLODING ? "norm" : "logged number", rule->threshold,
               rule->window, rule->min_samples, tp_plural(rule->min_samples));
        break;
    case TP_RULE_VANISHING:
        printf("a norm is below 1/%g of the median of its last %" PRIu32 ", after %" PRIu64
               " value%s",
               rule->threshold, rule->window, rule->min_samples, tp_plural(rule->min_samples));
        break;
    case TP_RULE_ALL_ZERO:
        printf("%g %% of an activation or gradient are 0 for %" PRIu64 " step%s",
               100 * rule->threshold, rule->min_samples, tp_plural(rule->min_samples));
        break;
    case TP_RULE_UNCHANGED_TENSOR:
        printf("a parameter doesn't change for %" PRIu64 " step%s", rule->min_samples,
               tp_plural(rule->min_samples));
        break;
    case TP_RULE_GRAD_NORM_SPIKE:
        printf("the norm of all gradients is %g standard deviations above the median of its last "
               "%" PRIu32 ", after %" PRIu64 " value%s",
               rule->threshold, rule->window, rule->min_samples, tp_plural(rule->min_samples));
        break;
    case TP_RULE_VARIANCE_BOUNDS:
        printf("a standard deviation is %g times, or 1/%g of, the median of its last %" PRIu32
               ", after %" PRIu64 " value%s",
               rule->threshold, rule->threshold, rule->window, rule->min_samples,
               tp_plural(rule->min_samples));
        break;
    case TP_RULE_WEIGHT_UPDATE_RATIO:
        printf("a step changes a parameter's norm by more than %g %%, and ten times the usual, "
               "after %" PRIu64 " step%s",
               100 * rule->threshold, rule->min_samples, tp_plural(rule->min_samples));
        break;
    case TP_RULE_STALLED_STEP:
        printf("no step ends for %g s", rule->threshold);
        break;
    case TP_RULE_REPLICA_DRIFT:
        printf("ranks have different values of the same parameter (replica_check; analyse)");
        break;
    case TP_RULE_COMM_STRAGGLER:
        printf("a rank was waited for in more than %g %% of the time of %" PRIu32
               " steps (backtest)",
               100 * rule->threshold, rule->window);
        break;
    default:
        printf("%s passes %g for %" PRIu64 " step%s", tp_rule_name(rule->rule), rule->threshold,
               rule->min_samples, tp_plural(rule->min_samples));
        break;
    }
    for (uint32_t i = 0; i < rule->selection.targets.count; i++) {
        printf("%s%s", i == 0 ? " (of " : ", ", rule->selection.targets.items[i]);
    }
    puts(rule->selection.targets.count > 0 ? ")" : "");
}

static void print_rules(const tp_config *config)
{
    for (uint32_t i = 0; i < config->rule_count; i++) {
        printf("raises an alert when ");
        print_rule(&config->rules[i]);
    }
    if (config->rule_count == 0) {
        puts("raises no alerts");
    } else if (config->alert_dump) {
        puts("writes alerts to anomaly_detected/rank<R>/anomaly.json");
    }
}

static void print_endings(const tp_config *config)
{
    if (config->print_struct && tp_config_acts_on("print_struct")) {
        puts(config->exit_after_struct
                 ? "prints what the modules pass around in the first step, and ends the training"
                 : "prints what the modules pass around in the first step");
    }
    if (config->strict) {
        puts("ends the training when the monitor itself fails");
    }
}

static int check(const char *path, bool watch)
{
    tp_config config;
    tp_error error = {0};
    tp_config_defaults(&config, watch);
    if (tp_config_read(&config, path, &error) != TP_OK) {
        return tp_tool_failed("check", &error);
    }
    printf("%s: OK\n", path);
    print_targets(&config);
    print_ranks(&config);
    print_steps(&config);
    print_quantities(&config);
    print_files(&config);
    print_database(&config.database);
    print_rules(&config);
    print_inform(&config.inform);
    print_endings(&config);
    tp_config_free(&config);
    return TP_EXIT_OK;
}

static int print(void (*write_text)(tp_buf *))
{
    tp_buf text = TP_BUF_INIT;
    tp_error error = {0};
    write_text(&text);
    bool failed = text.failed;
    if (!failed) {
        fwrite(text.data, 1, text.size, stdout);
    }
    tp_buf_free(&text);
    if (failed) {
        tp_fail(&error, TP_ERR_NOMEM, "no memory");
        return tp_tool_failed("check", &error);
    }
    return TP_EXIT_OK;
}

int tp_tool_check(int argc, char **argv)
{
    static const struct option options[] = {{"watch", no_argument, NULL, 'w'},
                                            {"schema", no_argument, NULL, 's'},
                                            {"fields", no_argument, NULL, 'f'},
                                            TP_TOOL_HELP,
                                            {NULL, 0, NULL, 0}};
    void (*write_text)(tp_buf *) = NULL;
    bool watch = false;
    int result = TP_EXIT_OK;
    int letter;
    while ((letter = tp_tool_option(argc, argv, options, help, &result)) > 0) {
        watch = watch || letter == 'w';
        write_text = letter == 's'   ? tp_config_write_schema
                     : letter == 'f' ? tp_config_write_table
                                     : write_text;
    }
    if (letter < 0) {
        return result;
    }
    if (write_text != NULL && optind == argc && !watch) {
        return print(write_text);
    }
    if (write_text != NULL || optind != argc - 1) {
        return tp_tool_usage(argv[0]);
    }
    return check(argv[optind], watch);
}
