#include "tools/backtest_ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "arrow/drift.h"
#include "base/error.h"
#include "base/mem.h"
#include "monitor/rule_options.h"
#include "tensorprobe/reader.h"
#include "view/timing.h"

/* The ranks of one run. */
typedef struct ranks {
    const tp_config *config;
    tp_journals journals; /* its texts are borrowed */
    uint64_t first_step;
    uint64_t last_step;
    bool list;
    tp_ranks_score *scores;
} ranks;

static tp_status find_drift(const ranks *run, const tp_rule_config *rule, tp_error *error)
{
    const tp_rule_options options = tp_rule_options_of(rule);
    const tp_drift_options wanted = {(const char *const *)run->journals.directories,
                                     run->journals.count, options.applies, options.context};
    tp_drift found;
    tp_status status = tp_drift_find(&wanted, &found, error);
    if (status != TP_OK) {
        return status == TP_END ? TP_OK : status;
    }
    const char *quantity = tp_quantity_name(found.quantity);
    run->scores[TP_RULE_REPLICA_DRIFT].alerts += found.parameters;
    run->scores[TP_RULE_REPLICA_DRIFT].steps++;
    if (run->list) {
        const char *directory = run->journals.directories[0];
        printf("alerts\t%s\t%" PRIu64 "\t%" PRIu64 "\tReplicaDrift\t%s\t%s\n", directory,
               found.step, found.parameters, quantity, found.name);
        printf("incident\t%s\t%" PRIu64 "\twarning\tunknown\tReplicaDrift\t%s\t%s\n", directory,
               found.step, quantity, found.name);
    } else {
        printf("  ReplicaDrift, step %" PRIu64 ": %s (%s) of rank %" PRIu32
               " isn't that of rank %" PRIu32 "; %" PRIu64
               " of them differ in this step, and from then on nothing is compared\n",
               found.step, found.name, quantity, found.rank, found.other, found.parameters);
    }
    return TP_OK;
}

/* From the first call of these steps to the last one, on the lowest rank. */
static double seconds_of(const tp_calls *calls)
{
    uint64_t first = UINT64_MAX;
    uint64_t last = 0;
    const uint32_t rank = tp_calls_rank(calls, 0)->rank;
    for (uint64_t i = 0; i < calls->count; i++) {
        const tp_call *call = tp_calls_at(calls, i);
        if (call->rank == rank) {
            const uint64_t end = call->call.issue_ns + call->call.done_ns;
            first = call->call.issue_ns < first ? call->call.issue_ns : first;
            last = end > last ? end : last;
        }
    }
    return last > first ? (double)(last - first) * 1e-9 : 0;
}

static void judge_window(const ranks *run, const tp_rule_config *rule, const tp_calls *calls,
                         const tp_straggling *all, uint64_t first, uint64_t last)
{
    const double seconds = seconds_of(calls);
    for (uint32_t i = 0; i < calls->rank_count; i++) {
        const tp_straggling *one = &all[i];
        const double share = seconds > 0 ? one->delay / seconds : 0;
        if (one->calls < rule->min_samples || share <= rule->threshold) {
            continue;
        }
        run->scores[TP_RULE_COMM_STRAGGLER].alerts++;
        run->scores[TP_RULE_COMM_STRAGGLER].steps += last - first + 1;
        if (run->list) {
            printf("alerts\t%s\t%" PRIu64 "\t1\tCommStraggler\tcomm\trank %" PRIu32 "\n",
                   run->journals.directories[0], first, one->rank);
        } else {
            printf("  CommStraggler, steps %" PRIu64 " to %" PRIu64 ": rank %" PRIu32
                   " was waited for in %.1f %% of the time; it came last to %" PRIu64 " of %" PRIu64
                   " collectives\n",
                   first, last, one->rank, 100 * share, one->last, one->calls);
        }
    }
}

/* So many steps at a time: clocks drift. */
static tp_status find_stragglers(const ranks *run, const tp_rule_config *rule, tp_error *error)
{
    tp_status status = TP_OK;
    for (uint64_t first = run->first_step; status == TP_OK && first <= run->last_step;
         first += rule->window) {
        const uint64_t end = first + rule->window - 1;
        const uint64_t last = end < run->last_step ? end : run->last_step;
        tp_calls calls = {.count = 0};
        tp_buf straggling = TP_BUF_INIT;
        status = tp_calls_load(&calls, &run->journals, first, last, error);
        if (status == TP_OK && calls.count > 0) {
            status = tp_straggling_of(&calls, &straggling, NULL);
            if (status == TP_OK) {
                judge_window(run, rule, &calls, (const void *)straggling.data, first, last);
            } else {
                tp_fail(error, status, "no memory");
            }
        }
        tp_buf_free(&straggling);
        tp_calls_free(&calls);
    }
    return status;
}

static tp_status judge_run(const ranks *run, tp_error *error)
{
    tp_status status = TP_OK;
    for (uint32_t i = 0; status == TP_OK && i < run->config->rule_count; i++) {
        const tp_rule_config *rule = &run->config->rules[i];
        if (rule->rule == TP_RULE_REPLICA_DRIFT) {
            status = find_drift(run, rule, error);
        } else if (rule->rule == TP_RULE_COMM_STRAGGLER) {
            status = find_stragglers(run, rule, error);
        }
    }
    return status;
}

/* The first and the last step of a journal. */
static tp_status find_steps(tp_reader *reader, uint64_t *first, uint64_t *last, tp_error *error)
{
    tp_item item;
    tp_status status;
    tp_reader_limit(reader, 0, UINT64_MAX, true);
    while ((status = tp_reader_next(reader, &item, error)) == TP_OK || status == TP_ERR_CORRUPT) {
        if (status == TP_OK && item.type == TP_ITEM_BATCH) {
            *first = item.batch.step < *first ? item.batch.step : *first;
            *last = item.batch.step > *last ? item.batch.step : *last;
        }
    }
    return status == TP_END ? TP_OK : status;
}

/* The journals from number `from` on that are of its run, in the order of the list; those that have
 * been taken are marked. */
static tp_status take_run(const tp_journals *journals, uint32_t from, bool *taken, ranks *run,
                          tp_error *error)
{
    char run_id[sizeof((tp_run_info){0}.run_id)] = "";
    tp_status status = TP_OK;
    run->journals.count = 0;
    run->first_step = UINT64_MAX;
    run->last_step = 0;
    for (uint32_t i = from; status == TP_OK && i < journals->count; i++) {
        tp_reader *reader = NULL;
        if (taken[i]) {
            continue;
        }
        status = tp_reader_open(&reader, journals->directories[i], error);
        if (status != TP_OK) {
            break;
        }
        const tp_run_info *info = tp_reader_run(reader);
        if (i == from) {
            snprintf(run_id, sizeof run_id, "%s", info->run_id);
        }
        if (strcmp(run_id, info->run_id) == 0) {
            taken[i] = true;
            run->journals.directories[run->journals.count++] = journals->directories[i];
            status = find_steps(reader, &run->first_step, &run->last_step, error);
        }
        tp_reader_close(&reader);
    }
    return status;
}

static bool has_rule_of_ranks(const tp_config *config)
{
    bool found = false;
    for (uint32_t i = 0; i < config->rule_count; i++) {
        const uint32_t rule = config->rules[i].rule;
        found |= rule == TP_RULE_REPLICA_DRIFT || rule == TP_RULE_COMM_STRAGGLER;
    }
    return found;
}

tp_status tp_backtest_ranks(const tp_config *config, const tp_journals *journals, bool list,
                            tp_ranks_score *scores, tp_error *error)
{
    if (journals->count < 2 || !has_rule_of_ranks(config)) {
        return TP_OK;
    }
    tp_status status = TP_OK;
    ranks run = {.config = config, .list = list, .scores = scores};
    bool *taken = tp_calloc(journals->count, sizeof *taken);
    run.journals.directories = tp_calloc(journals->count, sizeof *run.journals.directories);
    if (taken == NULL || run.journals.directories == NULL) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory");
    }
    for (uint32_t i = 0; status == TP_OK && i < journals->count; i++) {
        if (taken[i]) {
            continue;
        }
        status = take_run(journals, i, taken, &run, error);
        if (status == TP_OK && run.journals.count > 1) {
            if (!list) {
                printf("between the %" PRIu32 " ranks of %s\n", run.journals.count,
                       run.journals.directories[0]);
            }
            status = judge_run(&run, error);
        }
    }
    tp_free(taken);
    tp_free(run.journals.directories);
    return status;
}
