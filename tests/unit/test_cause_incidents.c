/* What belongs together, what came first, and why: in steps whose right answers are plain. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cause/incidents.h"
#include "cause/order.h"

#define MOST 16

/* A step that is put together tensor by tensor. */
typedef struct scene {
    tp_registry *registry;
    tp_incidents *incidents;
    tp_record records[MOST];
    uint64_t count;
    tp_buf alerts;
    uint64_t alert_count;
    uint32_t flags;
} scene;

static void open_scene(scene *s)
{
    memset(s, 0, sizeof *s);
    assert_int_equal(tp_registry_new(&s->registry), TP_OK);
    assert_int_equal(tp_incidents_new(&s->incidents, s->registry), TP_OK);
}

static void close_scene(scene *s)
{
    tp_incidents_free(s->incidents);
    tp_registry_free(s->registry);
    tp_buf_free(&s->alerts);
}

static void begin(scene *s)
{
    s->count = 0;
    s->flags = 0;
    s->alert_count = 0;
    tp_buf_clear(&s->alerts);
}

static void alert(scene *s, const tp_record *record, uint32_t rule, uint32_t op, double value)
{
    tp_record fired = *record;
    fired.kind = TP_RECORD_ALERT;
    fired.u.alert = (tp_alert){
        .rule = rule, .op = op, .value = value, .baseline = NAN, .threshold = NAN, .more = 0};
    tp_buf_put(&s->alerts, &fired, sizeof fired);
    s->alert_count++;
}

/* Adds a tensor; a NaN or an infinity in it alerts, as the rule does. */
static uint32_t add(scene *s, const char *name, uint32_t quantity, uint32_t role, uint32_t dtype,
                    const void *x, int64_t n)
{
    const tp_key key = {.name = name, .slot = -1, .quantity = quantity, .role = role};
    const tp_tensor tensor = {x, &n, NULL, dtype, 1};
    tp_record *record = &s->records[s->count];
    *record = (tp_record){
        .state = TP_SLOT_DONE, .kind = TP_RECORD_STATS, .order = s->count, .dtype = dtype};
    assert_true(s->count < MOST);
    assert_int_equal(tp_registry_add_key(s->registry, &key, &record->key), TP_OK);
    assert_int_equal(tp_stats_compute(&tensor, 1e-8, &record->u.stats), TP_OK);
    const tp_stats *stats = &record->u.stats;
    if (stats->nan > 0) {
        alert(s, record, TP_RULE_ANOMALY_NAN, TP_OP_NANS, (double)stats->nan);
    } else if (stats->pos_inf + stats->neg_inf > 0) {
        alert(s, record, TP_RULE_ANOMALY_NAN, TP_OP_MAX, INFINITY);
    }
    s->count++;
    return record->key;
}

static uint32_t add4(scene *s, const char *name, uint32_t quantity, uint32_t role, float a, float b)
{
    const float x[] = {a, b, 0.5f, 0.25f};
    return add(s, name, quantity, role, TP_F32, x, 4);
}

/* Ends the step; the n-th record of an incident that was written, NULL: fewer. */
static const tp_record *end(scene *s, uint64_t step, uint64_t n)
{
    const tp_batch batch = {
        .step = step, .pp_stage = -1, .flags = s->flags, .count = s->count, .records = s->records};
    assert_int_equal(tp_incidents_update(s->incidents, &batch, &s->alerts), TP_OK);
    const tp_record *all = (const void *)s->alerts.data;
    const uint64_t count = s->alerts.size / sizeof *all;
    for (uint64_t i = 0; i < count; i++) {
        assert_int_equal(all[i].kind, i < s->alert_count ? TP_RECORD_ALERT : TP_RECORD_INCIDENT);
        assert_true(i >= s->alert_count || all[i].u.alert.incident > 0);
    }
    return s->alert_count + n < count ? &all[s->alert_count + n] : NULL;
}

static const tp_incident *first(scene *s, uint64_t step)
{
    const tp_record *record = end(s, step, 0);
    assert_non_null(record);
    return &record->u.incident;
}

static void healthy(scene *s)
{
    begin(s);
    add4(s, "a", TP_ACTIVATION, TP_ROLE_INPUT, 1, 2);
    add4(s, "a", TP_ACTIVATION, TP_ROLE_OUTPUT, 1, -2);
    add4(s, "b", TP_ACTIVATION, TP_ROLE_INPUT, 1, -2);
    add4(s, "b", TP_ACTIVATION, TP_ROLE_OUTPUT, 1, 2);
}

/* A NaN that is everywhere and stays for 150 steps is one incident, of which four records tell: in
 * its 1st, 10th and 100th step, and when it is over. */
static void test_one_incident(void **state)
{
    (void)state;
    scene s;
    uint32_t records = 0;
    open_scene(&s);
    for (uint64_t step = 0; step < 300; step++) {
        healthy(&s);
        if (step >= 100 && step < 250) {
            s.count = 2;
            add4(&s, "b", TP_ACTIVATION, TP_ROLE_INPUT, NAN, 1);
            add4(&s, "b", TP_ACTIVATION, TP_ROLE_OUTPUT, NAN, NAN);
        }
        const tp_record *record = end(&s, step, 0);
        if (record == NULL) {
            continue;
        }
        const tp_incident *incident = &record->u.incident;
        static const uint64_t steps[] = {100, 109, 199, 270};
        static const uint32_t states[] = {TP_INCIDENT_BEGINS, TP_INCIDENT_GROWS, TP_INCIDENT_GROWS,
                                          TP_INCIDENT_ENDS};
        assert_int_equal(step, steps[records]);
        assert_int_equal(incident->state, states[records]);
        assert_int_equal(incident->number, 1);
        assert_int_equal(incident->severity, TP_SEVERITY_CRITICAL);
        assert_int_equal(incident->steps, records == 3 ? 150 : step - 99);
        assert_int_equal(incident->alerts, 2 * incident->steps);
        assert_int_equal(incident->series, 2);
        assert_int_equal(incident->first_step, 100);
        records++;
    }
    assert_int_equal(records, 4);
    close_scene(&s);
}

/* A value out of range that comes before the NaN is an incident of its own, and named as the one
 * that may have led to it; what comes behind the NaN is its victim. */
static void test_two_kinds(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    begin(&s);
    add4(&s, "a", TP_ACTIVATION, TP_ROLE_OUTPUT, 1e20f, 1);
    alert(&s, &s.records[0], TP_RULE_EXPLODING, TP_OP_NORM, 1e20);
    add4(&s, "b", TP_ACTIVATION, TP_ROLE_OUTPUT, INFINITY, 1);
    add4(&s, "c", TP_ACTIVATION, TP_ROLE_OUTPUT, 1e30f, 1);
    alert(&s, &s.records[2], TP_RULE_EXPLODING, TP_OP_NORM, 1e30);
    const tp_record *wild = end(&s, 5, 0);
    const tp_record *broken = wild + 1;
    assert_int_equal(s.alerts.size / sizeof *wild, 5);
    assert_int_equal(wild->u.incident.number, 1);
    assert_int_equal(wild->u.incident.severity, TP_SEVERITY_WARNING);
    assert_int_equal(wild->u.incident.alerts, 1);
    assert_int_equal(broken->u.incident.number, 2);
    assert_int_equal(broken->u.incident.parent, 1);
    assert_int_equal(broken->u.incident.alerts, 2);
    assert_int_equal(broken->key, s.records[1].key);
    close_scene(&s);
}

/* The same tensor goes wrong again after it was quiet: another incident. */
static void test_rearms(void **state)
{
    (void)state;
    scene s;
    uint64_t begun = 0;
    open_scene(&s);
    for (uint64_t step = 0; step < 100; step++) {
        healthy(&s);
        if (step == 10 || step == 10 + TP_INCIDENT_QUIET || step == 80) {
            alert(&s, &s.records[1], TP_RULE_EXPLODING, TP_OP_NORM, 9);
        }
        const tp_record *record = end(&s, step, 0);
        begun += record != NULL && record->u.incident.state == TP_INCIDENT_BEGINS;
    }
    assert_int_equal(begun, 2);
    close_scene(&s);
}

static void expect(scene *s, uint32_t cause, uint32_t producer, uint32_t witness)
{
    const tp_record *record = end(s, 7, 0);
    assert_non_null(record);
    assert_int_equal(record->u.incident.cause, cause);
    assert_int_equal(record->key, producer);
    assert_int_equal(record->u.incident.witness, witness);
    close_scene(s);
}

static void test_born(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    begin(&s);
    const uint32_t in = add4(&s, "a", TP_ACTIVATION, TP_ROLE_INPUT, 1, 2);
    const uint32_t out = add4(&s, "a", TP_ACTIVATION, TP_ROLE_OUTPUT, NAN, 2);
    add4(&s, "b", TP_ACTIVATION, TP_ROLE_INPUT, NAN, 2);
    expect(&s, TP_CAUSE_BORN, out, in);
}

static void test_between(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    begin(&s);
    add4(&s, "a", TP_ACTIVATION, TP_ROLE_INPUT, 1, 2);
    const uint32_t out = add4(&s, "a", TP_ACTIVATION, TP_ROLE_OUTPUT, 3, 2);
    const uint32_t in = add4(&s, "b", TP_ACTIVATION, TP_ROLE_INPUT, NAN, NAN);
    expect(&s, TP_CAUSE_BETWEEN, in, out);
}

static void test_bad_batch(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    begin(&s);
    const uint32_t in = add4(&s, "", TP_ACTIVATION, TP_ROLE_INPUT, NAN, 2);
    add4(&s, "a", TP_ACTIVATION, TP_ROLE_INPUT, NAN, 2);
    expect(&s, TP_CAUSE_BAD_BATCH, in, TP_NO_KEY);
}

/* The weight is recorded last, and is the first cause. */
static void test_weight(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    begin(&s);
    add4(&s, "a", TP_ACTIVATION, TP_ROLE_INPUT, 1, 2);
    add4(&s, "a", TP_ACTIVATION, TP_ROLE_OUTPUT, NAN, 2);
    const uint32_t weight = add4(&s, "a.weight", TP_PARAM_ORIGIN, TP_ROLE_NONE, NAN, 2);
    expect(&s, TP_CAUSE_WEIGHT, weight, TP_NO_KEY);
}

static void test_overflow(void **state)
{
    (void)state;
    scene s;
    const uint16_t in16[] = {0x5640, 0x3c00};  /* 100, 1 */
    const uint16_t out16[] = {0x7c00, 0x7bff}; /* infinity, 65504 */
    open_scene(&s);
    begin(&s);
    const uint32_t in = add(&s, "a", TP_ACTIVATION, TP_ROLE_INPUT, TP_F16, in16, 2);
    const uint32_t out = add(&s, "a", TP_ACTIVATION, TP_ROLE_OUTPUT, TP_F16, out16, 2);
    const tp_record *record = end(&s, 7, 0);
    assert_int_equal(record->u.incident.cause, TP_CAUSE_OVERFLOW);
    assert_true(record->u.incident.evidence == 65504);
    assert_int_equal(record->key, out);
    assert_int_equal(record->u.incident.witness, in);
    close_scene(&s);
}

static void test_zero_by_zero(void **state)
{
    (void)state;
    scene s;
    const float zeros[] = {0, 0, 0};
    const float bad[] = {NAN, NAN, NAN};
    open_scene(&s);
    begin(&s);
    const uint32_t in = add(&s, "norm", TP_ACTIVATION, TP_ROLE_INPUT, TP_F32, zeros, 3);
    const uint32_t out = add(&s, "norm", TP_ACTIVATION, TP_ROLE_OUTPUT, TP_F32, bad, 3);
    expect(&s, TP_CAUSE_ZERO_BY_ZERO, out, in);
}

static void test_log(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    begin(&s);
    const uint32_t in = add4(&s, "log", TP_ACTIVATION, TP_ROLE_INPUT, 0, 2);
    const uint32_t out = add4(&s, "log", TP_ACTIVATION, TP_ROLE_OUTPUT, -INFINITY, 0.7f);
    expect(&s, TP_CAUSE_LOG, out, in);
}

static void test_empty(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    begin(&s);
    const uint32_t in = add(&s, "expert", TP_ACTIVATION, TP_ROLE_INPUT, TP_F32, NULL, 0);
    const uint32_t out = add4(&s, "expert", TP_ACTIVATION, TP_ROLE_OUTPUT, NAN, NAN);
    expect(&s, TP_CAUSE_EMPTY, out, in);
}

static void test_backward(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    healthy(&s);
    add4(&s, "b", TP_ACTIVATION_GRAD, TP_ROLE_OUTPUT, 1, 1);
    add4(&s, "b", TP_ACTIVATION_GRAD, TP_ROLE_INPUT, 1, 1);
    const uint32_t in = add4(&s, "a", TP_ACTIVATION_GRAD, TP_ROLE_OUTPUT, 1, 1);
    const uint32_t out = add4(&s, "a", TP_ACTIVATION_GRAD, TP_ROLE_INPUT, NAN, 1);
    expect(&s, TP_CAUSE_BACKWARD, out, in);
}

static void test_loss(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    healthy(&s);
    const uint32_t last = s.records[3].key;
    const uint32_t out = add4(&s, "b", TP_ACTIVATION_GRAD, TP_ROLE_OUTPUT, NAN, 1);
    expect(&s, TP_CAUSE_LOSS, out, last);
}

static void test_reduction(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    healthy(&s);
    const uint32_t own = add4(&s, "a.weight", TP_GRAD_UNREDUCED, TP_ROLE_NONE, 1, 1);
    const uint32_t all = add4(&s, "a.weight", TP_GRAD_REDUCED, TP_ROLE_NONE, NAN, 1);
    expect(&s, TP_CAUSE_REDUCTION, all, own);
}

/* A scaler that looks for its scale is no more than a notice, and what comes after it is another
 * incident. */
static void test_loss_scale(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    healthy(&s);
    add4(&s, "a.weight", TP_GRAD_REDUCED, TP_ROLE_NONE, INFINITY, 1);
    s.flags = TP_BATCH_SKIPPED;
    const tp_incident *incident = first(&s, 3);
    assert_int_equal(incident->cause, TP_CAUSE_LOSS_SCALE);
    assert_int_equal(incident->severity, TP_SEVERITY_NOTICE);
    healthy(&s);
    s.count = 3;
    add4(&s, "b", TP_ACTIVATION, TP_ROLE_OUTPUT, NAN, 1);
    const tp_record *record = end(&s, 4, 0);
    assert_int_equal(record[0].u.incident.state, TP_INCIDENT_ENDS);
    assert_int_equal(record[1].u.incident.number, 2);
    assert_int_equal(record[1].u.incident.severity, TP_SEVERITY_CRITICAL);
    close_scene(&s);
}

/* The square of this step's gradient doesn't fit into the moment that the next step finds. */
static void test_moment(void **state)
{
    (void)state;
    scene s;
    open_scene(&s);
    healthy(&s);
    add4(&s, "a.weight", TP_GRAD_REDUCED, TP_ROLE_NONE, 1e20f, 1);
    assert_null(end(&s, 6, 0));
    healthy(&s);
    const uint32_t gradient = add4(&s, "a.weight", TP_GRAD_REDUCED, TP_ROLE_NONE, 1, 1);
    const uint32_t moment = add4(&s, "a.weight", TP_EXP_AVG_SQ, TP_ROLE_NONE, INFINITY, 1);
    expect(&s, TP_CAUSE_MOMENT, moment, gradient);
}

static void test_flipped_bit(void **state)
{
    (void)state;
    scene s;
    float weight[64];
    for (int i = 0; i < 64; i++) {
        weight[i] = 0.1f * (float)(i % 5);
    }
    weight[37] = 1e30f;
    open_scene(&s);
    healthy(&s);
    const uint32_t key = add(&s, "w", TP_PARAM_ORIGIN, TP_ROLE_NONE, TP_F32, weight, 64);
    alert(&s, &s.records[4], TP_RULE_EXPLODING, TP_OP_NORM, 1e30);
    const tp_record *record = end(&s, 7, 0);
    assert_int_equal(record->key, key);
    assert_int_equal(record->u.incident.cause, TP_CAUSE_FLIPPED_BIT);
    assert_int_equal(record->u.incident.element, 37);
    close_scene(&s);
}

/* Every pair of moments of a small world: against the sentence in the header, said field by field.
 */
static void test_order(void **state)
{
    (void)state;
    srand(11);
    for (int i = 0; i < 20000; i++) {
        tp_moment m[2];
        for (int k = 0; k < 2; k++) {
            m[k] = (tp_moment){(uint64_t)(rand() % 2),
                               (uint64_t)(rand() % 2),
                               rand() % 5 - 1,
                               rand() % 3,
                               rand() % 3,
                               rand() % 3};
        }
        const int64_t sign = m[0].stage == TP_STAGE_FORWARD ? 1 : -1;
        const int64_t differences[] = {(int64_t)m[0].step - (int64_t)m[1].step,
                                       (int64_t)m[0].micro_step - (int64_t)m[1].micro_step,
                                       m[0].stage - m[1].stage,
                                       sign * (m[0].vpp_stage - m[1].vpp_stage),
                                       sign * (m[0].pp_stage - m[1].pp_stage),
                                       m[0].order - m[1].order};
        int64_t wanted = 0;
        for (size_t k = 0; wanted == 0 && k < 6; k++) {
            wanted = differences[k];
        }
        const int found = tp_moment_compare(&m[0], &m[1]);
        assert_int_equal((found > 0) - (found < 0), (wanted > 0) - (wanted < 0));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_incident), cmocka_unit_test(test_two_kinds),
        cmocka_unit_test(test_rearms),       cmocka_unit_test(test_born),
        cmocka_unit_test(test_between),      cmocka_unit_test(test_bad_batch),
        cmocka_unit_test(test_weight),       cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_zero_by_zero), cmocka_unit_test(test_log),
        cmocka_unit_test(test_empty),        cmocka_unit_test(test_backward),
        cmocka_unit_test(test_loss),         cmocka_unit_test(test_reduction),
        cmocka_unit_test(test_loss_scale),   cmocka_unit_test(test_moment),
        cmocka_unit_test(test_flipped_bit),  cmocka_unit_test(test_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
