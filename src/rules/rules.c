#include "rules/rules.h"

#include <math.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "rules/rule.h"

static const struct {
    uint32_t rule;
    tp_rule_judge judge;
} table[] = {
    {TP_RULE_ANOMALY_NAN, tp_rule_judge_nan},
    {TP_RULE_ANOMALY_TURBULENCE, tp_rule_judge_turbulence},
};

#define TABLE_LENGTH (sizeof table / sizeof table[0])

/* A place that returns every step: one call of one module in one micro step, or a parameter. */
typedef struct place {
    uint32_t key;
    uint32_t micro_step;
    uint32_t call;
} place;

struct tp_rules {
    const tp_registry *registry;
    tp_rule_options *rules;
    uint32_t rule_count;
    uint32_t ops[TP_OP_COUNT]; /* those that are numbers */
    uint32_t op_count;
    tp_map place_numbers;
    place *places;
    tp_baseline *baselines; /* op_count of them for each place */
    uint32_t place_count, place_capacity;
    uint32_t
        *sequence; /* place of the n-th record of the step before: mostly it is the same again */
    uint64_t sequence_capacity;
};

tp_status tp_rules_new(tp_rules **out, const tp_rule_options *options, uint32_t rule_count,
                       const uint32_t *ops, uint32_t op_count, const tp_registry *registry)
{
    tp_rules *rules = tp_calloc(1, sizeof *rules);
    if (rules == NULL) {
        return TP_ERR_NOMEM;
    }
    rules->rules = tp_calloc(rule_count, sizeof *rules->rules);
    if (rules->rules == NULL) {
        tp_free(rules);
        return TP_ERR_NOMEM;
    }
    if (rule_count > 0) {
        memcpy(rules->rules, options, rule_count * sizeof *options);
    }
    rules->rule_count = rule_count;
    rules->registry = registry;
    for (uint32_t i = 0; i < op_count && rules->op_count < TP_OP_COUNT; i++) {
        if (ops[i] != TP_OP_SHAPE && ops[i] != TP_OP_DTYPE) {
            rules->ops[rules->op_count++] = ops[i];
        }
    }
    *out = rules;
    return TP_OK;
}

void tp_rules_free(tp_rules *rules)
{
    if (rules == NULL) {
        return;
    }
    tp_map_free(&rules->place_numbers);
    tp_free(rules->rules);
    tp_free(rules->places);
    tp_free(rules->baselines);
    tp_free(rules->sequence);
    tp_free(rules);
}

static tp_status add_place(tp_rules *rules, const place *wanted, uint32_t *number)
{
    if (rules->place_count == rules->place_capacity) {
        uint32_t capacity = rules->place_capacity < 256 ? 256 : rules->place_capacity * 2;
        place *places = tp_realloc(rules->places, capacity * sizeof *places);
        if (places == NULL) {
            return TP_ERR_NOMEM;
        }
        rules->places = places;
        tp_baseline *baselines =
            tp_realloc(rules->baselines, (size_t)capacity * rules->op_count * sizeof *baselines);
        if (baselines == NULL) {
            return TP_ERR_NOMEM;
        }
        rules->baselines = baselines;
        rules->place_capacity = capacity;
    }
    tp_status status =
        tp_map_set(&rules->place_numbers, wanted, sizeof *wanted, rules->place_count);
    if (status != TP_OK) {
        return status;
    }
    *number = rules->place_count++;
    rules->places[*number] = *wanted;
    memset(&rules->baselines[(size_t)*number * rules->op_count], 0,
           rules->op_count * sizeof *rules->baselines);
    return TP_OK;
}

/* The place of the n-th record of a step. */
static tp_status find_place(tp_rules *rules, uint64_t n, const tp_record *record, uint32_t *number)
{
    const place wanted = {record->key, record->micro_step, record->call};
    uint32_t guess = rules->sequence[n];
    if (guess < rules->place_count && memcmp(&rules->places[guess], &wanted, sizeof wanted) == 0) {
        *number = guess;
        return TP_OK;
    }
    tp_status status = tp_map_get(&rules->place_numbers, &wanted, sizeof wanted, number);
    if (status == TP_ERR_NOTFOUND) {
        status = add_place(rules, &wanted, number);
    }
    if (status == TP_OK) {
        rules->sequence[n] = *number;
    }
    return status;
}

static tp_status reserve_sequence(tp_rules *rules, uint64_t count)
{
    if (count <= rules->sequence_capacity) {
        return TP_OK;
    }
    uint32_t *sequence = tp_realloc(rules->sequence, count * sizeof *sequence);
    if (sequence == NULL) {
        return TP_ERR_NOMEM;
    }
    memset(sequence + rules->sequence_capacity, 0xff,
           (count - rules->sequence_capacity) * sizeof *sequence);
    rules->sequence = sequence;
    rules->sequence_capacity = count;
    return TP_OK;
}

static tp_rule_judge judge_of(uint32_t rule)
{
    for (size_t i = 0; i < TABLE_LENGTH; i++) {
        if (table[i].rule == rule) {
            return table[i].judge;
        }
    }
    return NULL;
}

/* Applies one rule to the record; an alert takes over the record's place in the step. */
static void judge(const tp_judgement *judgement, const tp_record *record, tp_buf *alerts)
{
    tp_record fired = *record;
    tp_rule_judge judge_record = judge_of(judgement->options->rule);
    fired.kind = TP_RECORD_ALERT;
    memset(&fired.u, 0, sizeof fired.u);
    fired.u.alert.rule = judgement->options->rule;
    if (judge_record != NULL && judge_record(judgement, &fired.u.alert)) {
        tp_buf_put(alerts, &fired, sizeof fired);
    }
}

/* The first alert of each rule says how many others there are. */
static void count_the_others(tp_buf *alerts, size_t start)
{
    tp_record *fired = (void *)(alerts->data + start);
    size_t count = (alerts->size - start) / sizeof *fired;
    for (size_t i = 0; i < count; i++) {
        size_t first = 0;
        while (fired[first].u.alert.rule != fired[i].u.alert.rule) {
            first++;
        }
        if (first < i) {
            fired[first].u.alert.more++;
        }
    }
}

tp_status tp_rules_check(tp_rules *rules, const tp_batch *batch, tp_buf *alerts)
{
    size_t start = alerts->size;
    if (rules->rule_count == 0 || batch->records == NULL) {
        return TP_OK;
    }
    tp_status status = reserve_sequence(rules, batch->count);
    for (uint64_t n = 0; status == TP_OK && n < batch->count; n++) {
        const tp_record *record = &batch->records[n];
        double values[TP_OP_COUNT];
        uint32_t number;
        if (record->state != TP_SLOT_DONE || record->kind != TP_RECORD_STATS) {
            continue;
        }
        const tp_key *key = tp_registry_key(rules->registry, record->key);
        if (key != NULL && key->quantity == TP_ADAM_RATIO) {
            continue; /* 0 / 0 wherever nothing has happened yet; the moments tell what is wrong */
        }
        status = find_place(rules, n, record, &number);
        if (status != TP_OK) {
            break;
        }
        tp_baseline *baselines = &rules->baselines[(size_t)number * rules->op_count];
        for (uint32_t i = 0; i < rules->op_count; i++) {
            values[i] = tp_stats_op(&record->u.stats, rules->ops[i]);
        }
        const bool scalar = key != NULL && key->quantity == TP_SCALAR;
        for (uint32_t r = 0; r < rules->rule_count; r++) {
            const tp_judgement judgement = {&rules->rules[r], &record->u.stats, rules->ops, values,
                                            baselines,        rules->op_count,  scalar};
            judge(&judgement, record, alerts);
        }
        for (uint32_t i = 0; i < rules->op_count; i++) {
            if (isfinite(values[i])) {
                baselines[i].sum += values[i];
                baselines[i].count++;
            }
        }
    }
    if (alerts->failed) {
        return TP_ERR_NOMEM;
    }
    if (alerts->size > start) {
        count_the_others(alerts, start);
    }
    return status;
}
