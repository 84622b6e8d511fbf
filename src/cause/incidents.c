#include "cause/incidents.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "cause/order.h"
#include "cause/producer.h"

/* Weights of so many series out of their range at once have one reason. */
#define MANY 3

typedef struct open_incident {
    tp_record record; /* of kind TP_RECORD_INCIDENT, as it would be written now */
    bool is_open;
    bool changed; /* in this step: to be written */
    tp_map keys;  /* that had an alert */
} open_incident;

enum { BROKEN, OTHER, KINDS };

struct tp_incidents {
    const tp_registry *registry;
    open_incident open[KINDS];
    uint32_t last_number;
    double *largest; /* by key: largest |x| in the step before */
    uint32_t key_count;
};

tp_status tp_incidents_new(tp_incidents **out, const tp_registry *registry)
{
    tp_incidents *incidents = tp_calloc(1, sizeof *incidents);
    if (incidents == NULL) {
        return TP_ERR_NOMEM;
    }
    incidents->registry = registry;
    *out = incidents;
    return TP_OK;
}

void tp_incidents_free(tp_incidents *incidents)
{
    if (incidents == NULL) {
        return;
    }
    for (uint32_t i = 0; i < KINDS; i++) {
        tp_map_free(&incidents->open[i].keys);
    }
    tp_free(incidents->largest);
    tp_free(incidents);
}

static bool is_broken(const tp_alert *alert)
{
    return alert->rule == TP_RULE_ANOMALY_NAN && (alert->op == TP_OP_NANS || isinf(alert->value));
}

static uint32_t severity_of(const tp_alert *alert)
{
    switch (alert->rule) {
    case TP_RULE_STALLED_STEP:
        return TP_SEVERITY_CRITICAL;
    case TP_RULE_DEAD_UNITS:
    case TP_RULE_SATURATED:
    case TP_RULE_UNDERFLOW_SHARE:
    case TP_RULE_OVERFLOW_SHARE:
    case TP_RULE_MOMENTUM_AGAINST_GRADIENT:
        return TP_SEVERITY_NOTICE;
    default:
        return is_broken(alert) ? TP_SEVERITY_CRITICAL : TP_SEVERITY_WARNING;
    }
}

static bool is_power_of_ten(uint64_t number)
{
    while (number % 10 == 0 && number > 0) {
        number /= 10;
    }
    return number == 1;
}

static tp_moment moment_of(const tp_incidents *incidents, const tp_batch *batch,
                           const tp_record *record)
{
    const tp_key *key = tp_registry_key(incidents->registry, record->key);
    const tp_key none = {.quantity = 0};
    return tp_moment_of(batch, record, key != NULL ? key : &none);
}

/* The alert that comes first in the order of the step; NULL: none of this kind. */
static const tp_record *first_of(const tp_incidents *incidents, const tp_batch *batch,
                                 const tp_record *alerts, uint64_t count, bool broken)
{
    const tp_record *first = NULL;
    tp_moment earliest;
    for (uint64_t i = 0; i < count; i++) {
        if (is_broken(&alerts[i].u.alert) != broken) {
            continue;
        }
        const tp_moment moment = moment_of(incidents, batch, &alerts[i]);
        if (first == NULL || tp_moment_compare(&moment, &earliest) < 0) {
            first = &alerts[i];
            earliest = moment;
        }
    }
    return first;
}

/* The record of the batch that an alert is about. Their orders are those of the batch, with gaps
 * where slots were lost. */
static const tp_record *record_of(const tp_batch *batch, const tp_record *alert)
{
    uint64_t low = 0;
    uint64_t high = batch->count;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (batch->records[middle].order < alert->order) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const tp_record *found = low < batch->count ? &batch->records[low] : NULL;
    return found != NULL && found->order == alert->order && found->kind == TP_RECORD_STATS ? found
                                                                                           : NULL;
}

static uint32_t count_weights(const tp_incidents *incidents, const tp_record *alerts,
                              uint64_t count)
{
    uint32_t weights = 0;
    for (uint64_t i = 0; i < count; i++) {
        const tp_key *key = tp_registry_key(incidents->registry, alerts[i].key);
        weights += key != NULL && key->quantity == TP_PARAM_UPDATED;
    }
    return weights;
}

static void begin(tp_incidents *incidents, uint32_t kind, const tp_batch *batch,
                  const tp_record *first, const tp_record *alerts, uint64_t count)
{
    const tp_alert *alert = &first->u.alert;
    const open_incident *other = &incidents->open[OTHER];
    const tp_scene scene = {batch, incidents->registry, incidents->largest, incidents->key_count};
    open_incident *new = &incidents->open[kind];
    tp_incident incident = {
        .number = ++incidents->last_number,
        .state = TP_INCIDENT_BEGINS,
        .severity = severity_of(alert),
        .rule = alert->rule,
        .op = alert->op,
        .value = alert->value,
        .baseline = alert->baseline,
        .threshold = alert->threshold,
        .samples = alert->samples,
        .first_step = batch->step,
        .element = TP_NO_INDEX,
        .evidence = (double)NAN,
        .witness = TP_NO_KEY,
        .parent = kind == BROKEN && other->is_open ? other->record.u.incident.number : 0,
    };
    const tp_record *producer = record_of(batch, first);
    if (producer != NULL) {
        tp_producer_explain(&scene, producer, kind == BROKEN, &incident);
    }
    if (kind == OTHER && incident.cause == TP_CAUSE_UNKNOWN &&
        count_weights(incidents, alerts, count) >= MANY) {
        incident.cause = TP_CAUSE_MANY_AT_ONCE;
    }
    if (incident.cause == TP_CAUSE_LOSS_SCALE) {
        incident.severity = TP_SEVERITY_NOTICE;
    }
    new->record = *first;
    new->record.kind = TP_RECORD_INCIDENT;
    new->record.u.incident = incident;
    new->is_open = true;
    tp_map_free(&new->keys);
}

static tp_status add_alert(open_incident *to, const tp_batch *batch, tp_record *alert)
{
    tp_incident *incident = &to->record.u.incident;
    uint32_t unused;
    const bool first_in_step = incident->alerts == 0 || incident->last_step != batch->step;
    alert->u.alert.incident = incident->number;
    incident->alerts++;
    incident->last_step = batch->step;
    if (first_in_step) {
        incident->steps++;
        if (incident->steps > 1 && is_power_of_ten(incident->steps)) {
            incident->state = TP_INCIDENT_GROWS;
            to->changed = true;
        }
    }
    const bool skipped = (batch->flags & TP_BATCH_SKIPPED) != 0;
    const uint32_t severity = skipped ? TP_SEVERITY_NOTICE : severity_of(&alert->u.alert);
    if (severity > incident->severity) {
        incident->severity = severity;
        if (incident->steps > 1) {
            incident->state = TP_INCIDENT_GROWS;
        }
        to->changed = true;
    }
    if (tp_map_get(&to->keys, &alert->key, sizeof alert->key, &unused) == TP_OK) {
        return TP_OK;
    }
    incident->series++;
    return tp_map_set(&to->keys, &alert->key, sizeof alert->key, 0);
}

/* What belongs to NaN and infinities: they themselves, and what alerts behind the first of them. */
static bool belongs_to_broken(const tp_incidents *incidents, const tp_batch *batch,
                              const tp_record *alert)
{
    const open_incident *broken = &incidents->open[BROKEN];
    if (!broken->is_open || is_broken(&alert->u.alert)) {
        return broken->is_open;
    }
    if (broken->record.u.incident.first_step != batch->step) {
        return true;
    }
    const tp_moment since = moment_of(incidents, batch, &broken->record);
    const tp_moment moment = moment_of(incidents, batch, alert);
    return tp_moment_compare(&moment, &since) >= 0;
}

static tp_status take_alerts(tp_incidents *incidents, const tp_batch *batch, tp_record *alerts,
                             uint64_t count)
{
    open_incident *other = &incidents->open[OTHER];
    const tp_record *broken = first_of(incidents, batch, alerts, count, true);
    const tp_record *rest = first_of(incidents, batch, alerts, count, false);
    /* The one that may have led to the other comes first. */
    if (rest != NULL && !other->is_open && !incidents->open[BROKEN].is_open) {
        const tp_moment first = moment_of(incidents, batch, rest);
        const tp_moment since = moment_of(incidents, batch, broken != NULL ? broken : rest);
        if (broken == NULL || tp_moment_compare(&first, &since) < 0) {
            begin(incidents, OTHER, batch, rest, alerts, count);
            other->changed = true;
        }
    }
    if (broken != NULL && !incidents->open[BROKEN].is_open) {
        begin(incidents, BROKEN, batch, broken, alerts, count);
        incidents->open[BROKEN].changed = true;
    }
    tp_status status = TP_OK;
    for (uint64_t i = 0; status == TP_OK && i < count; i++) {
        const uint32_t kind = belongs_to_broken(incidents, batch, &alerts[i]) ? BROKEN : OTHER;
        status = add_alert(&incidents->open[kind], batch, &alerts[i]);
    }
    return status;
}

/* A step has more than is configured because of one of them. */
static void note_zoom(tp_incidents *incidents, const tp_batch *batch)
{
    for (uint32_t i = 0; i < KINDS; i++) {
        tp_incident *incident = &incidents->open[i].record.u.incident;
        const bool is_meant = incidents->open[i].is_open && incident->number == batch->zoom;
        if (is_meant && incident->zoom_steps++ == 0) {
            incident->zoom_after = (uint32_t)(batch->step - incident->first_step);
        }
    }
}

/* Ends those that were quiet for long enough, and what was no more than a search for a scale when
 * something happens that isn't. */
static void end_old_ones(tp_incidents *incidents, const tp_batch *batch, bool has_alerts)
{
    const bool is_update = (batch->flags & TP_BATCH_SKIPPED) == 0;
    for (uint32_t i = 0; i < KINDS; i++) {
        open_incident *open = &incidents->open[i];
        tp_incident *incident = &open->record.u.incident;
        const bool is_quiet = batch->step < incident->last_step ||
                              batch->step - incident->last_step > TP_INCIDENT_QUIET;
        const bool was_search = incident->cause == TP_CAUSE_LOSS_SCALE && is_update && has_alerts;
        if (open->is_open && (is_quiet || was_search)) {
            incident->state = TP_INCIDENT_ENDS;
            open->is_open = false;
            open->changed = true;
        }
    }
}

static void put_changed(tp_incidents *incidents, tp_buf *alerts)
{
    for (uint32_t i = KINDS; i-- > 0;) { /* in the order of their numbers where both begin */
        open_incident *open = &incidents->open[i];
        if (open->changed) {
            tp_buf_put(alerts, &open->record, sizeof open->record);
            open->changed = false;
        }
    }
}

/* What the next step may want to know of this one. */
static tp_status remember(tp_incidents *incidents, const tp_batch *batch)
{
    const uint32_t count = tp_registry_key_count(incidents->registry);
    if (count > incidents->key_count) {
        double *largest = tp_realloc(incidents->largest, count * sizeof *largest);
        if (largest == NULL) {
            return TP_ERR_NOMEM;
        }
        for (uint32_t i = incidents->key_count; i < count; i++) {
            largest[i] = (double)NAN;
        }
        incidents->largest = largest;
        incidents->key_count = count;
    }
    for (uint64_t i = 0; batch->records != NULL && i < batch->count; i++) {
        const tp_record *record = &batch->records[i];
        if (record->kind == TP_RECORD_STATS && record->state == TP_SLOT_DONE &&
            record->key < incidents->key_count) {
            incidents->largest[record->key] = record->u.stats.abs_max;
        }
    }
    return TP_OK;
}

tp_status tp_incidents_update(tp_incidents *incidents, const tp_batch *batch, tp_buf *alerts)
{
    const size_t before = alerts->size;
    const uint64_t count = before / sizeof(tp_record);
    note_zoom(incidents, batch);
    end_old_ones(incidents, batch, count > 0);
    put_changed(incidents, alerts); /* what begins now is another one */
    tp_status status = alerts->failed ? TP_ERR_NOMEM : TP_OK;
    if (status == TP_OK && count > 0) {
        status = take_alerts(incidents, batch, (tp_record *)(void *)alerts->data, count);
        put_changed(incidents, alerts);
        status = alerts->failed ? TP_ERR_NOMEM : status;
    }
    if (status == TP_OK) {
        status = remember(incidents, batch);
    }
    if (status != TP_OK) {
        alerts->size = before;
    }
    return status;
}
