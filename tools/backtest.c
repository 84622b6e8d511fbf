/* `tensorprobe backtest`: what would these rules have said to that run? */
#include "tools/tool.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "cause/incidents.h"
#include "cause/order.h"
#include "journal/find.h"
#include "monitor/rule_options.h"
#include "tensorprobe/reader.h"
#include "tools/backtest_ranks.h"
#include "tools/calls.h"

#define EXAMPLES 3 /* shown of each rule and journal */

static const char help[] =
    "usage: tensorprobe backtest RULES DIRECTORY…\n"
    "\n"
    "Runs the alert.rules of the configuration file RULES over what was recorded in DIRECTORY (a\n"
    "rank's, a run's, or one with many runs), and prints for each rule how often it would have\n"
    "fired, and where first; then the incidents that the alerts would have made. ReplicaDrift and\n"
    "CommStraggler are run over all ranks of a run together. Nothing is written.\n"
    "\n"
    "  --list  instead, for programs: a line for each step with alerts (\"alerts\", journal, "
    "step,\n"
    "          number of alerts, and rule, quantity and name of the first three in the order of\n"
    "          the step) and for each incident that begins (\"incident\", journal, step, severity, "
    "cause,\n"
    "          rule, quantity, name), with tabs in between\n"
    "  --help  this text\n";

/* One rule's doings in a journal. */
typedef struct score {
    uint64_t alerts;
    uint64_t steps; /* that have some */
    uint64_t last_step;
} score;

/* A journal on its way through the rules. Keys get numbers of our own: those of a journal change
 * from one attempt of the run to the next. */
typedef struct backtest {
    tp_reader *reader;
    tp_registry *registry;
    tp_rules *rules;
    tp_incidents *incidents;
    const char *directory;
    bool list; /* for programs */
    uint64_t incident_count;
    uint64_t segment; /* of which the numbers are known */
    tp_buf numbers;   /* uint32_t for each key of the segment: ours, plus one; 0: not known yet */
    tp_buf records, alerts;
    uint64_t steps, values;
    score scores[TP_RULE_COUNT + 1]; /* by the number of the rule */
} backtest;

static tp_status our_number(backtest *test, uint32_t key, uint32_t *number)
{
    while (test->numbers.size / sizeof *number <= key) {
        tp_buf_put_u32(&test->numbers, 0);
        if (test->numbers.failed) {
            return TP_ERR_NOMEM;
        }
    }
    uint32_t *known = (uint32_t *)(void *)test->numbers.data + key;
    if (*known == 0) {
        tp_status status =
            tp_registry_add_key(test->registry, tp_reader_key(test->reader, key), number);
        if (status != TP_OK) {
            return status;
        }
        *known = *number + 1;
    }
    *number = *known - 1;
    return TP_OK;
}

/* The step's records, with keys of ours; those without a name are left out. */
static tp_status take_records(backtest *test, const tp_batch *batch)
{
    tp_buf_clear(&test->records);
    for (uint64_t i = 0; i < batch->count; i++) {
        tp_record record = batch->records[i];
        if (tp_reader_key(test->reader, record.key) == NULL) {
            continue;
        }
        tp_status status = our_number(test, record.key, &record.key);
        uint32_t ndim;
        const int64_t *dims = tp_reader_shape(test->reader, record.shape, &ndim);
        if (status == TP_OK && dims != NULL) {
            status = tp_registry_add_shape(test->registry, ndim, dims, &record.shape);
        }
        if (status != TP_OK) {
            return status;
        }
        tp_buf_put(&test->records, &record, sizeof record);
    }
    return test->records.failed ? TP_ERR_NOMEM : TP_OK;
}

static void print_alert(const backtest *test, uint64_t step, const tp_record *fired)
{
    const tp_key *key = tp_registry_key(test->registry, fired->key);
    char name[256];
    char what[TP_ALERT_TEXT];
    tp_row_name(key, fired->call, name, sizeof name);
    tp_alert_describe(&fired->u.alert, what, sizeof what);
    printf("  %s, step %" PRIu64 ": %s (%s): %s\n", tp_rule_name(fired->u.alert.rule), step,
           name[0] != '\0' ? name : "the root module", tp_quantity_name(key->quantity), what);
}

static void name_of(const backtest *test, const tp_record *record, char *text, size_t size,
                    const char **quantity)
{
    const tp_key *key = tp_registry_key(test->registry, record->key);
    tp_row_name(key, record->call, text, size);
    *quantity = tp_quantity_name(key->quantity);
}

static int compare(const backtest *test, const tp_batch *batch, const tp_record *a,
                   const tp_record *b)
{
    const tp_moment first = tp_moment_of(batch, a, tp_registry_key(test->registry, a->key));
    const tp_moment second = tp_moment_of(batch, b, tp_registry_key(test->registry, b->key));
    return tp_moment_compare(&first, &second);
}

/* The first ones in the order of the step, one a series. */
static void list_alerts(const backtest *test, const tp_batch *batch, const tp_record *fired,
                        uint64_t count)
{
    const tp_record *last = NULL;
    printf("alerts\t%s\t%" PRIu64 "\t%" PRIu64, test->directory, batch->step, count);
    for (uint32_t n = 0; n < EXAMPLES; n++) {
        const tp_record *next = NULL;
        for (uint64_t i = 0; i < count; i++) {
            if ((last == NULL || compare(test, batch, &fired[i], last) > 0) &&
                (next == NULL || compare(test, batch, &fired[i], next) < 0)) {
                next = &fired[i];
            }
        }
        if (next == NULL) {
            break;
        }
        const char *quantity;
        char name[1024];
        name_of(test, next, name, sizeof name, &quantity);
        printf("\t%s\t%s\t%s", tp_rule_name(next->u.alert.rule), quantity, name);
        last = next;
    }
    puts("");
}

static void tell_incident(backtest *test, uint64_t step, const tp_record *record)
{
    const tp_incident *incident = &record->u.incident;
    const tp_key *key = tp_registry_key(test->registry, record->key);
    char text[TP_INCIDENT_TEXT];
    const char *quantity;
    if (incident->state != TP_INCIDENT_BEGINS) {
        return;
    }
    test->incident_count++;
    if (test->list) {
        name_of(test, record, text, sizeof text, &quantity);
        printf("incident\t%s\t%" PRIu64 "\t%s\t%s\t%s\t%s\t%s\n", test->directory, step,
               tp_severity_name(incident->severity), tp_cause_name(incident->cause),
               tp_rule_name(incident->rule), quantity, text);
    } else if (test->incident_count <= EXAMPLES) {
        tp_incident_describe(record, key, tp_registry_key(test->registry, incident->witness), text,
                             sizeof text);
        printf("  incident %" PRIu32 ", step %" PRIu64 ": %s\n", incident->number, step, text);
    }
}

static tp_status check_step(backtest *test, const tp_batch *batch)
{
    tp_status status = take_records(test, batch);
    if (status != TP_OK) {
        return status;
    }
    tp_batch step = *batch;
    step.records = (const void *)test->records.data;
    step.count = test->records.size / sizeof(tp_record);
    test->steps++;
    test->values += step.count;
    tp_buf_clear(&test->alerts);
    status = tp_rules_check(test->rules, &step, &test->alerts);
    const uint64_t count = test->alerts.size / sizeof(tp_record);
    if (status == TP_OK) {
        status = tp_incidents_update(test->incidents, &step, &test->alerts);
    }
    const tp_record *fired = (const void *)test->alerts.data;
    if (status == TP_OK && test->list && count > 0) {
        list_alerts(test, &step, fired, count);
    }
    for (uint64_t i = count; status == TP_OK && i < test->alerts.size / sizeof *fired; i++) {
        tell_incident(test, batch->step, &fired[i]);
    }
    for (uint64_t i = 0; status == TP_OK && i < count; i++) {
        score *of_rule = &test->scores[fired[i].u.alert.rule];
        bool new_step = of_rule->alerts == 0 || of_rule->last_step != batch->step;
        of_rule->alerts++;
        of_rule->steps += new_step;
        of_rule->last_step = batch->step;
        if (new_step && of_rule->steps <= EXAMPLES && !test->list) {
            print_alert(test, batch->step, &fired[i]);
        }
    }
    return status;
}

static tp_status read_journal(backtest *test, tp_error *error)
{
    for (;;) {
        tp_item item;
        tp_status status = tp_reader_next(test->reader, &item, error);
        if (status == TP_END) {
            return TP_OK;
        }
        if (status == TP_ERR_CORRUPT) {
            char text[1024];
            fprintf(stderr, "%s\n", tp_error_format(error, text, sizeof text));
            continue;
        }
        if (status != TP_OK) {
            return status;
        }
        if (item.position.segment != test->segment) {
            test->segment = item.position.segment;
            tp_buf_clear(&test->numbers);
        }
        if (item.type == TP_ITEM_BATCH && item.batch.records != NULL) {
            status = check_step(test, &item.batch);
        }
        if (status != TP_OK) {
            return tp_fail(error, status, "no memory");
        }
    }
}

static tp_status run_rules(const tp_config *config, const char *directory, bool list, score *total,
                           uint64_t *steps, tp_error *error)
{
    tp_rule_options options[TP_MAX_RULES];
    backtest test = {.segment = UINT64_MAX, .directory = directory, .list = list};
    for (uint32_t i = 0; i < config->rule_count; i++) {
        options[i] = tp_rule_options_of(&config->rules[i]);
    }
    tp_status status = tp_reader_open(&test.reader, directory, error);
    if (status == TP_OK && (tp_registry_new(&test.registry) != TP_OK ||
                            tp_rules_new(&test.rules, options, config->rule_count, config->ops,
                                         config->op_count, test.registry) != TP_OK ||
                            tp_incidents_new(&test.incidents, test.registry) != TP_OK)) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory");
    }
    if (status == TP_OK) {
        if (!list) {
            printf("%s\n", directory);
        }
        status = read_journal(&test, error);
        if (!list) {
            printf("  %" PRIu64 " incident%s\n", test.incident_count,
                   tp_plural(test.incident_count));
            printf("  %" PRIu64 " step%s, %" PRIu64 " value%s\n", test.steps, tp_plural(test.steps),
                   test.values, tp_plural(test.values));
        }
    }
    for (uint32_t i = 0; i <= TP_RULE_COUNT; i++) {
        total[i].alerts += test.scores[i].alerts;
        total[i].steps += test.scores[i].steps;
    }
    *steps += test.steps;
    tp_rules_free(test.rules);
    tp_incidents_free(test.incidents);
    tp_registry_free(test.registry);
    tp_reader_close(&test.reader);
    tp_buf_free(&test.numbers);
    tp_buf_free(&test.records);
    tp_buf_free(&test.alerts);
    return status;
}

static tp_status run_all(const tp_config *config, char **directories, int count, bool list,
                         score *total, uint64_t *steps, tp_error *error)
{
    tp_ranks_score between[TP_RULE_COUNT + 1] = {{0, 0}};
    tp_journals journals = {NULL, 0};
    tp_status status = tp_tool_find_all(directories, count, &journals, error);
    for (uint32_t i = 0; status == TP_OK && i < journals.count; i++) {
        status = run_rules(config, journals.directories[i], list, total, steps, error);
    }
    if (status == TP_OK) {
        status = tp_backtest_ranks(config, &journals, list, between, error);
    }
    for (uint32_t i = 0; i <= TP_RULE_COUNT; i++) {
        total[i].alerts += between[i].alerts;
        total[i].steps += between[i].steps;
    }
    tp_journals_free(&journals);
    return status;
}

static void print_scores(const tp_config *config, const score *total, uint64_t steps)
{
    bool said[TP_RULE_COUNT + 1] = {false};
    for (uint32_t i = 0; i < config->rule_count; i++) {
        uint32_t rule = config->rules[i].rule;
        if (!said[rule]) {
            said[rule] = true;
            printf("%s: %" PRIu64 " alert%s in %" PRIu64 " of %" PRIu64 " step%s\n",
                   tp_rule_name(rule), total[rule].alerts, tp_plural(total[rule].alerts),
                   total[rule].steps, steps, tp_plural(steps));
        }
    }
}

int tp_tool_backtest(int argc, char **argv)
{
    static const struct option options[] = {
        {"list", no_argument, NULL, 'l'}, TP_TOOL_HELP, {NULL, 0, NULL, 0}};
    bool list = false;
    int letter;
    int result = TP_EXIT_OK;
    score total[TP_RULE_COUNT + 1] = {{0, 0, 0}};
    uint64_t steps = 0;
    tp_config config;
    tp_error error = {0};
    while ((letter = tp_tool_option(argc, argv, options, help, &result)) != 0) {
        if (letter < 0) {
            return result;
        }
        list = true;
    }
    if (argc - optind < 2) {
        return tp_tool_usage(argv[0]);
    }
    tp_config_defaults(&config, false);
    tp_status status = tp_config_read(&config, argv[optind], &error);
    if (status != TP_OK) {
        return tp_tool_failed(argv[0], &error);
    }
    if (config.rule_count == 0) {
        status = tp_fail(&error, TP_ERR_CONFIG,
                         "%s has no rules; write \"alert\": {\"rules\": [{\"rule_name\": "
                         "\"AnomalyNan\"}]}",
                         argv[optind]);
    }
    if (status == TP_OK) {
        status =
            run_all(&config, argv + optind + 1, argc - optind - 1, list, total, &steps, &error);
    }
    if (status == TP_OK && !list) {
        print_scores(&config, total, steps);
    }
    tp_config_free(&config);
    return status == TP_OK ? TP_EXIT_OK : tp_tool_failed(argv[0], &error);
}
