#include "view/parting.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "arrow/merger.h"
#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "tensorprobe/reader.h"
#include "view/same.h"

#define ANY_RANK UINT32_MAX

/* One journal, and the step in which it stands. */
typedef struct source {
    tp_reader *reader;
    tp_item item; /* the batch that comes next */
    bool has;     /* item is one */
    uint32_t rank;
} source;

/* Where a record is. */
typedef struct place {
    uint32_t source;
    uint32_t is_taken;
    uint64_t record;
} place;

typedef struct side {
    const tp_journals *journals;
    source *sources;
    uint32_t count;
    tp_buf places;      /* place: the records of the step */
    tp_map by_name;     /* of them: by name, part and rank; by name and part; by name */
    tp_merger *merger;  /* NULL: not needed so far */
    tp_merged_step now; /* where it stands */
    bool has_now;
} side;

/* A parameter whose parts have no twins. */
typedef struct loose {
    tp_moment moment;
    uint32_t is_seen[2]; /* among the merged ones of either side */
    const tp_row *row;   /* of B */
} loose;

typedef struct search {
    const tp_parting_options *options;
    tp_parting *out;
    side a;
    side b;
    bool is_spread; /* differently: parts aren't the same */
    tp_map by_whole;
    tp_buf loose; /* loose */
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
    out->journals = journals;
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
    tp_merger_close(one->merger);
    tp_map_free(&one->by_name);
    tp_buf_free(&one->places);
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

static bool has_name(const tp_map *map, const tp_buf *key)
{
    uint32_t unused;
    return tp_map_get(map, key->data, key->size, &unused) == TP_OK;
}

static tp_status take_name(search *in, side *one, const source *from, const tp_key *key,
                           const tp_record *record, const place *here)
{
    const uint32_t number = (uint32_t)(one->places.size / sizeof *here);
    tp_buf_put(&one->places, here, sizeof *here);
    tp_same_put(&in->key, key, record, from->rank, true);
    tp_status status = tp_map_set(&one->by_name, in->key.data, in->key.size, number);
    for (int with_part = 1; with_part >= 0 && status == TP_OK; with_part--) {
        tp_same_put(&in->key, key, record, ANY_RANK, with_part);
        if (!has_name(&one->by_name, &in->key)) {
            status = tp_map_set(&one->by_name, in->key.data, in->key.size, number);
        }
    }
    return status != TP_OK || one->places.failed || in->key.failed ? TP_ERR_NOMEM : TP_OK;
}

/* The names of all records that a side has in this step. */
static tp_status take_names(search *in, side *one, uint64_t step)
{
    tp_status status = TP_OK;
    tp_map_free(&one->by_name);
    one->by_name = (tp_map)TP_MAP_INIT;
    tp_buf_clear(&one->places);
    for (uint32_t s = 0; s < one->count && status == TP_OK; s++) {
        const source *from = &one->sources[s];
        for (uint64_t i = 0; is_at(from, step) && status == TP_OK && i < from->item.batch.count;
             i++) {
            const tp_record *record = &from->item.batch.records[i];
            const tp_key *key = is_value(record) ? tp_reader_key(from->reader, record->key) : NULL;
            const place here = {.source = s, .record = i};
            if (key != NULL) { /* else its name was lost to damage */
                status = take_name(in, one, from, key, record, &here);
            }
        }
    }
    return status;
}

/* The norm of the elements that are finite. */
static double finite_norm(const tp_stats *stats)
{
    return ldexp(sqrt(stats->sum_sq), (int)stats->sq_exp);
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
    const double norm = fmax(finite_norm(x), finite_norm(y));
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

static place *place_at(const side *one, uint64_t number)
{
    return (place *)(void *)one->places.data + number;
}

/* A record of a side, with all that belongs to it. */
typedef struct found_record {
    const source *from;
    const tp_record *record;
    const tp_key *key;
} found_record;

static found_record record_of(const side *one, const place *at)
{
    const source *from = &one->sources[at->source];
    const tp_record *record = &from->item.batch.records[at->record];
    return (found_record){from, record, tp_reader_key(from->reader, record->key)};
}

/* The twin of a record in the other run: on this rank, else on any; NULL: there is none. */
static place *find_twin(search *in, const side *other, const found_record *one, uint32_t rank)
{
    uint32_t number;
    const bool by_rank = in->options->rank_b >= 0;
    tp_same_put(&in->key, one->key, one->record, rank, !by_rank);
    tp_status status = tp_map_get(&other->by_name, in->key.data, in->key.size, &number);
    if (status != TP_OK) {
        tp_same_put(&in->key, one->key, one->record, ANY_RANK, !by_rank);
        status = tp_map_get(&other->by_name, in->key.data, in->key.size, &number);
    }
    return status == TP_OK ? place_at(other, number) : NULL;
}

/* Whether other parts of it are there. */
static bool has_others(search *in, const side *other, const found_record *one)
{
    tp_same_put(&in->key, one->key, one->record, ANY_RANK, false);
    return has_name(&other->by_name, &in->key);
}

static uint32_t copies_of(const found_record *one)
{
    return one->key->span != NULL ? one->key->span->copies : 0;
}

static void add_difference(search *in, tp_difference *one, const tp_key *key, uint32_t call)
{
    tp_key global = *key;
    global.name = tp_same_name(key);
    tp_row_name(&global, call, one->row, sizeof one->row);
    tp_buf_put(&in->out->found, one, sizeof *one);
}

static void compare_pair(search *in, const found_record *a, const found_record *b)
{
    in->out->in_step++;
    tp_difference found = {.quantity = a->key->quantity,
                           .rank_a = a->from->rank,
                           .rank_b = b->from->rank,
                           .micro_step = a->record->micro_step,
                           .dtype_a = a->record->dtype,
                           .dtype_b = b->record->dtype,
                           .moment = tp_moment_of(&a->from->item.batch, a->record, a->key)};
    if (differs(in, a->record, b->record, &found)) {
        add_difference(in, &found, a->key, a->record->call);
    }
}

/* What is the same in every layout. Adam's update and ratio follow from the moments, but are
 * anything where these are nothing but rounding, which differs. */
static bool is_common(uint32_t quantity)
{
    return tp_merger_takes(quantity) && quantity != TP_ADAM_UPDATE && quantity != TP_ADAM_RATIO;
}

/* Remembers a parameter whose parts have to be put together. */
static tp_status add_loose(search *in, const found_record *one)
{
    const loose fresh = {.moment = tp_moment_of(&one->from->item.batch, one->record, one->key)};
    tp_same_put(&in->key, one->key, one->record, ANY_RANK, false);
    in->is_spread = true;
    if (has_name(&in->by_whole, &in->key)) {
        return TP_OK;
    }
    const uint32_t number = (uint32_t)(in->loose.size / sizeof fresh);
    tp_buf_put(&in->loose, &fresh, sizeof fresh);
    return in->loose.failed ? TP_ERR_NOMEM
                            : tp_map_set(&in->by_whole, in->key.data, in->key.size, number);
}

/* What has the same numbers in every layout, of the records of one side: those of A with their
 * twins, of B those that are left. */
static tp_status compare_parts(search *in, side *one, const side *other, bool is_a)
{
    tp_status status = TP_OK;
    for (size_t i = 0; i < one->places.size / sizeof(place) && status == TP_OK; i++) {
        place *here = place_at(one, i);
        const found_record mine = record_of(one, here);
        if (!is_common(mine.key->quantity) || here->is_taken) {
            continue;
        }
        place *there = find_twin(in, other, &mine, mine.from->rank);
        if (there != NULL) {
            const found_record theirs = record_of(other, there);
            in->is_spread = in->is_spread || copies_of(&mine) != copies_of(&theirs);
            here->is_taken = true;
            there->is_taken = true;
            compare_pair(in, is_a ? &mine : &theirs, is_a ? &theirs : &mine);
        } else if (has_others(in, other, &mine)) {
            status = add_loose(in, &mine);
        } else {
            *(is_a ? &in->out->only_a : &in->out->only_b) += 1;
        }
    }
    return in->out->found.failed ? TP_ERR_NOMEM : status;
}

/* All that is left: what each rank has for itself, and with two ranks chosen everything. */
static void compare_own(search *in)
{
    const bool by_rank = in->options->rank_b >= 0;
    for (size_t i = 0; i < in->a.places.size / sizeof(place); i++) {
        const found_record mine = record_of(&in->a, place_at(&in->a, i));
        if (!by_rank && is_common(mine.key->quantity)) {
            continue;
        }
        if (in->is_spread) {
            in->out->apart++;
            continue;
        }
        const uint32_t rank = by_rank ? (uint32_t)in->options->rank_b : mine.from->rank;
        place *there = find_twin(in, &in->b, &mine, rank);
        if (there == NULL) {
            in->out->only_a++;
            continue;
        }
        const found_record theirs = record_of(&in->b, there);
        there->is_taken = true;
        compare_pair(in, &mine, &theirs);
    }
    for (size_t i = 0; i < in->b.places.size / sizeof(place); i++) {
        const place *there = place_at(&in->b, i);
        const found_record theirs = record_of(&in->b, there);
        if ((by_rank || !is_common(theirs.key->quantity)) && !there->is_taken) {
            *(in->is_spread ? &in->out->apart : &in->out->only_b) += 1;
        }
    }
}

/* Brings a side's merger to the step; has_now: it has one. */
static tp_status merge(side *one, uint64_t step, tp_error *error)
{
    tp_status status = TP_OK;
    if (one->merger == NULL) {
        const tp_merger_options options = {.directories =
                                               (const char *const *)one->journals->directories,
                                           .directory_count = one->journals->count,
                                           .first_step = step,
                                           .last_step = UINT64_MAX,
                                           .selection = tp_selection_all()};
        status = tp_merger_open(&one->merger, &options, error);
        if (status == TP_OK) {
            status = tp_merger_next(one->merger, &one->now, error);
        }
    }
    while (status == TP_OK && one->now.source.batch->step < step) {
        status = tp_merger_next(one->merger, &one->now, error);
    }
    one->has_now = status == TP_OK && one->now.source.batch->step == step;
    return status == TP_END ? TP_OK : status;
}

/* The loose one that a merged row is of, if all of it is there; NULL: none. */
static loose *loose_of(search *in, const tp_row *row)
{
    uint32_t number;
    tp_same_put(&in->key, row->key, row->record, ANY_RANK, false);
    return row->merged->missing == 0 &&
                   tp_map_get(&in->by_whole, in->key.data, in->key.size, &number) == TP_OK
               ? (loose *)(void *)in->loose.data + number
               : NULL;
}

static tp_status compare_wholes(search *in, uint64_t step, tp_error *error)
{
    tp_status status = merge(&in->a, step, error);
    if (status == TP_OK) {
        status = merge(&in->b, step, error);
    }
    for (uint64_t i = 0; status == TP_OK && in->b.has_now && i < in->b.now.count; i++) {
        loose *one = loose_of(in, &in->b.now.rows[i]);
        if (one != NULL) {
            one->row = &in->b.now.rows[i];
            one->is_seen[1] = true;
        }
    }
    for (uint64_t i = 0; status == TP_OK && in->a.has_now && i < in->a.now.count; i++) {
        const tp_row *mine = &in->a.now.rows[i];
        loose *one = loose_of(in, mine);
        if (one == NULL) {
            continue;
        }
        one->is_seen[0] = true;
        if (one->row == NULL) {
            continue;
        }
        in->out->in_step++;
        tp_difference found = {.quantity = mine->key->quantity,
                               .rank_a = TP_ALL_RANKS,
                               .rank_b = TP_ALL_RANKS,
                               .micro_step = mine->record->micro_step,
                               .dtype_a = mine->record->dtype,
                               .dtype_b = one->row->record->dtype,
                               .moment = one->moment};
        if (differs(in, mine->record, one->row->record, &found)) {
            add_difference(in, &found, mine->key, mine->record->call);
        }
    }
    for (size_t i = 0; status == TP_OK && i < in->loose.size / sizeof(loose); i++) {
        const loose *one = (const loose *)(const void *)in->loose.data + i;
        in->out->only_a += one->is_seen[0] && !one->is_seen[1];
        in->out->only_b += one->is_seen[1] && !one->is_seen[0];
    }
    return in->out->found.failed ? tp_fail(error, TP_ERR_NOMEM, "no memory to compare") : status;
}

static int by_moment(const void *a, const void *b)
{
    const tp_difference *p = a;
    const tp_difference *q = b;
    const int order = tp_moment_compare(&p->moment, &q->moment);
    return order != 0 ? order : p->rank_a < q->rank_a ? -1 : p->rank_a > q->rank_a;
}

static tp_status compare_step(search *in, uint64_t step, tp_error *error)
{
    tp_parting *out = in->out;
    tp_status status = take_names(in, &in->a, step);
    if (status == TP_OK) {
        status = take_names(in, &in->b, step);
    }
    out->in_step = 0;
    tp_map_free(&in->by_whole);
    in->by_whole = (tp_map)TP_MAP_INIT;
    tp_buf_clear(&in->loose);
    if (status == TP_OK && in->options->rank_b < 0) {
        status = compare_parts(in, &in->a, &in->b, true);
        if (status == TP_OK) {
            status = compare_parts(in, &in->b, &in->a, false);
        }
    }
    if (status != TP_OK) {
        return tp_fail(error, status, "no memory to compare step %llu", (unsigned long long)step);
    }
    compare_own(in);
    if (in->loose.size > 0) {
        status = compare_wholes(in, step, error);
    }
    out->step = step;
    out->steps++;
    out->values += out->in_step;
    out->differs = out->found.size > 0;
    if (out->differs && !out->found.failed) {
        qsort(out->found.data, out->found.size / sizeof(tp_difference), sizeof(tp_difference),
              by_moment);
    }
    return out->found.failed ? tp_fail(error, TP_ERR_NOMEM, "no memory to compare") : status;
}

tp_status tp_parting_find(tp_parting *out, const tp_journals *a, const tp_journals *b,
                          const tp_parting_options *options, tp_error *error)
{
    *out = (tp_parting){0};
    search in = {.options = options, .out = out};
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
            status = compare_step(&in, of_a, error);
            if (status != TP_OK) {
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
    tp_map_free(&in.by_whole);
    tp_buf_free(&in.loose);
    tp_buf_free(&in.key);
    return status;
}

void tp_parting_free(tp_parting *parting)
{
    tp_buf_free(&parting->found);
}
