/* Incidents of several ranks, and of journals that have none, as the pages get them. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cause/incidents.h"
#include "journal/writer.h"
#include "view/causes.h"

/* A rank's journal that is written, alerts and all. */
typedef struct rank {
    char directory[64];
    tp_registry *registry;
    tp_incidents *incidents; /* NULL: as older journals are */
    tp_journal *journal;
    uint32_t number;
} rank;

static void open_rank(rank *r, uint32_t number, bool is_older)
{
    const tp_run_info info = {.run_id = "run", .rank = number, .start_wall_ns = 1};
    *r = (rank){.number = number};
    snprintf(r->directory, sizeof r->directory, "/tmp/test_view_causes-XXXXXX");
    assert_non_null(mkdtemp(r->directory));
    assert_int_equal(tp_registry_new(&r->registry), TP_OK);
    if (!is_older) {
        assert_int_equal(tp_incidents_new(&r->incidents, r->registry), TP_OK);
    }
    /* Every step is a segment of its own: numbers of keys begin anew. */
    assert_int_equal(tp_journal_open(&r->journal, r->directory, &info, r->registry, 1, NULL),
                     TP_OK);
}

static void close_rank(rank *r)
{
    char command[96];
    tp_journal_close(&r->journal, NULL);
    tp_incidents_free(r->incidents);
    tp_registry_free(r->registry);
    snprintf(command, sizeof command, "rm -r %s", r->directory);
    assert_int_equal(system(command), 0);
}

typedef struct tensor {
    const char *name;
    uint32_t quantity;
    uint32_t rule; /* that fires; 0: none */
} tensor;

/* A step of these tensors, in the order in which they were recorded. */
static void step(rank *r, uint64_t number, const tensor *tensors, uint64_t count)
{
    tp_record records[8] = {0};
    tp_buf alerts = TP_BUF_INIT;
    const tp_batch batch = {.step = number,
                            .rank = r->number,
                            .pp_stage = -1,
                            .micro_steps = 1,
                            .count = count,
                            .records = records};
    for (uint64_t i = 0; i < count; i++) {
        const float x[2] = {1, tensors[i].rule == TP_RULE_ANOMALY_NAN ? (float)NAN : 2};
        const int64_t n = 2;
        const tp_tensor values = {x, &n, NULL, TP_F32, 1};
        const tp_key key = {.name = tensors[i].name, .slot = -1, .quantity = tensors[i].quantity};
        records[i] = (tp_record){
            .state = TP_SLOT_DONE, .kind = TP_RECORD_STATS, .order = i, .dtype = TP_F32};
        assert_int_equal(tp_registry_add_key(r->registry, &key, &records[i].key), TP_OK);
        assert_int_equal(tp_registry_add_shape(r->registry, 1, &n, &records[i].shape), TP_OK);
        assert_int_equal(tp_stats_compute(&values, 1e-8, &records[i].u.stats), TP_OK);
        if (tensors[i].rule != 0) {
            tp_record fired = records[i];
            const bool is_nan = tensors[i].rule == TP_RULE_ANOMALY_NAN;
            fired.kind = TP_RECORD_ALERT;
            fired.u.alert = (tp_alert){.rule = tensors[i].rule,
                                       .op = is_nan ? TP_OP_NANS : TP_OP_NORM,
                                       .value = 1,
                                       .baseline = NAN,
                                       .threshold = NAN};
            tp_buf_put(&alerts, &fired, sizeof fired);
        }
    }
    assert_int_equal(tp_journal_append_batch(r->journal, &batch, NULL), TP_OK);
    if (r->incidents != NULL) {
        assert_int_equal(tp_incidents_update(r->incidents, &batch, &alerts), TP_OK);
    }
    if (alerts.size > 0) {
        assert_int_equal(tp_journal_append_alerts(r->journal, number,
                                                  (const tp_record *)(const void *)alerts.data,
                                                  alerts.size / sizeof(tp_record), NULL),
                         TP_OK);
    }
    tp_buf_free(&alerts);
}

static tp_view_run *read_run(const rank *ranks, uint32_t count)
{
    tp_view_run *run = NULL;
    bool more = true;
    for (uint32_t i = 0; i < count; i++) {
        const tp_run_info info = {.run_id = "run", .rank = ranks[i].number};
        run = run != NULL ? run : tp_view_run_new(&info, ranks[i].directory);
        assert_non_null(run);
        assert_int_equal(tp_view_run_add(run, &info, ranks[i].directory, NULL), TP_OK);
    }
    while (more) {
        assert_int_equal(tp_view_run_advance(run, &more), TP_OK);
    }
    return run;
}

static const char *row_of(const tp_view_run *run, const tp_view_incident *part)
{
    return tp_view_key_at(run, part->key)->row;
}

#define HEALTHY                                                                                    \
    {                                                                                              \
        {"a", TP_ACTIVATION, 0},                                                                   \
        {                                                                                          \
            "w", TP_PARAM_ORIGIN, 0                                                                \
        }                                                                                          \
    }

/* What was recorded without incidents gets the same ones, but for the cause. */
static void test_older_journals(void **state)
{
    static const tensor healthy[] = HEALTHY;
    static const tensor broken[] = {{"a", TP_ACTIVATION, TP_RULE_ANOMALY_NAN},
                                    {"w", TP_PARAM_ORIGIN, TP_RULE_ANOMALY_NAN}};
    static const tensor far[] = {{"z", TP_ACTIVATION, TP_RULE_EXPLODING}};
    (void)state;
    for (int is_older = 0; is_older < 2; is_older++) {
        rank one;
        tp_view_causes causes;
        open_rank(&one, 0, is_older == 1);
        for (uint64_t i = 0; i < 60; i++) {
            if (i == 5 || i == 6 || i == 41) {
                step(&one, i, broken, 2);
            } else if (i == 20) {
                step(&one, i, far, 1); /* behind a NaN: its consequence, which keeps it open */
            } else {
                step(&one, i, healthy, 2);
            }
        }
        tp_view_run *run = read_run(&one, 1);
        assert_int_equal(tp_view_causes_find(run, &causes), TP_OK);
        assert_int_equal(tp_view_cause_count(&causes), 2);
        const uint64_t steps[] = {5, 41};
        const uint64_t last[] = {20, 41};
        for (uint32_t i = 0; i < 2; i++) {
            const tp_view_cause *cause = tp_view_cause_at(&causes, i);
            const tp_view_incident *first = tp_view_part_at(&causes, cause->first_part);
            assert_int_equal(cause->kind, TP_VIEW_NONFINITE);
            assert_int_equal(cause->part_count, 1);
            assert_string_equal(row_of(run, first), "w"); /* recorded last, computed with first */
            assert_int_equal(first->record.u.incident.first_step, steps[i]);
            assert_int_equal(cause->last_step, last[i]);
            assert_int_equal(cause->alerts, i == 0 ? 5 : 2);
            assert_int_equal(cause->in_first, 2);
            assert_int_equal(cause->series, i == 0 ? 3 : 2);
            assert_int_equal(cause->steps, i == 0 ? 3 : 1);
            assert_int_equal(first->record.u.incident.cause,
                             is_older == 1 ? TP_CAUSE_UNKNOWN : TP_CAUSE_WEIGHT);
            assert_non_null(strstr(first->text, "first in w (param_origin)"));
        }
        tp_view_causes_free(&causes);
        tp_view_run_free(run);
        close_rank(&one);
    }
}

/* What begins on one rank comes to the others in the same step or the next. */
static void test_ranks(void **state)
{
    static const tensor healthy[] = HEALTHY;
    static const tensor weight[] = {{"a", TP_ACTIVATION, TP_RULE_ANOMALY_NAN},
                                    {"w", TP_PARAM_ORIGIN, TP_RULE_ANOMALY_NAN}};
    static const tensor activation[] = {{"a", TP_ACTIVATION, TP_RULE_ANOMALY_NAN},
                                        {"b", TP_ACTIVATION, TP_RULE_ANOMALY_NAN}};
    static const tensor far[] = {{"a", TP_ACTIVATION, TP_RULE_EXPLODING}};
    rank ranks[3];
    tp_view_causes causes;
    (void)state;
    for (uint32_t r = 0; r < 3; r++) {
        open_rank(&ranks[r], 2 * r, false);
        for (uint64_t i = 0; i < 12; i++) {
            if (r == 1 && i == 5) {
                step(&ranks[r], i, weight, 2);
            } else if ((r == 0 && i == 5) || (r == 2 && i == 6)) {
                step(&ranks[r], i, activation, 2);
            } else if (r == 0 && i == 2) {
                step(&ranks[r], i, far, 1);
            } else {
                step(&ranks[r], i, healthy, 2);
            }
        }
    }
    tp_view_run *run = read_run(ranks, 3);
    assert_int_equal(tp_view_causes_find(run, &causes), TP_OK);
    assert_int_equal(tp_view_cause_count(&causes), 2);
    const tp_view_cause *cause = tp_view_cause_at(&causes, 0);
    assert_int_equal(cause->kind, TP_VIEW_RANGE);
    assert_int_equal(cause->part_count, 1);
    cause = tp_view_cause_at(&causes, 1);
    assert_int_equal(cause->part_count, 3);
    assert_int_equal(cause->alerts, 6);
    assert_int_equal(cause->series, 3);
    assert_int_equal(cause->last_step, 6);
    const tp_view_incident *first = tp_view_part_at(&causes, cause->first_part);
    assert_int_equal(first->rank, 2);
    assert_string_equal(row_of(run, first), "w");
    assert_int_equal(tp_view_part_at(&causes, cause->first_part + 1)->rank, 0);
    assert_int_equal(tp_view_part_at(&causes, cause->first_part + 2)->rank, 4);
    tp_view_causes_free(&causes);
    tp_view_run_free(run);
    for (uint32_t r = 0; r < 3; r++) {
        close_rank(&ranks[r]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_older_journals),
        cmocka_unit_test(test_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
