#include "rules/rules.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "record/names.h"
#include "rules/rule.h"

static const tp_rule *const table[] = {
    &tp_rule_nan,        &tp_rule_turbulence,   &tp_rule_exploding, &tp_rule_vanishing,
    &tp_rule_loss_spike, &tp_rule_all_zero,     &tp_rule_unchanged, &tp_rule_dead_units,
    &tp_rule_saturated,  &tp_rule_update_ratio, &tp_rule_variance,  &tp_rule_gradient_norm,
    &tp_rule_underflow,  &tp_rule_overflow,     &tp_rule_momentum,  &tp_rule_replicas,
};

#define TABLE_LENGTH (sizeof table / sizeof table[0])

/* A place that returns every step: one call of one module in one micro step, or a parameter. */
typedef struct place_name {
    uint32_t key;
    uint32_t micro_step;
    uint32_t call;
} place_name;

typedef struct place {
    place_name name;
    uint32_t quantity;
    uint32_t role;
    uint32_t ndim;
    uint64_t applies; /* bit n: the n-th rule looks at it */
    size_t memory;    /* where it begins: that of one rule that applies behind the other's */
} place;

/* A rule as it is configured. */
typedef struct active_rule {
    const tp_rule *rule;
    tp_rule_options options;
    size_t size;  /* of its memory in a place */
    void *shared; /* by all places; NULL: nothing is */
} active_rule;

struct tp_rules {
    const tp_registry *registry;
    active_rule *rules;
    uint32_t rule_count;
    uint32_t ops[TP_OP_COUNT]; /* those that any rule looks at, and that are numbers */
    uint32_t op_count;
    tp_map place_numbers;
    place *places;
    tp_buf memory; /* of the rules */
    uint32_t place_count, place_capacity;
    uint32_t
        *sequence; /* place of the n-th record of the step before: mostly it is the same again */
    uint64_t sequence_capacity;
    uint64_t last_step; /* that was checked */
    uint64_t jump;      /* from the one before to it; 0: there was none */
    bool is_after_gap;  /* the present one lies farther behind it: steps between could be missing */
    uint64_t steps;     /* that have been checked */
};

static const tp_rule *rule_of(uint32_t number)
{
    for (size_t i = 0; i < TABLE_LENGTH; i++) {
        if (table[i]->rule == number) {
            return table[i];
        }
    }
    return NULL;
}

/* Which ops a rule looks at by itself. */
static uint32_t bits_of(const uint32_t *ops, uint32_t op_count)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < op_count; i++) {
        bits |= 1u << ops[i];
    }
    return bits & ~(1u << TP_OP_SHAPE) & ~(1u << TP_OP_DTYPE);
}

tp_status tp_rules_new(tp_rules **out, const tp_rule_options *options, uint32_t rule_count,
                       const uint32_t *ops, uint32_t op_count, const tp_registry *registry)
{
    const uint32_t configured = bits_of(ops, op_count);
    uint32_t wanted = 0;
    tp_rules *rules = tp_calloc(1, sizeof *rules);
    if (rules == NULL) {
        return TP_ERR_NOMEM;
    }
    rules->rules = tp_calloc(rule_count, sizeof *rules->rules);
    if (rules->rules == NULL) {
        tp_free(rules);
        return TP_ERR_NOMEM;
    }
    rules->registry = registry;
    for (uint32_t i = 0; i < rule_count; i++) {
        const tp_rule *rule = rule_of(options[i].rule);
        if (rule != NULL) { /* else it is of a newer version */
            active_rule *active = &rules->rules[rules->rule_count++];
            active->rule = rule;
            active->options = options[i];
            active->options.ops = options[i].ops != 0 ? options[i].ops : configured;
            wanted |= active->options.ops;
        }
    }
    /* In the configured order, which decides what an alert shows; then the others. */
    for (uint32_t i = 0; i < op_count; i++) {
        if ((wanted & (1u << ops[i])) != 0) {
            rules->ops[rules->op_count++] = ops[i];
            wanted &= ~(1u << ops[i]);
        }
    }
    for (uint32_t op = 1; op <= TP_OP_COUNT; op++) {
        if ((wanted & (1u << op)) != 0) {
            rules->ops[rules->op_count++] = op;
        }
    }
    for (uint32_t i = 0; i < rules->rule_count; i++) {
        active_rule *active = &rules->rules[i];
        const tp_rule *rule = active->rule;
        active->size = rule->memory != NULL ? rule->memory(&active->options, rules->op_count) : 0;
        if (rule->shared != NULL) {
            active->shared = tp_calloc(1, rule->shared(&active->options));
            if (active->shared == NULL) {
                tp_rules_free(rules);
                return TP_ERR_NOMEM;
            }
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
    for (uint32_t i = 0; i < rules->rule_count; i++) {
        tp_free(rules->rules[i].shared);
    }
    tp_map_free(&rules->place_numbers);
    tp_free(rules->rules);
    tp_free(rules->places);
    tp_buf_free(&rules->memory);
    tp_free(rules->sequence);
    tp_free(rules);
}

/* Whether the rule is one for what has this key, whose name is given as targets mean it. */
static bool is_for(const active_rule *active, const place *new, const tp_key *key)
{
    const uint32_t quantities = active->rule->quantities;
    if (quantities != 0 && (quantities & TP_QUANTITY(new->quantity)) == 0) {
        return false;
    }
    tp_key meant = {.name = ""};
    if (key != NULL) {
        meant = *key;
        const bool is_check = key->quantity == TP_SCALAR && tp_is_replica_check(key->name);
        const char *parameter = is_check ? tp_replica_parameter(key->name) : NULL;
        if (active->rule->checks ? parameter == NULL : is_check) {
            return false;
        }
        meant.name = parameter != NULL ? parameter : key->name;
    }
    return active->options.applies == NULL ||
           (key != NULL && active->options.applies(active->options.context, &meant));
}

static place describe(const tp_rules *rules, const place_name *name)
{
    const tp_key *key = tp_registry_key(rules->registry, name->key);
    place new = {.name = *name, .memory = rules->memory.size};
    if (key != NULL) {
        new.quantity = key->quantity;
        new.role = key->role;
    }
    if (new.quantity == TP_ADAM_RATIO) {
        return new; /* 0 / 0 wherever nothing has happened yet; the moments tell what is wrong */
    }
    for (uint32_t i = 0; i < rules->rule_count; i++) {
        if (is_for(&rules->rules[i], &new, key)) {
            new.applies |= UINT64_C(1) << i;
        }
    }
    return new;
}

static size_t memory_of(const tp_rules *rules, uint64_t applies)
{
    size_t size = 0;
    for (uint32_t i = 0; i < rules->rule_count; i++) {
        size += (applies >> i & 1) != 0 ? rules->rules[i].size : 0;
    }
    return size;
}

static tp_status add_place(tp_rules *rules, const place_name *wanted, const tp_record *record,
                           uint32_t *number)
{
    if (rules->place_count == rules->place_capacity) {
        uint32_t capacity = rules->place_capacity < 256 ? 256 : rules->place_capacity * 2;
        place *places = tp_realloc(rules->places, capacity * sizeof *places);
        if (places == NULL) {
            return TP_ERR_NOMEM;
        }
        rules->places = places;
        rules->place_capacity = capacity;
    }
    place new = describe(rules, wanted);
    tp_registry_shape(rules->registry, record->shape, &new.ndim);
    const size_t size = memory_of(rules, new.applies);
    if (size > 0) {
        uint8_t *memory = tp_buf_extend(&rules->memory, size);
        if (memory == NULL) {
            rules->memory.failed = false; /* what was there is there */
            return TP_ERR_NOMEM;
        }
        memset(memory, 0, size);
    }
    tp_status status =
        tp_map_set(&rules->place_numbers, wanted, sizeof *wanted, rules->place_count);
    if (status != TP_OK) {
        rules->memory.size -= size;
        return status;
    }
    *number = rules->place_count++;
    rules->places[*number] = new;
    return TP_OK;
}

/* The place of the n-th record of a step. */
static tp_status find_place(tp_rules *rules, uint64_t n, const tp_record *record, uint32_t *number)
{
    const place_name wanted = {record->key, record->micro_step, record->call};
    uint32_t guess = rules->sequence[n];
    if (guess < rules->place_count &&
        memcmp(&rules->places[guess].name, &wanted, sizeof wanted) == 0) {
        *number = guess;
        return TP_OK;
    }
    tp_status status = tp_map_get(&rules->place_numbers, &wanted, sizeof wanted, number);
    if (status == TP_ERR_NOTFOUND) {
        status = add_place(rules, &wanted, record, number);
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

/* An alert takes over the record's place in the step. */
static void put_alert(tp_buf *alerts, const tp_record *record, const tp_alert *alert)
{
    tp_record fired = *record;
    fired.kind = TP_RECORD_ALERT;
    fired.u.alert = *alert;
    tp_buf_put(alerts, &fired, sizeof fired);
}

/* The first alert of each rule says how many others there are. */
static void count_the_others(tp_buf *alerts, size_t start)
{
    tp_record *fired = (void *)(alerts->data + start);
    size_t count = (alerts->size - start) / sizeof *fired;
    size_t first[TP_RULE_COUNT + 1] = {0}; /* of each rule, plus one */
    for (size_t i = 0; i < count; i++) {
        const uint32_t rule = fired[i].u.alert.rule;
        if (first[rule] == 0) {
            first[rule] = i + 1;
        } else {
            fired[first[rule] - 1].u.alert.more++;
        }
    }
}

/* Gives the record to the rules that look at its place. */
static void judge_record(const tp_rules *rules, const place *here, const tp_batch *batch,
                         uint64_t number, tp_buf *alerts)
{
    double values[TP_OP_COUNT];
    tp_histogram exponents;
    const tp_record *record = &batch->records[number];
    const bool counted = tp_batch_exponents(batch, record, &exponents) == TP_OK;
    uint8_t *memory = rules->memory.size > 0 ? rules->memory.data + here->memory : NULL;
    tp_judgement judgement = {.quantity = here->quantity,
                              .role = here->role,
                              .dtype = record->dtype,
                              .ndim = here->ndim,
                              .stats = &record->u.stats,
                              .exponents = counted ? &exponents : NULL,
                              .norm = tp_stats_norm(&record->u.stats),
                              .ops = rules->ops,
                              .values = values,
                              .op_count = rules->op_count,
                              .is_after_gap = rules->is_after_gap,
                              .number = number};
    for (uint32_t i = 0; i < rules->op_count; i++) {
        values[i] = rules->ops[i] == TP_OP_NORM ? judgement.norm
                                                : tp_stats_op(&record->u.stats, rules->ops[i]);
    }
    for (uint64_t left = here->applies; left != 0; left &= left - 1) {
        const active_rule *active = &rules->rules[__builtin_ctzll(left)];
        tp_alert alert = {.rule = active->options.rule, .baseline = (double)NAN};
        judgement.options = &active->options;
        judgement.shared = active->shared;
        if (active->rule->judge(&judgement, memory, &alert)) {
            put_alert(alerts, record, &alert);
        }
        memory = active->size > 0 ? memory + active->size : memory;
    }
}

static void judge_step(const tp_rules *rules, const tp_batch *batch, tp_buf *alerts)
{
    for (uint32_t i = 0; i < rules->rule_count; i++) {
        const active_rule *active = &rules->rules[i];
        tp_alert alert = {.rule = active->options.rule, .baseline = (double)NAN};
        uint64_t number = 0;
        if (active->rule->finish != NULL &&
            active->rule->finish(&active->options, active->shared, &alert, &number)) {
            put_alert(alerts, &batch->records[number], &alert);
        }
    }
}

tp_status tp_rules_check(tp_rules *rules, const tp_batch *batch, tp_buf *alerts)
{
    size_t start = alerts->size;
    if (rules->rule_count == 0 || batch->records == NULL) {
        return TP_OK;
    }
    const uint64_t jump = batch->step > rules->last_step ? batch->step - rules->last_step : 0;
    rules->is_after_gap = rules->jump > 0 && jump > rules->jump;
    rules->jump = jump;
    rules->last_step = batch->step;
    tp_status status = reserve_sequence(rules, batch->count);
    for (uint64_t n = 0; status == TP_OK && n < batch->count; n++) {
        const tp_record *record = &batch->records[n];
        uint32_t number;
        if (record->state != TP_SLOT_DONE || record->kind != TP_RECORD_STATS) {
            continue;
        }
        status = find_place(rules, n, record, &number);
        if (status == TP_OK && rules->places[number].applies != 0) {
            judge_record(rules, &rules->places[number], batch, n, alerts);
        }
    }
    rules->steps++;
    if (status == TP_OK) {
        judge_step(rules, batch, alerts);
    }
    if (alerts->failed) {
        return TP_ERR_NOMEM;
    }
    if (alerts->size > start) {
        count_the_others(alerts, start);
    }
    return status;
}

/* How many steps more the rule needs. */
static uint64_t missing_steps(const tp_rules *rules, uint32_t number)
{
    const active_rule *active = &rules->rules[number];
    const bool compat = active->options.mode == TP_TURBULENCE_COMPAT;
    const uint64_t needs = active->rule->needs_samples && !compat ? active->options.min_samples
                                                                  : active->rule->needs_steps;
    return needs > rules->steps ? needs - rules->steps : 0;
}

/* Is there an earlier one of this name that needs as many? */
static bool is_repeated(const tp_rules *rules, uint32_t number)
{
    for (uint32_t i = 0; i < number; i++) {
        if (rules->rules[i].options.rule == rules->rules[number].options.rule &&
            missing_steps(rules, i) == missing_steps(rules, number)) {
            return true;
        }
    }
    return false;
}

void tp_rules_put_warming(const tp_rules *rules, uint64_t step, uint64_t interval, tp_buf *text)
{
    const size_t begin = text->size;
    for (uint64_t before = 0;;) {
        uint64_t next = UINT64_MAX; /* the least that is more than those that have been said */
        for (uint32_t i = 0; i < rules->rule_count; i++) {
            const uint64_t missing = missing_steps(rules, i);
            next = missing > before && missing < next ? missing : next;
        }
        if (next == UINT64_MAX) {
            return;
        }
        const char *between = text->size > begin ? "; " : "";
        for (uint32_t i = 0; i < rules->rule_count; i++) {
            if (missing_steps(rules, i) == next && !is_repeated(rules, i)) {
                tp_buf_printf(text, "%s%s", between, tp_rule_name(rules->rules[i].options.rule));
                between = ", ";
            }
        }
        tp_buf_printf(text, " before step %" PRIu64, step + next * interval);
        before = next;
    }
}
