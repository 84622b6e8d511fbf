/* What went wrong: alerts that belong together, and what else was so at that step. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "tensor/dtype.h"
#include "view/ask.h"

#define QUIET 20  /* steps without an alert that end one */
#define MOST 1000 /* incidents that are told of */
#define CLEAN 3   /* lines of the path in front of the producer */
#define VICTIMS 5 /* behind it, before the others are put together */

/* Kinds of incidents. */
#define KIND_NONFINITE 0
#define KIND_RANGE 1
#define KIND_STILL 2
#define KINDS 3
static const char *const kinds[KINDS] = {"nonfinite", "range", "still"};

typedef struct incident {
    uint32_t kind;
    const tp_view_alert *first;
    uint64_t last_step;
    uint64_t steps;
    uint64_t alerts;
    uint64_t in_first; /* alerts of its first step */
    uint64_t ranks;    /* bits of the first 64 */
    tp_buf keys;       /* bits of the series that have one */
    uint64_t series;
} incident;

static uint32_t kind_of(uint32_t rule)
{
    return rule == TP_RULE_ANOMALY_NAN                                    ? KIND_NONFINITE
           : rule == TP_RULE_ALL_ZERO || rule == TP_RULE_UNCHANGED_TENSOR ? KIND_STILL
                                                                          : KIND_RANGE;
}

static int by_time(const void *a, const void *b)
{
    const tp_view_alert *p = *(const tp_view_alert *const *)a;
    const tp_view_alert *q = *(const tp_view_alert *const *)b;
    if (p->step != q->step) {
        return p->step < q->step ? -1 : 1;
    }
    if (p->record.order != q->record.order) {
        return p->record.order < q->record.order ? -1 : 1;
    }
    return p->rank < q->rank ? -1 : p->rank > q->rank;
}

static void mark(incident *one, const tp_view_alert *alert)
{
    const size_t byte = alert->key / 8;
    one->steps += one->alerts == 0 || alert->step != one->last_step;
    one->alerts++;
    one->in_first += alert->step == one->first->step;
    one->last_step = alert->step;
    one->ranks |= alert->rank < 64 ? UINT64_C(1) << alert->rank : 0;
    while (one->keys.size <= byte && !one->keys.failed) {
        tp_buf_put(&one->keys, "", 1);
    }
    if (!one->keys.failed && (one->keys.data[byte] >> (alert->key % 8) & 1) == 0) {
        one->keys.data[byte] |= (uint8_t)(1U << (alert->key % 8));
        one->series++;
    }
}

/* All incidents of the run, in the order of their beginnings. */
static void find_incidents(const tp_view_run *run, tp_buf *out)
{
    tp_buf all = TP_BUF_INIT;
    uint32_t open[KINDS] = {0}; /* place + 1 */
    for (uint32_t r = 0; r < tp_view_rank_count(run); r++) {
        const tp_view_rank *rank = tp_view_rank_at(run, r);
        const tp_view_alert *alerts = (const tp_view_alert *)(const void *)rank->alerts.data;
        for (size_t i = 0; i < rank->alerts.size / sizeof *alerts; i++) {
            const tp_view_alert *one = &alerts[i];
            tp_buf_put(&all, &one, sizeof one);
        }
    }
    const size_t count = all.failed ? 0 : all.size / sizeof(tp_view_alert *);
    if (count > 0) {
        qsort(all.data, count, sizeof(tp_view_alert *), by_time);
    }
    for (size_t i = 0; i < count; i++) {
        const tp_view_alert *alert = ((const tp_view_alert *const *)(const void *)all.data)[i];
        const uint32_t kind = kind_of(alert->record.u.alert.rule);
        incident *one = open[kind] > 0 ? (incident *)(void *)out->data + (open[kind] - 1) : NULL;
        if (one == NULL || alert->step > one->last_step + QUIET) {
            const incident fresh = {.kind = kind, .first = alert, .last_step = alert->step};
            if (out->size / sizeof fresh >= MOST) {
                break;
            }
            tp_buf_put(out, &fresh, sizeof fresh);
            if (out->failed) {
                break;
            }
            open[kind] = (uint32_t)(out->size / sizeof fresh);
            one = (incident *)(void *)out->data + (open[kind] - 1);
        }
        mark(one, alert);
    }
    tp_buf_free(&all);
}

static void free_incidents(tp_buf *incidents)
{
    incident *all = (incident *)(void *)incidents->data;
    for (size_t i = 0; i < incidents->size / sizeof *all; i++) {
        tp_buf_free(&all[i].keys);
    }
    tp_buf_free(incidents);
}

static void put_incident(const tp_view_run *run, tp_buf *out, const incident *one, size_t number)
{
    const tp_alert *alert = &one->first->record.u.alert;
    const tp_view_key *key = tp_view_key_at(run, one->first->key);
    const tp_view_rank *rank = tp_view_rank_find(run, one->first->rank);
    const tp_view_column *column = tp_view_column_find(rank, one->first->step);
    char text[TP_ALERT_TEXT];
    uint64_t first;
    uint64_t last = 0;
    tp_view_run_steps(run, &first, &last);
    tp_alert_describe(alert, text, sizeof text);
    tp_buf_printf(out,
                  "{\"n\":%zu,\"kind\":\"%s\",\"step\":%" PRIu64 ",\"last\":%" PRIu64
                  ",\"steps\":%" PRIu64 ",\"alerts\":%" PRIu64 ",\"in_first\":%" PRIu64
                  ",\"series\":%" PRIu64 ",\"rank\":%" PRIu32 ",\"micro_step\":%" PRIu32
                  ",\"open\":%s,\"wall\":%" PRId64 ",\"rule\":\"%s\",\"op\":\"%s\",\"value\":",
                  number, kinds[one->kind], one->first->step, one->last_step, one->steps,
                  one->alerts, one->in_first, one->series, one->first->rank,
                  one->first->record.micro_step, one->last_step + QUIET >= last ? "true" : "false",
                  column != NULL ? column->wall_ns / 1000000 : 0,
                  tp_rule_name(alert->rule) != NULL ? tp_rule_name(alert->rule) : "?",
                  tp_op_name(alert->op) != NULL ? tp_op_name(alert->op) : "?");
    tp_json_number(out, alert->value);
    tp_buf_printf(out, ",\"baseline\":");
    tp_json_number(out, alert->baseline);
    tp_buf_printf(out, ",\"threshold\":");
    tp_json_number(out, alert->threshold);
    tp_buf_printf(out, ",\"samples\":%" PRIu64 ",\"text\":", alert->samples);
    tp_text_put_json(out, text);
    tp_buf_printf(out, ",\"q\":\"%s\",\"row\":", tp_quantity_name(key->quantity));
    tp_text_put_json(out, key->row);
    tp_buf_printf(out, ",\"name\":");
    tp_text_put_json(out, key->name);
    tp_buf_printf(out, ",\"ranks\":[");
    const char *separator = "";
    for (uint32_t bit = 0; bit < 64; bit++) {
        if ((one->ranks >> bit & 1) != 0) {
            tp_buf_printf(out, "%s%" PRIu32, separator, bit);
            separator = ",";
        }
    }
    tp_buf_printf(out, "]");
}

void tp_answer_incidents(const tp_view_run *run, tp_answer *answer)
{
    tp_buf all = TP_BUF_INIT;
    find_incidents(run, &all);
    tp_buf_printf(&answer->body, "{\"incidents\":[");
    for (size_t i = 0; i < all.size / sizeof(incident); i++) {
        tp_buf_printf(&answer->body, i > 0 ? "," : "");
        put_incident(run, &answer->body, (const incident *)(const void *)all.data + i, i + 1);
        tp_buf_printf(&answer->body, "}");
    }
    tp_buf_printf(&answer->body, "]}");
    free_incidents(&all);
}

uint64_t tp_incident_count(const tp_view_run *run)
{
    tp_buf all = TP_BUF_INIT;
    find_incidents(run, &all);
    const uint64_t count = all.size / sizeof(incident);
    free_incidents(&all);
    return count;
}

bool tp_incident_find(const tp_view_run *run, uint64_t number, tp_incident_place *out)
{
    tp_buf all = TP_BUF_INIT;
    find_incidents(run, &all);
    const bool found = number >= 1 && number <= all.size / sizeof(incident);
    if (found) {
        const incident *one = (const incident *)(const void *)all.data + (number - 1);
        const tp_view_key *key = tp_view_key_at(run, one->first->key);
        *out = (tp_incident_place){.step = one->first->step,
                                   .rank = one->first->rank,
                                   .is_nonfinite = one->kind == KIND_NONFINITE,
                                   .quantity = tp_quantity_name(key->quantity),
                                   .row = key->row};
        tp_alert_describe(&one->first->record.u.alert, out->text, sizeof out->text);
    }
    free_incidents(&all);
    return found;
}

/* The step in which it began, as the journal has it. */
typedef struct scene {
    const tp_view_run *run;
    const tp_view_rank *rank;
    const tp_view_column *column;
    tp_reader *reader;
    tp_item item;
    tp_buf order;      /* const tp_record *, in execution order */
    tp_grid_view view; /* norms of the column's block */
    uint32_t place;    /* of the column in it */
} scene;

static int by_order(const void *a, const void *b)
{
    const tp_record *p = *(const tp_record *const *)a;
    const tp_record *q = *(const tp_record *const *)b;
    return p->order < q->order ? -1 : p->order > q->order;
}

static const tp_record *record_at(const scene *in, size_t place)
{
    return ((const tp_record *const *)(const void *)in->order.data)[place];
}

static size_t record_count(const scene *in)
{
    return in->order.size / sizeof(const tp_record *);
}

static bool is_finite(const tp_record *record)
{
    const tp_stats *stats = &record->u.stats;
    return stats->nan + stats->pos_inf + stats->neg_inf == 0;
}

/* The series of a record; NULL: its name is lost. */
static const tp_view_key *key_of(const scene *in, const tp_record *record, tp_cell *cell)
{
    char row[1056];
    const tp_key *key = tp_reader_key(in->reader, record->key);
    *cell = tp_cell_none();
    if (key == NULL) {
        return NULL;
    }
    size_t length = (size_t)tp_row_name(key, record->call, row, 1024);
    if (key->vpp_stage > 0) {
        snprintf(row + length, sizeof row - length, "@%d", key->vpp_stage);
    }
    const uint32_t number = tp_view_key_find(in->run, key->quantity, row);
    if (number == TP_VIEW_NO_KEY) {
        return NULL;
    }
    const uint32_t at = tp_view_row_of(in->rank, number);
    if (at < in->view.count) {
        const size_t place = (size_t)at * TP_GRID_WIDTH + in->place;
        *cell = (tp_cell){in->view.values[place], in->view.codes[place]};
    }
    return tp_view_key_at(in->run, number);
}

static bool open_scene(scene *in, const tp_view_alert *first)
{
    in->rank = tp_view_rank_find(in->run, first->rank);
    in->column = in->rank != NULL ? tp_view_column_find(in->rank, first->step) : NULL;
    if (in->column == NULL ||
        tp_view_read_step(in->rank, in->column, &in->reader, &in->item) != TP_OK) {
        return false;
    }
    const uint64_t column = (uint64_t)(in->column - tp_view_column_at(in->rank, 0));
    in->place = (uint32_t)(column % TP_GRID_WIDTH);
    if (tp_grid_read(in->rank->grid, column / TP_GRID_WIDTH, TP_GRID_NORM, 0,
                     tp_grid_rows(in->rank->grid), false, &in->view, NULL) != TP_OK) {
        in->view.count = 0;
    }
    for (uint64_t i = 0; in->item.batch.records != NULL && i < in->item.batch.count; i++) {
        const tp_record *record = &in->item.batch.records[i];
        if (record->state == TP_SLOT_DONE && record->kind == TP_RECORD_STATS) {
            tp_buf_put(&in->order, &record, sizeof record);
        }
    }
    if (in->order.failed || in->order.size == 0) {
        return false;
    }
    qsort(in->order.data, record_count(in), sizeof(const tp_record *), by_order);
    return true;
}

static void close_scene(scene *in)
{
    tp_reader_close(&in->reader);
    tp_buf_free(&in->order);
    tp_grid_view_free(&in->view);
}

static void put_line(tp_buf *out, const tp_view_key *key, const tp_record *record, tp_cell cell,
                     const char *part)
{
    const tp_stats *stats = &record->u.stats;
    const float far = tp_distance_of_code(cell.code);
    const char *dtype = tp_dtype_name(record->dtype);
    tp_buf_printf(out, "{\"part\":\"%s\",\"row\":", part);
    tp_text_put_json(out, key->row);
    tp_buf_printf(out,
                  ",\"q\":\"%s\",\"dtype\":\"%s\",\"count\":%" PRIu64 ",\"nan\":%" PRIu64
                  ",\"pos_inf\":%" PRIu64 ",\"neg_inf\":%" PRIu64 ",\"distance\":%.3g,\"norm\":",
                  tp_quantity_name(key->quantity), dtype != NULL ? dtype : "?", stats->count,
                  stats->nan, stats->pos_inf, stats->neg_inf, isnan(far) ? 0.0 : (double)far);
    tp_json_number(out, tp_stats_norm(stats));
    tp_buf_printf(out, ",\"max_abs\":");
    tp_json_number(out, fmax(fabs(stats->finite_min), fabs(stats->finite_max)));
    tp_buf_printf(out, "}");
}

/* What comes after the producer, of one quantity. */
typedef struct victims {
    uint32_t count;
    uint64_t bad;
    uint64_t elements;
    const tp_view_key *first;
    const tp_view_key *last;
    float farthest;
} victims;

static bool is_victim(const tp_record *record, tp_cell cell, uint32_t kind)
{
    return kind == KIND_NONFINITE ? !is_finite(record) : fabsf(tp_distance_of_code(cell.code)) > 6;
}

static void put_victims(tp_buf *out, const victims *of)
{
    for (uint32_t q = 1; q < TP_VIEW_QUANTITIES; q++) {
        const victims *one = &of[q];
        if (one->count == 0) {
            continue;
        }
        tp_buf_printf(out, ",{\"part\":\"victims\",\"q\":\"%s\",\"modules\":%" PRIu32 ",\"from\":",
                      tp_quantity_name(q), one->count);
        tp_text_put_json(out, one->first->row);
        tp_buf_printf(out, ",\"to\":");
        tp_text_put_json(out, one->last->row);
        tp_buf_printf(out, ",\"count\":%" PRIu64 ",\"bad\":%" PRIu64 ",\"distance\":%.3g}",
                      one->elements, one->bad, (double)one->farthest);
    }
}

/* The path: clean ones, the producer, victims one by one and then by quantity. */
static void put_path(const scene *in, tp_buf *out, size_t producer, uint32_t kind)
{
    const uint32_t quantity = tp_reader_key(in->reader, record_at(in, producer)->key)->quantity;
    victims of[TP_VIEW_QUANTITIES] = {0};
    size_t clean[CLEAN];
    uint32_t clean_count = 0;
    uint32_t shown = 0;
    tp_cell cell;
    for (size_t i = producer; i-- > 0 && clean_count < CLEAN;) {
        const tp_view_key *key = key_of(in, record_at(in, i), &cell);
        if (key != NULL && key->quantity == quantity && key->role != TP_ROLE_INPUT) {
            clean[clean_count++] = i;
        }
    }
    tp_buf_printf(out, ",\"path\":[");
    while (clean_count > 0) {
        const tp_record *record = record_at(in, clean[--clean_count]);
        const tp_view_key *key = key_of(in, record, &cell);
        put_line(out, key, record, cell, "before");
        tp_buf_printf(out, ",");
    }
    const tp_view_key *named = key_of(in, record_at(in, producer), &cell);
    put_line(out, named, record_at(in, producer), cell, "producer");
    for (size_t i = producer + 1; i < record_count(in); i++) {
        const tp_record *record = record_at(in, i);
        const tp_view_key *key = key_of(in, record, &cell);
        if (key == NULL || !is_victim(record, cell, kind) || key->role == TP_ROLE_INPUT) {
            continue;
        }
        if (key->quantity == quantity && shown++ < VICTIMS) {
            tp_buf_printf(out, ",");
            put_line(out, key, record, cell, "victim");
            continue;
        }
        victims *to = &of[key->quantity];
        const tp_stats *stats = &record->u.stats;
        const float far = fabsf(tp_distance_of_code(cell.code));
        to->first = to->count == 0 ? key : to->first;
        to->last = key;
        to->count++;
        to->elements += stats->count;
        to->bad += stats->nan + stats->pos_inf + stats->neg_inf;
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
    tp_cell cell;
    tp_buf_printf(out, ",\"weights\":[");
    for (size_t i = 0; i < record_count(in); i++) {
        const tp_record *record = record_at(in, i);
        const tp_view_key *key = key_of(in, record, &cell);
        if (key == NULL || key->quantity != TP_PARAM_ORIGIN ||
            strncmp(key->name, producer->name, length) != 0 || key->name[length] != '.' ||
            strchr(key->name + length + 1, '.') != NULL) {
            continue;
        }
        tp_buf_printf(out, "%s", separator);
        put_line(out, key, record, cell, "weight");
        separator = ",";
    }
    tp_buf_printf(out, "]");
}

static void put_facts(const scene *in, tp_buf *out, size_t producer)
{
    const tp_record *record = record_at(in, producer);
    tp_cell cell;
    const tp_view_key *key = key_of(in, record, &cell);
    uint64_t before = 0;
    uint64_t bad_before = 0;
    for (size_t i = 0; i < producer; i++) {
        before++;
        bad_before += !is_finite(record_at(in, i));
    }
    tp_buf_printf(out,
                  ",\"facts\":{\"before\":%" PRIu64 ",\"bad_before\":%" PRIu64
                  ",\"records\":%zu,\"skipped\":%s,\"micro_steps\":%" PRIu32 ",\"largest\":",
                  before, bad_before, record_count(in),
                  (in->item.batch.flags & TP_BATCH_SKIPPED) != 0 ? "true" : "false",
                  in->item.batch.micro_steps);
    tp_json_number(out, fmax(fabs(record->u.stats.finite_min), fabs(record->u.stats.finite_max)));
    tp_buf_printf(out, ",\"limit\":");
    tp_json_number(out, tp_dtype_limit(record->dtype));
    put_weights(in, out, key);
    tp_buf_printf(out, "}");
}

void tp_answer_incident(const tp_view_run *run, const tp_ask *ask, tp_answer *answer)
{
    tp_buf all = TP_BUF_INIT;
    find_incidents(run, &all);
    const uint64_t count = all.size / sizeof(incident);
    const uint64_t number = tp_ask_number(ask, "i", count);
    if (number < 1 || number > count) {
        tp_answer_wrong(answer, 404, "no such incident");
        free_incidents(&all);
        return;
    }
    const incident *one = (const incident *)(const void *)all.data + (number - 1);
    scene in = {.run = run};
    put_incident(run, &answer->body, one, (size_t)number);
    tp_buf_printf(&answer->body, ",\"of\":%" PRIu64, count);
    if (open_scene(&in, one->first)) {
        const uint32_t call = one->first->record.call;
        for (size_t i = 0; i < record_count(&in); i++) {
            tp_cell cell;
            const tp_record *record = record_at(&in, i);
            const tp_view_key *key = key_of(&in, record, &cell);
            if (key == tp_view_key_at(run, one->first->key) && record->call == call &&
                record->micro_step == one->first->record.micro_step) {
                put_path(&in, &answer->body, i, one->kind);
                put_facts(&in, &answer->body, i);
                break;
            }
        }
    }
    close_scene(&in);
    tp_buf_printf(&answer->body, "}");
    free_incidents(&all);
}
