#include "view/parting.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "tensorprobe/reader.h"

#define ANY_RANK UINT32_MAX

/* One journal, and the step in which it stands. */
typedef struct source {
    tp_reader *reader;
    tp_item item; /* the batch that comes next */
    bool has;     /* item is one */
    uint32_t rank;
} source;

typedef struct side {
    source *sources;
    uint32_t count;
} side;

/* Where a record of B is. */
typedef struct place {
    uint32_t source;
    uint32_t is_taken;
    uint64_t record;
} place;

typedef struct search {
    const tp_parting_options *options;
    tp_parting *out;
    side a;
    side b;
    tp_buf places; /* place */
    tp_map by_name;
    tp_buf key;
} search;

tp_parting_options tp_parting_defaults(void)
{
    return (tp_parting_options){
        .tolerance = (double)NAN, .last_step = UINT64_MAX, .rank_a = -1, .rank_b = -1};
}

double tp_parting_tolerance(uint32_t dtype)
{
    switch (dtype) {
    case TP_F64:
    case TP_C128:
        return 1e-7;
    case TP_F32:
    case TP_C64:
        return 1.3e-6;
    case TP_F16:
        return 1e-3;
    case TP_BF16:
        return 1.6e-2;
    case TP_F8_E4M3FN:
    case TP_F8_E4M3FNUZ:
        return 0.0625;
    case TP_F8_E5M2:
    case TP_F8_E5M2FNUZ:
        return 0.125;
    case TP_F8_E8M0FNU:
    case TP_F4_E2M1FN_X2:
        return 0.25;
    default:
        return 0;
    }
}

static tp_status pull(source *from, tp_error *error)
{
    from->has = false;
    for (;;) {
        const tp_status status = tp_reader_next(from->reader, &from->item, error);
        if (status != TP_OK) {
            return status == TP_END ? TP_OK : status;
        }
        if (from->item.type == TP_ITEM_BATCH && from->item.batch.records != NULL) {
            from->has = true;
            return TP_OK;
        }
    }
}

static tp_status open_side(side *out, const tp_journals *journals, int64_t rank,
                           const tp_parting_options *options, tp_error *error)
{
    out->sources = tp_calloc(journals->count, sizeof *out->sources);
    if (out->sources == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory to compare");
    }
    for (uint32_t i = 0; i < journals->count; i++) {
        source *one = &out->sources[out->count];
        tp_status status = tp_reader_open(&one->reader, journals->directories[i], error);
        if (status != TP_OK) {
            return status;
        }
        one->rank = tp_reader_run(one->reader)->rank;
        if (rank >= 0 && one->rank != rank) {
            tp_reader_close(&one->reader);
            continue;
        }
        out->count++;
        tp_reader_limit(one->reader, options->first_step, options->last_step, false);
        status = pull(one, error);
        if (status != TP_OK) {
            return status;
        }
    }
    return out->count > 0
               ? TP_OK
               : tp_fail(error, TP_ERR_NOTFOUND, "no journal is of rank %lld", (long long)rank);
}

static void close_side(side *one)
{
    for (uint32_t i = 0; i < one->count; i++) {
        tp_reader_close(&one->sources[i].reader);
    }
    tp_free(one->sources);
}

/* The smallest step that comes next in a journal of this side; UINT64_MAX: there is none. */
static uint64_t next_step(const side *one)
{
    uint64_t step = UINT64_MAX;
    for (uint32_t i = 0; i < one->count; i++) {
        const source *from = &one->sources[i];
        if (from->has && from->item.batch.step < step) {
            step = from->item.batch.step;
        }
    }
    return step;
}

static bool is_at(const source *from, uint64_t step)
{
    return from->has && from->item.batch.step == step;
}

static tp_status advance(side *one, uint64_t step, tp_error *error)
{
    tp_status status = TP_OK;
    for (uint32_t i = 0; i < one->count && status == TP_OK; i++) {
        if (is_at(&one->sources[i], step)) {
            status = pull(&one->sources[i], error);
        }
    }
    return status;
}

static bool is_value(const tp_record *record)
{
    return record->state == TP_SLOT_DONE && record->kind == TP_RECORD_STATS;
}

/* What the same value is called in either run. */
static void put_key(tp_buf *out, const tp_key *key, const tp_record *record, uint32_t rank)
{
    const char *name = key->global_name != NULL ? key->global_name : key->name;
    const uint32_t numbers[] = {key->quantity,
                                key->role,
                                (uint32_t)key->slot,
                                key->global_name != NULL ? 0 : (uint32_t)key->vpp_stage,
                                record->micro_step,
                                record->call,
                                rank};
    tp_buf_clear(out);
    tp_buf_put(out, numbers, sizeof numbers);
    tp_buf_put(out, name, strlen(name) + 1);
    if (key->argument != NULL) {
        tp_buf_put(out, key->argument, strlen(key->argument));
    }
}

/* The names of all records that B has in this step. */
static tp_status take_names(search *in, uint64_t step)
{
    tp_map_free(&in->by_name);
    in->by_name = (tp_map)TP_MAP_INIT;
    tp_buf_clear(&in->places);
    for (uint32_t s = 0; s < in->b.count; s++) {
        const source *from = &in->b.sources[s];
        for (uint64_t i = 0; is_at(from, step) && i < from->item.batch.count; i++) {
            const tp_record *record = &from->item.batch.records[i];
            const tp_key *key = is_value(record) ? tp_reader_key(from->reader, record->key) : NULL;
            if (key == NULL) {
                continue;
            }
            const place here = {.source = s, .record = i};
            const uint32_t number = (uint32_t)(in->places.size / sizeof here);
            uint32_t first;
            tp_buf_put(&in->places, &here, sizeof here);
            put_key(&in->key, key, record, from->rank);
            tp_status status = tp_map_set(&in->by_name, in->key.data, in->key.size, number);
            put_key(&in->key, key, record, ANY_RANK);
            if (status == TP_OK &&
                tp_map_get(&in->by_name, in->key.data, in->key.size, &first) != TP_OK) {
                status = tp_map_set(&in->by_name, in->key.data, in->key.size, number);
            }
            if (status != TP_OK || in->places.failed || in->key.failed) {
                return TP_ERR_NOMEM;
            }
        }
    }
    return TP_OK;
}

/* Fills the first statistic beyond the tolerance; false: there is none. */
static bool differs(const search *in, const tp_record *a, const tp_record *b, tp_difference *out)
{
    const tp_stats *x = &a->u.stats;
    const tp_stats *y = &b->u.stats;
    const double of_a = tp_parting_tolerance(a->dtype);
    const double of_b = tp_parting_tolerance(b->dtype);
    const double largest = fmax(fmax(fabs(x->finite_min), fabs(x->finite_max)),
                                fmax(fabs(y->finite_min), fabs(y->finite_max)));
    const double norm = fmax(tp_stats_norm(x), tp_stats_norm(y));
    const double typical = norm / sqrt((double)(x->count > 0 ? x->count : 1));
    /* What a difference is held against: an extreme of the tensor, or what is usual in it, so that
     * a mean near zero doesn't differ by its sign alone. Counts are held against nothing. */
    const struct {
        const char *name;
        double a;
        double b;
        double scale;
    } rows[] = {
        {"elements", (double)x->count, (double)y->count, 0},
        {"nans", (double)x->nan, (double)y->nan, 0},
        {"+inf", (double)x->pos_inf, (double)y->pos_inf, 0},
        {"-inf", (double)x->neg_inf, (double)y->neg_inf, 0},
        {"norm", tp_stats_norm(x), tp_stats_norm(y), norm},
        {"mean", tp_stats_mean(x), tp_stats_mean(y), typical},
        {"std", tp_stats_std(x), tp_stats_std(y), typical},
        {"min", x->finite_min, y->finite_min, largest},
        {"max", x->finite_max, y->finite_max, largest},
    };
    const double tolerance =
        isnan(in->options->tolerance) ? fmax(of_a, of_b) : in->options->tolerance;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double p = rows[i].a;
        const double q = rows[i].b;
        const bool is_same = p == q || (isnan(p) && isnan(q));
        if (is_same || fabs(p - q) <= tolerance * rows[i].scale) {
            continue;
        }
        out->statistic = rows[i].name;
        out->a = p;
        out->b = q;
        out->difference = rows[i].scale > 0 ? fabs(p - q) / rows[i].scale : (double)NAN;
        out->tolerance = rows[i].scale > 0 ? tolerance : 0;
        return true;
    }
    return false;
}

static place *find_place(search *in, const tp_key *key, const tp_record *record, uint32_t rank)
{
    uint32_t number;
    put_key(&in->key, key, record, in->options->rank_b >= 0 ? (uint32_t)in->options->rank_b : rank);
    if (tp_map_get(&in->by_name, in->key.data, in->key.size, &number) != TP_OK) {
        put_key(&in->key, key, record, ANY_RANK);
        if (tp_map_get(&in->by_name, in->key.data, in->key.size, &number) != TP_OK) {
            return NULL;
        }
    }
    return (place *)(void *)in->places.data + number;
}

static tp_status compare_record(search *in, const source *from, const tp_record *record)
{
    const tp_key *key = tp_reader_key(from->reader, record->key);
    if (key == NULL) {
        return TP_OK; /* its name was lost to damage */
    }
    place *where = find_place(in, key, record, from->rank);
    if (where == NULL) {
        in->out->only_a++;
        return TP_OK;
    }
    const source *other = &in->b.sources[where->source];
    const tp_record *twin = &other->item.batch.records[where->record];
    where->is_taken = true;
    in->out->in_step++;
    tp_difference found = {.quantity = key->quantity,
                           .rank_a = from->rank,
                           .rank_b = other->rank,
                           .micro_step = record->micro_step,
                           .dtype_a = record->dtype,
                           .dtype_b = twin->dtype,
                           .order = record->order};
    if (differs(in, record, twin, &found)) {
        tp_row_name(key, record->call, found.row, sizeof found.row);
        tp_buf_put(&in->out->found, &found, sizeof found);
    }
    return in->out->found.failed ? TP_ERR_NOMEM : TP_OK;
}

static int by_order(const void *a, const void *b)
{
    const tp_difference *p = a;
    const tp_difference *q = b;
    if (p->order != q->order) {
        return p->order < q->order ? -1 : 1;
    }
    return p->rank_a < q->rank_a ? -1 : p->rank_a > q->rank_a;
}

static tp_status compare_step(search *in, uint64_t step)
{
    tp_status status = take_names(in, step);
    in->out->in_step = 0;
    for (uint32_t s = 0; s < in->a.count && status == TP_OK; s++) {
        const source *from = &in->a.sources[s];
        for (uint64_t i = 0; is_at(from, step) && status == TP_OK && i < from->item.batch.count;
             i++) {
            if (is_value(&from->item.batch.records[i])) {
                status = compare_record(in, from, &from->item.batch.records[i]);
            }
        }
    }
    const place *places = (const place *)(const void *)in->places.data;
    for (size_t i = 0; i < in->places.size / sizeof *places; i++) {
        in->out->only_b += !places[i].is_taken;
    }
    tp_parting *out = in->out;
    out->step = step;
    out->steps++;
    out->values += out->in_step;
    out->differs = out->found.size > 0;
    if (out->differs) {
        qsort(out->found.data, out->found.size / sizeof(tp_difference), sizeof(tp_difference),
              by_order);
    }
    return status;
}

tp_status tp_parting_find(tp_parting *out, const tp_journals *a, const tp_journals *b,
                          const tp_parting_options *options, tp_error *error)
{
    *out = (tp_parting){0};
    search in = {.options = options, .out = out, .by_name = TP_MAP_INIT};
    tp_status status = open_side(&in.a, a, options->rank_a, options, error);
    if (status == TP_OK) {
        status = open_side(&in.b, b, options->rank_b, options, error);
    }
    while (status == TP_OK && !out->differs) {
        const uint64_t of_a = next_step(&in.a);
        const uint64_t of_b = next_step(&in.b);
        if (of_a == UINT64_MAX && of_b == UINT64_MAX) {
            break;
        }
        if (of_a == of_b) {
            status = compare_step(&in, of_a);
            if (status != TP_OK) {
                tp_fail(error, status, "no memory to compare step %llu", (unsigned long long)of_a);
                break;
            }
        }
        out->only_steps_a += of_a < of_b;
        out->only_steps_b += of_b < of_a;
        if (out->differs) {
            break;
        }
        status = of_a <= of_b ? advance(&in.a, of_a, error) : TP_OK;
        if (status == TP_OK && of_b <= of_a) {
            status = advance(&in.b, of_b, error);
        }
    }
    close_side(&in.a);
    close_side(&in.b);
    tp_map_free(&in.by_name);
    tp_buf_free(&in.places);
    tp_buf_free(&in.key);
    return status;
}

void tp_parting_free(tp_parting *parting)
{
    tp_buf_free(&parting->found);
}
