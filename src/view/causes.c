#include "view/causes.h"

#include <string.h>

#include "base/mem.h"
#include "cause/incidents.h"

#define MOST 1000 /* incidents of a rank that are told of */

/* Of a journal that has none: they are made of its alerts. */
struct tp_view_older {
    uint32_t journal;
    uint32_t attempt;
    tp_registry *registry; /* its keys have the same numbers in all segments */
    tp_incidents *incidents;
    tp_buf records;
};

static tp_view_incident *incident_at(const tp_view_rank *rank, size_t index)
{
    return (tp_view_incident *)(void *)rank->incidents.data + index;
}

static size_t incident_count(const tp_view_rank *rank)
{
    return rank->incidents.size / sizeof(tp_view_incident);
}

static void free_older(tp_view_rank *rank)
{
    if (rank->older != NULL) {
        tp_incidents_free(rank->older->incidents);
        tp_registry_free(rank->older->registry);
        tp_buf_free(&rank->older->records);
        tp_free(rank->older);
        rank->older = NULL;
    }
}

void tp_view_incidents_free(tp_view_rank *rank)
{
    for (size_t i = 0; i < incident_count(rank); i++) {
        tp_buf_free(&incident_at(rank, i)->series);
        tp_free(incident_at(rank, i)->text);
    }
    tp_buf_free(&rank->incidents);
    free_older(rank);
}

/* The incident of the attempt that is being read; NULL: it isn't kept. */
static tp_view_incident *find(const tp_view_rank *rank, uint32_t attempt, uint64_t number)
{
    for (size_t i = incident_count(rank); i-- > 0;) {
        tp_view_incident *one = incident_at(rank, i);
        if (one->journal != rank->journal || one->attempt != attempt) {
            return NULL;
        }
        if (one->record.u.incident.number == number) {
            return one;
        }
    }
    return NULL;
}

static tp_status take_incident(tp_view_run *run, tp_view_rank *rank, const tp_batch *batch,
                               const tp_record *record, const tp_key *key, const tp_key *witness)
{
    const tp_incident *incident = &record->u.incident;
    tp_view_incident *one = find(rank, batch->attempt, incident->number);
    char text[TP_INCIDENT_TEXT];
    if (key == NULL || (one == NULL && incident_count(rank) >= MOST)) {
        return TP_OK; /* its name is lost, or nobody reads so many */
    }
    tp_incident_describe(record, key, witness, text, sizeof text);
    char *copy = tp_strdup(text);
    if (one == NULL && copy != NULL) {
        one = tp_buf_extend(&rank->incidents, sizeof *one);
        if (one != NULL) {
            const tp_batch of = {.step = incident->first_step,
                                 .micro_steps = rank->micro_steps,
                                 .pp_stage = rank->pp_stage};
            *one = (tp_view_incident){.rank = rank->rank,
                                      .journal = rank->journal,
                                      .attempt = batch->attempt,
                                      .key = TP_VIEW_NO_KEY,
                                      .witness = TP_VIEW_NO_KEY,
                                      .last_step = incident->first_step,
                                      .moment = tp_moment_of(&of, record, key)};
        }
    }
    if (one == NULL || copy == NULL) {
        tp_free(copy);
        return TP_ERR_NOMEM;
    }
    tp_free(one->text);
    one->text = copy;
    one->record = *record;
    tp_status status = tp_view_series_of(run, key, record->call, record->order, &one->key);
    if (status == TP_OK && witness != NULL) { /* of the first call, as the text calls it */
        status = tp_view_series_of(run, witness, 0, record->order, &one->witness);
    }
    return status;
}

static tp_status take_alert(tp_view_run *run, tp_view_rank *rank, const tp_batch *batch,
                            const tp_record *record, uint64_t number)
{
    tp_view_incident *one = find(rank, batch->attempt, number);
    const tp_key *of = tp_view_reader_key(rank, record->key);
    uint32_t key;
    if (one == NULL || of == NULL) {
        return TP_OK;
    }
    const tp_status status = tp_view_series_of(run, of, record->call, record->order, &key);
    if (status != TP_OK) {
        return status;
    }
    one->steps += one->alerts == 0 || batch->step != one->last_step;
    one->alerts++;
    one->in_first += batch->step == one->record.u.incident.first_step;
    one->last_step = batch->step;
    while (one->series.size <= key / 8 && !one->series.failed) {
        tp_buf_put(&one->series, "", 1);
    }
    if (one->series.failed) {
        return TP_ERR_NOMEM;
    }
    one->series.data[key / 8] |= (uint8_t)(1U << (key % 8));
    return TP_OK;
}

/* What is open in one attempt says nothing about the next. */
static tp_status open_older(tp_view_rank *rank, uint32_t attempt)
{
    if (rank->older != NULL &&
        (rank->older->journal != rank->journal || rank->older->attempt != attempt)) {
        free_older(rank);
    }
    if (rank->older != NULL) {
        return TP_OK;
    }
    rank->older = tp_calloc(1, sizeof *rank->older);
    if (rank->older == NULL || tp_registry_new(&rank->older->registry) != TP_OK ||
        tp_incidents_new(&rank->older->incidents, rank->older->registry) != TP_OK) {
        free_older(rank);
        return TP_ERR_NOMEM;
    }
    rank->older->journal = rank->journal;
    rank->older->attempt = attempt;
    return TP_OK;
}

/* Alerts that belong to no incident: what would have been made of them. Tensors beside them aren't
 * looked at, so that a cause isn't told. */
static tp_status put_together(tp_view_run *run, tp_view_rank *rank, const tp_batch *batch)
{
    tp_status status = open_older(rank, batch->attempt);
    if (status != TP_OK) {
        return status;
    }
    const tp_registry *registry = rank->older->registry;
    tp_buf *records = &rank->older->records;
    tp_buf_clear(records);
    for (uint64_t i = 0; i < batch->count && !records->failed && status == TP_OK; i++) {
        const tp_key *key = tp_view_reader_key(rank, batch->records[i].key);
        tp_record record = batch->records[i];
        if (key != NULL) {
            status = tp_registry_add_key(rank->older->registry, key, &record.key);
            tp_buf_put(records, &record, sizeof record);
        }
    }
    const uint64_t alerts = records->size / sizeof(tp_record);
    const tp_batch step = {.step = batch->step,
                           .attempt = batch->attempt,
                           .pp_stage = rank->pp_stage,
                           .micro_steps = rank->micro_steps};
    if (status == TP_OK && !records->failed) {
        status = tp_incidents_update(rank->older->incidents, &step, records);
    }
    if (status != TP_OK || records->failed) {
        return TP_ERR_NOMEM;
    }
    const tp_record *all = (const tp_record *)(const void *)records->data;
    for (uint64_t i = alerts; i < records->size / sizeof *all && status == TP_OK; i++) {
        status = take_incident(run, rank, batch, &all[i], tp_registry_key(registry, all[i].key),
                               tp_registry_key(registry, all[i].u.incident.witness));
    }
    for (uint64_t i = 0, k = 0; i < batch->count && status == TP_OK; i++) {
        if (tp_view_reader_key(rank, batch->records[i].key) != NULL) {
            status = take_alert(run, rank, batch, &batch->records[i], all[k++].u.alert.incident);
        }
    }
    return status;
}

tp_status tp_view_take_alerts(tp_view_run *run, tp_view_rank *rank, const tp_batch *batch)
{
    tp_status status = TP_OK;
    bool is_older = batch->count > 0;
    for (uint64_t i = 0; i < batch->count && status == TP_OK; i++) {
        const tp_record *record = &batch->records[i];
        if (record->kind == TP_RECORD_INCIDENT) {
            status = take_incident(run, rank, batch, record, tp_view_reader_key(rank, record->key),
                                   tp_view_reader_key(rank, record->u.incident.witness));
        }
        rank->alert_count += record->kind == TP_RECORD_ALERT;
        is_older = is_older && record->kind == TP_RECORD_ALERT && record->u.alert.incident == 0;
    }
    if (is_older && status == TP_OK) {
        return put_together(run, rank, batch);
    }
    for (uint64_t i = 0; i < batch->count && status == TP_OK; i++) {
        const tp_record *record = &batch->records[i];
        if (record->kind == TP_RECORD_ALERT) {
            status = take_alert(run, rank, batch, record, record->u.alert.incident);
        }
    }
    return status;
}

uint32_t tp_view_cause_count(const tp_view_causes *causes)
{
    return (uint32_t)(causes->causes.size / sizeof(tp_view_cause));
}

const tp_view_cause *tp_view_cause_at(const tp_view_causes *causes, uint32_t index)
{
    return (const tp_view_cause *)(const void *)causes->causes.data + index;
}

const tp_view_incident *tp_view_part_at(const tp_view_causes *causes, uint32_t index)
{
    return ((const tp_view_incident *const *)(const void *)causes->parts.data)[index];
}

void tp_view_causes_free(tp_view_causes *causes)
{
    tp_buf_free(&causes->causes);
    tp_buf_free(&causes->parts);
}

static uint32_t kind_of(const tp_incident *incident)
{
    switch (incident->rule) {
    case TP_RULE_ALL_ZERO:
    case TP_RULE_UNCHANGED_TENSOR:
        return TP_VIEW_STILL;
    case TP_RULE_STALLED_STEP:
        return TP_VIEW_STALLED;
    default:
        return tp_incident_is_broken(incident) ? TP_VIEW_NONFINITE : TP_VIEW_RANGE;
    }
}

/* Adds a rank's part; series: bits of all so far. */
static void add_part(tp_view_cause *to, const tp_view_incident *one, tp_buf *series, uint64_t last)
{
    const tp_incident *incident = &one->record.u.incident;
    const uint64_t end =
        incident->last_step > one->last_step ? incident->last_step : one->last_step;
    to->part_count++;
    to->last_step = end > to->last_step ? end : to->last_step;
    to->steps = one->steps > to->steps ? one->steps : to->steps;
    to->alerts += one->alerts;
    to->in_first += one->in_first;
    to->open |= incident->state != TP_INCIDENT_ENDS && end + TP_INCIDENT_QUIET >= last;
    while (series->size < one->series.size && !series->failed) {
        tp_buf_put(series, "", 1);
    }
    for (size_t i = 0; i < one->series.size && !series->failed; i++) {
        to->series += (uint64_t)__builtin_popcount(one->series.data[i] & ~series->data[i]);
        series->data[i] |= one->series.data[i];
    }
}

tp_status tp_view_causes_find(const tp_view_run *run, tp_view_causes *out)
{
    tp_buf memory = TP_BUF_INIT; /* tp_part */
    tp_buf all = TP_BUF_INIT;    /* const tp_view_incident * */
    tp_buf series = TP_BUF_INIT;
    uint64_t first;
    uint64_t last = 0;
    *out = (tp_view_causes){.causes = TP_BUF_INIT, .parts = TP_BUF_INIT};
    tp_view_run_steps(run, &first, &last);
    for (uint32_t r = 0; r < tp_view_rank_count(run); r++) {
        const tp_view_rank *rank = tp_view_rank_at(run, r);
        for (size_t i = 0; i < incident_count(rank); i++) {
            const tp_view_incident *one = incident_at(rank, i);
            const tp_part part = {.moment = one->moment,
                                  .rank = one->rank,
                                  .is_broken = tp_incident_is_broken(&one->record.u.incident),
                                  .which = (uint32_t)(all.size / sizeof one)};
            if (one->key != TP_VIEW_NO_KEY) {
                tp_buf_put(&memory, &part, sizeof part);
                tp_buf_put(&all, &one, sizeof one);
            }
        }
    }
    tp_part *parts = (tp_part *)(void *)memory.data;
    const uint32_t count =
        memory.failed || all.failed ? 0 : (uint32_t)(memory.size / sizeof *parts);
    tp_parts_put_together(parts, count);
    for (uint32_t i = 0; i < count && !out->causes.failed && !out->parts.failed; i++) {
        const tp_view_incident *one =
            ((const tp_view_incident *const *)(const void *)all.data)[parts[i].which];
        if (parts[i].begins) {
            const tp_view_cause fresh = {.kind = kind_of(&one->record.u.incident), .first_part = i};
            tp_buf_put(&out->causes, &fresh, sizeof fresh);
            tp_buf_clear(&series);
        }
        tp_buf_put(&out->parts, &one, sizeof one);
        if (!out->causes.failed && !out->parts.failed) {
            add_part((tp_view_cause *)(void *)out->causes.data + parts[i].cause, one, &series,
                     last);
        }
    }
    const bool failed =
        memory.failed || all.failed || series.failed || out->causes.failed || out->parts.failed;
    tp_buf_free(&memory);
    tp_buf_free(&all);
    tp_buf_free(&series);
    return failed ? TP_ERR_NOMEM : TP_OK;
}
