/* What went wrong: incidents of all ranks, and what else was so at the step in which one began. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "record/names.h"
#include "tensor/dtype.h"
#include "view/ask.h"
#include "view/brief.h"
#include "view/causes.h"

#define CLEAN 3   /* lines of the path in front of the producer */
#define VICTIMS 6 /* behind it, before the others are put together */

static const char *const kinds[] = {"nonfinite", "range", "still", "stalled"};

static void put_text(tp_buf *out, const char *name, const char *text)
{
    tp_buf_printf(out, ",\"%s\":", name);
    tp_text_put_json(out, text);
}

static void put_number(tp_buf *out, const char *name, double value)
{
    tp_buf_printf(out, ",\"%s\":", name);
    tp_json_number(out, value);
}

static const char *known(const char *name)
{
    return name != NULL ? name : "?";
}

/* The number that another incident of the producer's rank has among all; 0: it isn't there. */
static uint32_t number_of(const tp_view_causes *causes, const tp_view_incident *like,
                          uint32_t number)
{
    for (uint32_t i = 0; number != 0 && i < tp_view_cause_count(causes); i++) {
        const tp_view_cause *cause = tp_view_cause_at(causes, i);
        for (uint32_t k = 0; k < cause->part_count; k++) {
            const tp_view_incident *part = tp_view_part_at(causes, cause->first_part + k);
            if (part->rank == like->rank && part->journal == like->journal &&
                part->attempt == like->attempt && part->record.u.incident.number == number) {
                return i + 1;
            }
        }
    }
    return 0;
}

/* Who it is told by, and the element, where they are known. */
static void put_reason(const tp_view_run *run, tp_buf *out, const tp_view_incident *first)
{
    const tp_incident *incident = &first->record.u.incident;
    put_text(out, "cause", known(tp_cause_name(incident->cause)));
    put_number(out, "evidence", incident->evidence);
    if (first->witness != TP_VIEW_NO_KEY) {
        const tp_view_key *witness = tp_view_key_at(run, first->witness);
        put_text(out, "witness", witness->row);
        put_text(out, "witness_q", known(tp_quantity_name(witness->quantity)));
    }
    if (incident->element != TP_NO_INDEX) {
        tp_buf_printf(out, ",\"element\":%" PRIu64 ",\"bits\":\"0x%" PRIx64 "\"", incident->element,
                      incident->bits);
    }
}

static void put_incident(const tp_view_run *run, tp_buf *out, const tp_view_causes *causes,
                         uint32_t index)
{
    const tp_view_cause *cause = tp_view_cause_at(causes, index);
    const tp_view_incident *first = tp_view_part_at(causes, cause->first_part);
    const tp_record *record = &first->record;
    const tp_incident *incident = &record->u.incident;
    const tp_view_key *key = tp_view_key_at(run, first->key);
    const tp_view_column *column =
        tp_view_column_find(tp_view_rank_find(run, first->rank), incident->first_step);
    const tp_alert alert = {.rule = incident->rule,
                            .op = incident->op,
                            .value = incident->value,
                            .baseline = incident->baseline,
                            .threshold = incident->threshold,
                            .samples = incident->samples};
    char text[TP_ALERT_TEXT];
    tp_alert_describe(&alert, text, sizeof text);
    tp_buf_printf(out,
                  "{\"n\":%" PRIu32 ",\"kind\":\"%s\",\"step\":%" PRIu64 ",\"last\":%" PRIu64
                  ",\"steps\":%" PRIu64 ",\"alerts\":%" PRIu64 ",\"in_first\":%" PRIu64
                  ",\"series\":%" PRIu64 ",\"rank\":%" PRIu32 ",\"micro_step\":%" PRIu32
                  ",\"open\":%s,\"wall\":%" PRId64 ",\"samples\":%" PRIu64,
                  index + 1, kinds[cause->kind], incident->first_step, cause->last_step,
                  cause->steps, cause->alerts, cause->in_first, cause->series, first->rank,
                  record->micro_step, cause->open ? "true" : "false",
                  column != NULL ? column->wall_ns / 1000000 : 0, incident->samples);
    put_text(out, "severity", known(tp_severity_name(incident->severity)));
    put_text(out, "rule", known(tp_rule_name(incident->rule)));
    put_text(out, "op", known(tp_op_name(incident->op)));
    put_number(out, "value", incident->value);
    put_number(out, "baseline", incident->baseline);
    put_number(out, "threshold", incident->threshold);
    put_text(out, "text", text);
    put_text(out, "said", first->text);
    put_text(out, "q", known(tp_quantity_name(key->quantity)));
    put_text(out, "row", key->row);
    put_text(out, "name", key->name);
    if (incident->rule == TP_RULE_REPLICA_DRIFT && tp_replica_parameter(key->name) != NULL) {
        put_text(out, "parameter", tp_replica_parameter(key->name));
    }
    put_reason(run, out, first);
    tp_buf_printf(out, ",\"parent\":%" PRIu32 ",\"ranks\":[",
                  number_of(causes, first, incident->parent));
    uint32_t last = UINT32_MAX;
    for (uint64_t next = 0; next <= UINT32_MAX;) { /* in the order of their numbers */
        uint64_t least = UINT64_MAX;
        for (uint32_t i = 0; i < cause->part_count; i++) {
            const uint32_t rank = tp_view_part_at(causes, cause->first_part + i)->rank;
            least = rank >= next && rank < least ? rank : least;
        }
        if (least == UINT64_MAX) {
            break;
        }
        tp_buf_printf(out, "%s%" PRIu64, last != UINT32_MAX ? "," : "", least);
        last = (uint32_t)least;
        next = least + 1;
    }
    tp_buf_printf(out, "]");
}

void tp_answer_incidents(const tp_view_run *run, tp_answer *answer)
{
    tp_view_causes causes;
    if (tp_view_causes_find(run, &causes) != TP_OK) {
        answer->body.failed = true;
    }
    tp_buf_printf(&answer->body, "{\"incidents\":[");
    for (uint32_t i = 0; i < tp_view_cause_count(&causes); i++) {
        tp_buf_printf(&answer->body, i > 0 ? "," : "");
        put_incident(run, &answer->body, &causes, i);
        tp_buf_printf(&answer->body, "}");
    }
    tp_buf_printf(&answer->body, "]}");
    tp_view_causes_free(&causes);
}

uint64_t tp_incident_count(const tp_view_run *run)
{
    tp_view_causes causes;
    tp_view_causes_find(run, &causes);
    const uint64_t count = tp_view_cause_count(&causes);
    tp_view_causes_free(&causes);
    return count;
}

bool tp_incident_find(const tp_view_run *run, uint64_t number, tp_incident_place *out)
{
    tp_view_causes causes;
    tp_view_causes_find(run, &causes);
    const bool found = number >= 1 && number <= tp_view_cause_count(&causes);
    if (found) {
        const tp_view_cause *cause = tp_view_cause_at(&causes, (uint32_t)number - 1);
        const tp_view_incident *first = tp_view_part_at(&causes, cause->first_part);
        const tp_view_key *key = tp_view_key_at(run, first->key);
        *out = (tp_incident_place){.step = first->record.u.incident.first_step,
                                   .ranks = cause->part_count,
                                   .key = first->key,
                                   .rank = first->rank,
                                   .is_nonfinite = cause->kind == TP_VIEW_NONFINITE,
                                   .quantity = known(tp_quantity_name(key->quantity)),
                                   .row = key->row,
                                   .text = first->text};
    }
    tp_view_causes_free(&causes);
    return found;
}

/* A tensor of the step in which it began. */
typedef struct actor {
    tp_moment moment;
    const tp_record *record;
    const tp_view_key *key; /* NULL: its name is lost */
    tp_cell cell;
} actor;

/* That step, as the journal has it. */
typedef struct scene {
    const tp_view_run *run;
    const tp_view_rank *rank;
    const tp_view_column *column;
    tp_reader *reader;
    tp_item item;
    tp_buf actors;     /* in the order in which the step computes */
    tp_grid_view view; /* norms of the column's block */
    uint32_t place;    /* of the column in it */
} scene;

static int by_moment(const void *a, const void *b)
{
    return tp_moment_compare(&((const actor *)a)->moment, &((const actor *)b)->moment);
}

static const actor *actor_at(const scene *in, size_t place)
{
    return (const actor *)(const void *)in->actors.data + place;
}

static size_t actor_count(const scene *in)
{
    return in->actors.size / sizeof(actor);
}

static uint64_t bad_of(const tp_stats *stats)
{
    return stats->nan + stats->pos_inf + stats->neg_inf;
}

static void add_actor(scene *in, const tp_record *record)
{
    const tp_key *key = tp_reader_key(in->reader, record->key);
    actor one = {.record = record, .cell = tp_cell_none()};
    if (key == NULL) {
        return; /* its name is lost */
    }
    const uint32_t number = tp_view_key_of(in->run, key, record->call);
    if (number == TP_VIEW_NO_KEY) {
        return;
    }
    one.key = tp_view_key_at(in->run, number);
    one.moment = tp_moment_of(&in->item.batch, record, key);
    const uint32_t at = tp_view_row_of(in->rank, number);
    if (at < in->view.count) {
        const size_t place = (size_t)at * in->view.width + in->place;
        one.cell = (tp_cell){in->view.values[place], in->view.codes[place]};
    }
    tp_buf_put(&in->actors, &one, sizeof one);
}

static bool open_scene(scene *in, const tp_view_incident *first)
{
    in->rank = tp_view_rank_find(in->run, first->rank);
    in->column = tp_view_column_find(in->rank, first->record.u.incident.first_step);
    if (in->column == NULL ||
        tp_view_read_step(in->rank, in->column, &in->reader, &in->item) != TP_OK) {
        return false;
    }
    const uint64_t column = (uint64_t)(in->column - tp_view_column_at(in->rank, 0));
    const tp_grid_place place = tp_grid_find(in->rank->grid, column);
    const uint32_t rows = tp_grid_rows(in->rank->grid);
    const tp_wish wish = {in->rank->rank, TP_GRID_NORM, 0, rows, column, column};
    in->place = (uint32_t)(column - place.first);
    tp_wishes_read(in->run, &wish);
    if (tp_grid_read(in->rank->grid, place.block, TP_GRID_NORM, 0, rows, false, &in->view, NULL) !=
        TP_OK) {
        in->view.count = 0;
    }
    for (uint64_t i = 0; in->item.batch.records != NULL && i < in->item.batch.count; i++) {
        const tp_record *record = &in->item.batch.records[i];
        if (record->state == TP_SLOT_DONE && record->kind == TP_RECORD_STATS) {
            add_actor(in, record);
        }
    }
    if (in->actors.failed || in->actors.size == 0) {
        return false;
    }
    qsort(in->actors.data, actor_count(in), sizeof(actor), by_moment);
    return true;
}

static void close_scene(scene *in)
{
    tp_reader_close(&in->reader);
    tp_buf_free(&in->actors);
    tp_grid_view_free(&in->view);
}

static void put_line(tp_buf *out, const actor *of, const char *part)
{
    const tp_stats *stats = &of->record->u.stats;
    const float far = tp_distance_of_code(of->cell.code);
    tp_buf_printf(out, "{\"part\":\"%s\"", part);
    put_text(out, "row", of->key->row);
    put_text(out, "q", known(tp_quantity_name(of->key->quantity)));
    put_text(out, "dtype", known(tp_dtype_name(of->record->dtype)));
    tp_buf_printf(out,
                  ",\"count\":%" PRIu64 ",\"nan\":%" PRIu64 ",\"pos_inf\":%" PRIu64
                  ",\"neg_inf\":%" PRIu64 ",\"distance\":%.3g",
                  stats->count, stats->nan, stats->pos_inf, stats->neg_inf,
                  isnan(far) ? 0.0 : (double)far);
    put_number(out, "norm", tp_stats_norm(stats));
    put_number(out, "max_abs", fmax(fabs(stats->finite_min), fabs(stats->finite_max)));
    tp_buf_printf(out, "}");
}

/* What comes after the producer, of one quantity. */
typedef struct victims {
    uint32_t count;
    uint64_t bad;
    uint64_t elements;
    size_t place; /* of the first one */
    const tp_view_key *first;
    const tp_view_key *last;
    float farthest;
} victims;

static bool is_victim(const actor *one, uint32_t kind)
{
    return one->key->role != TP_ROLE_INPUT &&
           (kind == TP_VIEW_NONFINITE ? bad_of(&one->record->u.stats) > 0
                                      : fabsf(tp_distance_of_code(one->cell.code)) > 6);
}

static int by_place(const void *a, const void *b)
{
    const size_t p = ((const victims *)a)->place;
    const size_t q = ((const victims *)b)->place;
    return p < q ? -1 : p > q;
}

static void put_victims(tp_buf *out, victims *of)
{
    qsort(of, TP_VIEW_QUANTITIES, sizeof *of, by_place);
    for (uint32_t i = 0; i < TP_VIEW_QUANTITIES; i++) {
        const victims *one = &of[i];
        if (one->count == 0) {
            continue;
        }
        tp_buf_printf(out, ",{\"part\":\"victims\",\"q\":\"%s\",\"modules\":%" PRIu32,
                      known(tp_quantity_name(one->first->quantity)), one->count);
        put_text(out, "from", one->first->row);
        put_text(out, "to", one->last->row);
        tp_buf_printf(out, ",\"count\":%" PRIu64 ",\"bad\":%" PRIu64 ",\"distance\":%.3g}",
                      one->elements, one->bad, (double)one->farthest);
    }
}

/* The path: clean ones, the producer, victims one by one and then by quantity. */
static void put_path(const scene *in, tp_buf *out, size_t producer, uint32_t kind)
{
    const uint32_t quantity = actor_at(in, producer)->key->quantity;
    victims of[TP_VIEW_QUANTITIES] = {0};
    size_t clean[CLEAN];
    uint32_t clean_count = 0;
    uint32_t shown = 0;
    for (size_t i = producer; i-- > 0 && clean_count < CLEAN;) {
        const tp_view_key *key = actor_at(in, i)->key;
        if (key->quantity == quantity && key->role != TP_ROLE_INPUT) {
            clean[clean_count++] = i;
        }
    }
    tp_buf_printf(out, ",\"path\":[");
    while (clean_count > 0) {
        put_line(out, actor_at(in, clean[--clean_count]), "before");
        tp_buf_printf(out, ",");
    }
    put_line(out, actor_at(in, producer), "producer");
    for (size_t i = producer + 1; i < actor_count(in); i++) {
        const actor *one = actor_at(in, i);
        if (!is_victim(one, kind)) {
            continue;
        }
        if (shown++ < VICTIMS) {
            tp_buf_printf(out, ",");
            put_line(out, one, "victim");
            continue;
        }
        victims *to = &of[one->key->quantity];
        const float far = fabsf(tp_distance_of_code(one->cell.code));
        to->first = to->count == 0 ? one->key : to->first;
        to->place = to->count == 0 ? i : to->place;
        to->last = one->key;
        to->count++;
        to->elements += one->record->u.stats.count;
        to->bad += bad_of(&one->record->u.stats);
        to->farthest = far > to->farthest ? far : to->farthest;
    }
    put_victims(out, of);
    tp_buf_printf(out, "]");
}

/* The weights of the producer's module, as they were before the step. */
static void put_weights(const scene *in, tp_buf *out, const tp_view_key *producer)
{
    const size_t length = strlen(producer->name);
    const char *separator = "";
    tp_buf_printf(out, ",\"weights\":[");
    for (size_t i = 0; i < actor_count(in); i++) {
        const tp_view_key *key = actor_at(in, i)->key;
        if (key->quantity != TP_PARAM_ORIGIN || strncmp(key->name, producer->name, length) != 0 ||
            key->name[length] != '.' || strchr(key->name + length + 1, '.') != NULL) {
            continue;
        }
        tp_buf_printf(out, "%s", separator);
        put_line(out, actor_at(in, i), "weight");
        separator = ",";
    }
    tp_buf_printf(out, "]");
}

static void put_facts(const scene *in, tp_buf *out, size_t producer, uint32_t witness)
{
    const actor *first = actor_at(in, producer);
    const tp_stats *stats = &first->record->u.stats;
    uint64_t bad_before = 0;
    for (size_t i = 0; i < producer; i++) {
        bad_before += bad_of(&actor_at(in, i)->record->u.stats) > 0;
    }
    tp_buf_printf(out,
                  ",\"facts\":{\"before\":%zu,\"bad_before\":%" PRIu64
                  ",\"records\":%zu,\"skipped\":%s,\"micro_steps\":%" PRIu32,
                  producer, bad_before, actor_count(in),
                  (in->item.batch.flags & TP_BATCH_SKIPPED) != 0 ? "true" : "false",
                  in->item.batch.micro_steps);
    put_number(out, "largest", fmax(fabs(stats->finite_min), fabs(stats->finite_max)));
    put_number(out, "limit", tp_dtype_limit(first->record->dtype));
    put_weights(in, out, first->key);
    for (size_t i = 0; witness != TP_VIEW_NO_KEY && i < actor_count(in); i++) {
        if (actor_at(in, i)->key == tp_view_key_at(in->run, witness) &&
            actor_at(in, i)->moment.micro_step == first->moment.micro_step) {
            tp_buf_printf(out, ",\"witness\":");
            put_line(out, actor_at(in, i), "witness");
            break;
        }
    }
    tp_buf_printf(out, "}");
}

/* Where it shows first on each rank. */
static void put_parts(const tp_view_run *run, tp_buf *out, const tp_view_causes *causes,
                      const tp_view_cause *cause)
{
    tp_buf_printf(out, ",\"parts\":[");
    for (uint32_t i = 0; i < cause->part_count; i++) {
        const tp_view_incident *part = tp_view_part_at(causes, cause->first_part + i);
        const tp_view_key *key = tp_view_key_at(run, part->key);
        tp_buf_printf(out, "%s{\"rank\":%" PRIu32 ",\"step\":%" PRIu64, i > 0 ? "," : "",
                      part->rank, part->record.u.incident.first_step);
        put_text(out, "row", key->row);
        put_text(out, "q", known(tp_quantity_name(key->quantity)));
        tp_buf_printf(out, "}");
    }
    tp_buf_printf(out, "]");
}

void tp_answer_incident(const tp_view_run *run, const tp_ask *ask, tp_answer *answer)
{
    tp_view_causes causes;
    const tp_status status = tp_view_causes_find(run, &causes);
    const uint32_t count = tp_view_cause_count(&causes);
    const uint64_t number = tp_ask_number(ask, "i", count);
    if (status != TP_OK || number < 1 || number > count) {
        tp_answer_wrong(answer, status != TP_OK ? 503 : 404,
                        status != TP_OK ? "no memory" : "no such incident");
        tp_view_causes_free(&causes);
        return;
    }
    const tp_view_cause *cause = tp_view_cause_at(&causes, (uint32_t)number - 1);
    const tp_view_incident *first = tp_view_part_at(&causes, cause->first_part);
    scene in = {.run = run};
    put_incident(run, &answer->body, &causes, (uint32_t)number - 1);
    tp_buf_printf(&answer->body, ",\"of\":%" PRIu32, count);
    put_parts(run, &answer->body, &causes, cause);
    if (open_scene(&in, first)) {
        for (size_t i = 0; i < actor_count(&in); i++) {
            if (actor_at(&in, i)->record->order == first->record.order) {
                put_path(&in, &answer->body, i, cause->kind);
                put_facts(&in, &answer->body, i, first->witness);
                break;
            }
        }
    }
    close_scene(&in);
    tp_buf_printf(&answer->body, "}");
    tp_view_causes_free(&causes);
}
