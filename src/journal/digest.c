#include "journal/digest.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/crc32c.h"
#include "journal/records.h"

#define KEYS_MAX (1U << 24) /* an id above is of damage */
#define ROWS_MAX (1U << 20) /* of more there is no digest: it would take too much memory */
#define LANES 8             /* statistics, and one that is not used */
#define STEPS_HEADER 56U
#define HEADER 32U

/* A quiet NaN of our own. */
#define NONE_BITS UINT32_C(0x7fc0dead)

_Static_assert(sizeof(tp_digest_value) == 8 && sizeof(tp_digest_row) == 32 &&
                   sizeof(tp_digest_step) == 120 && sizeof(tp_digest_span) == 8 &&
                   sizeof(tp_digest_scalar) == 16,
               "stored as they lie in memory");

typedef struct open_row {
    float low[LANES]; /* above high: nothing yet */
    float high[LANES];
} open_row;

tp_digest_value tp_digest_none(void)
{
    const uint32_t bits = NONE_BITS;
    tp_digest_value none;
    memcpy(&none.low, &bits, sizeof bits);
    none.high = none.low;
    return none;
}

bool tp_digest_is_none(tp_digest_value value)
{
    uint32_t bits;
    memcpy(&bits, &value.low, sizeof bits);
    return bits == NONE_BITS;
}

static float narrow(double value)
{
    const float near = (float)value;
    const float size = fabsf(near);
    if (size >= FLT_MIN && size <= FLT_MAX) {
        return near;
    }
    if (!isfinite(value)) {
        return isnan(value) ? (float)NAN : near;
    }
    if (isinf(near)) {
        return value > 0 ? FLT_MAX : -FLT_MAX;
    }
    return near == 0.0F && value != 0.0 ? (value > 0 ? FLT_MIN : -FLT_MIN) : near;
}

void tp_digest_values(const tp_stats *stats, float out[8])
{
    const uint64_t infinite = stats->pos_inf + stats->neg_inf;
    if (stats->nan > 0 || infinite > 0) {
        const float positive = stats->nan > 0 ? (float)NAN : (float)INFINITY;
        for (uint32_t stat = 0; stat < LANES; stat++) {
            const bool has_sign =
                stat != TP_DIGEST_NORM && stat != TP_DIGEST_MAX_ABS && stat != TP_DIGEST_STD;
            out[stat] = has_sign && stats->nan + stats->pos_inf == 0 ? -positive : positive;
        }
        return;
    }
    const double count = (double)stats->count;
    out[TP_DIGEST_NORM] = narrow(tp_stats_norm(stats));
    out[TP_DIGEST_MAX_ABS] = narrow(stats->abs_max);
    out[TP_DIGEST_MEAN] = narrow(tp_stats_mean(stats));
    out[TP_DIGEST_STD] = narrow(tp_stats_std(stats));
    out[TP_DIGEST_MIN] = narrow(stats->finite_min);
    out[TP_DIGEST_MAX] = narrow(stats->finite_max);
    out[TP_DIGEST_ZEROS] = stats->count > 0 ? (float)((double)stats->zeros / count) : 0.0F;
    out[LANES - 1] = 0.0F;
}

static tp_digest_row *row_at(const tp_digests *digests, uint32_t row)
{
    return (tp_digest_row *)(void *)digests->rows.data + row;
}

static uint32_t row_count(const tp_digests *digests)
{
    return (uint32_t)(digests->rows.size / sizeof(tp_digest_row));
}

/* Who knows keys. */
typedef struct keys {
    const tp_key *(*key_of)(const void *source, uint32_t key);
    const void *source;
} keys;

static bool add_row(tp_digests *digests, const tp_record *record, const keys *known)
{
    const tp_key *key = known->key_of(known->source, record->key);
    const tp_digest_row row = {.order = record->order,
                               .elements = record->u.stats.count,
                               .key = record->key,
                               .call = record->call,
                               .dtype = record->dtype,
                               .quantity = key != NULL ? key->quantity : 0};
    open_row fresh;
    for (uint32_t i = 0; i < LANES; i++) {
        fresh.low[i] = (float)INFINITY;
        fresh.high[i] = -(float)INFINITY;
    }
    tp_buf_put(&digests->rows, &row, sizeof row);
    tp_buf_put(&digests->open, &fresh, sizeof fresh);
    return !digests->rows.failed && !digests->open.failed && row_count(digests) <= ROWS_MAX;
}

/* The row of a record, + 1; 0: there can be none. */
static uint32_t find(tp_digests *digests, const tp_record *record, const keys *known)
{
    const uint32_t name[2] = {record->key, record->call};
    uint32_t *places = (uint32_t *)(void *)digests->places.data;
    uint32_t row = 0;
    if (record->call == 0 && record->key < digests->places.size / sizeof *places &&
        places[record->key] != 0) {
        return places[record->key];
    }
    if (record->key >= KEYS_MAX ||
        (record->call > 0 && tp_map_get(&digests->calls, name, sizeof name, &row) == TP_OK)) {
        return row;
    }
    row = row_count(digests) + 1;
    bool good = add_row(digests, record, known);
    if (record->call > 0) {
        good = good && tp_map_set(&digests->calls, name, sizeof name, row) == TP_OK;
    } else {
        while (good && digests->places.size / sizeof *places <= record->key) {
            tp_buf_put_u32(&digests->places, 0);
            good = !digests->places.failed;
        }
        if (good) {
            ((uint32_t *)(void *)digests->places.data)[record->key] = row;
        }
    }
    digests->failed = digests->failed || !good;
    return good ? row : 0;
}

static void widen(open_row *row, const float values[LANES])
{
    for (uint32_t i = 0; i < LANES; i++) {
        const float value = values[i];
        /* NaN goes in, and stays: nothing is below it or above. */
        row->low[i] = value < row->low[i] || isnan(value) ? value : row->low[i];
        row->high[i] = value > row->high[i] || isnan(value) ? value : row->high[i];
    }
}

/* Puts the open span behind the others. */
static void end_span(tp_digests *digests)
{
    const tp_digest_span span = {digests->open_steps, row_count(digests)};
    open_row *open = (open_row *)(void *)digests->open.data;
    tp_digest_value *to =
        tp_buf_extend(&digests->values, (size_t)span.rows * TP_DIGEST_STATS * sizeof *to);
    tp_buf_put(&digests->spans, &span, sizeof span);
    digests->open_steps = 0;
    if (to == NULL || digests->spans.failed) {
        digests->failed = true;
        return;
    }
    for (uint32_t i = 0; i < span.rows; i++) {
        for (uint32_t stat = 0; stat < TP_DIGEST_STATS; stat++) {
            const tp_digest_value value = {open[i].low[stat], open[i].high[stat]};
            to[(size_t)stat * span.rows + i] = value.low > value.high ? tp_digest_none() : value;
        }
        for (uint32_t lane = 0; lane < LANES; lane++) {
            open[i].low[lane] = (float)INFINITY;
            open[i].high[lane] = -(float)INFINITY;
        }
    }
}

void tp_digests_add(tp_digests *digests, const tp_batch *batch, uint64_t offset,
                    const tp_key *(*key_of)(const void *source, uint32_t key), const void *source)
{
    const keys known = {key_of, source};
    double squares[2] = {0};
    bool has[2] = {false};
    const uint32_t number = (uint32_t)(digests->steps.size / sizeof(tp_digest_step));
    for (uint64_t i = 0; batch->records != NULL && i < batch->count && !digests->failed; i++) {
        const tp_record *record = &batch->records[i];
        if (record->kind != TP_RECORD_STATS || record->state != TP_SLOT_DONE) {
            continue;
        }
        const uint32_t row = find(digests, record, &known);
        if (row == 0) {
            continue;
        }
        float values[LANES];
        tp_digest_values(&record->u.stats, values);
        widen((open_row *)(void *)digests->open.data + row - 1, values);
        const uint32_t quantity = row_at(digests, row - 1)->quantity;
        if (quantity == TP_GRAD_REDUCED || quantity == TP_GRAD_UNREDUCED) {
            const double norm = tp_stats_norm(&record->u.stats);
            squares[quantity == TP_GRAD_REDUCED] += norm * norm;
            has[quantity == TP_GRAD_REDUCED] = true;
        } else if (quantity == TP_SCALAR) {
            const tp_digest_scalar scalar = {number, row - 1, tp_stats_mean(&record->u.stats)};
            tp_buf_put(&digests->scalars, &scalar, sizeof scalar);
        }
    }
    const tp_digest_step step = {.step = batch->step,
                                 .offset = offset,
                                 .begin_ns = batch->begin_ns,
                                 .end_ns = batch->end_ns,
                                 .wall_ns = batch->wall_ns,
                                 .hook_ns = batch->hook_ns,
                                 .wait_ns = batch->wait_ns,
                                 .writer_ns = batch->writer_ns,
                                 .errors = batch->errors,
                                 .records = batch->count,
                                 .gradient = has[1]   ? sqrt(squares[1])
                                             : has[0] ? sqrt(squares[0])
                                                      : (double)NAN,
                                 .bytes = batch->bytes,
                                 .flags = batch->flags,
                                 .left_out = batch->left_out,
                                 .zoom = batch->zoom,
                                 .micro_steps = batch->micro_steps,
                                 .pp_stage = batch->pp_stage};
    tp_buf_put(&digests->steps, &step, sizeof step);
    digests->failed = digests->failed || digests->steps.failed || digests->scalars.failed;
    digests->open_steps++;
    if (digests->open_steps == TP_DIGEST_WIDTH && !digests->failed) {
        end_span(digests);
    }
}

void tp_digests_finish(tp_digests *digests)
{
    if (digests->open_steps > 0 && !digests->failed) {
        end_span(digests);
    }
}

static uint32_t crc_of_rows(const tp_digest_row *rows, uint32_t count)
{
    uint32_t crc = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t name[2] = {rows[i].key, rows[i].call};
        crc = tp_crc32c(crc, name, sizeof name);
    }
    return crc;
}

static void put_steps(tp_buf *out, const tp_digests *digests)
{
    const uint64_t steps = digests->steps.size / sizeof(tp_digest_step);
    const uint64_t spans = digests->spans.size / sizeof(tp_digest_span);
    const uint64_t scalars = digests->scalars.size / sizeof(tp_digest_scalar);
    tp_buf_put_u32(out, STEPS_HEADER);
    tp_buf_put_u32(out, TP_DIGEST_OF_STEPS);
    tp_buf_put_u32(out, row_count(digests));
    tp_buf_put_u32(out, crc_of_rows(row_at(digests, 0), row_count(digests)));
    tp_buf_put_u32(out, sizeof(tp_digest_step));
    tp_buf_put_u32(out, sizeof(tp_digest_span));
    tp_buf_put_u32(out, sizeof(tp_digest_scalar));
    tp_buf_put_u32(out, 0);
    tp_buf_put_u64(out, steps);
    tp_buf_put_u64(out, spans);
    tp_buf_put_u64(out, scalars);
    tp_planes_put(out, digests->steps.data, sizeof(tp_digest_step), steps);
    tp_planes_put(out, digests->spans.data, sizeof(tp_digest_span), spans);
    tp_planes_put(out, digests->scalars.data, sizeof(tp_digest_scalar), scalars);
}

static void put_header(tp_buf *out, uint32_t part, uint32_t size, uint64_t count)
{
    tp_buf_put_u32(out, HEADER);
    tp_buf_put_u32(out, part);
    tp_buf_put_u32(out, size);
    tp_buf_put_u32(out, 0);
    tp_buf_put_u64(out, count);
    tp_buf_put_u64(out, 0);
}

/* The bits that differ: low and high are near each other. */
static tp_digest_value exclusive_or(tp_digest_value value)
{
    uint32_t bits[2];
    memcpy(bits, &value, sizeof bits);
    bits[1] ^= bits[0];
    memcpy(&value, bits, sizeof bits);
    return value;
}

static void put_values(tp_buf *out, const tp_digests *digests, uint32_t stat)
{
    const uint64_t spans = digests->spans.size / sizeof(tp_digest_span);
    const uint32_t rows = row_count(digests);
    const tp_digest_value *from = (const tp_digest_value *)(const void *)digests->values.data;
    const tp_digest_value none = exclusive_or(tp_digest_none());
    tp_buf items = TP_BUF_INIT;
    tp_digest_value *item = tp_buf_extend(&items, spans * rows * sizeof *item);
    put_header(out, TP_DIGEST_OF_STAT + stat, sizeof *item, spans * rows);
    for (uint64_t i = 0; i < spans && item != NULL; i++) {
        const tp_digest_span *span = (const tp_digest_span *)(const void *)digests->spans.data + i;
        for (uint32_t row = 0; row < rows; row++) {
            *item++ = row < span->rows ? exclusive_or(from[(size_t)stat * span->rows + row]) : none;
        }
        from += (size_t)span->rows * TP_DIGEST_STATS;
    }
    tp_planes_put(out, items.data, sizeof(tp_digest_value), spans * rows);
    out->failed = out->failed || items.failed;
    tp_buf_free(&items);
}

void tp_digests_put(tp_buf *out, const tp_digests *digests, uint32_t part)
{
    if (part == TP_DIGEST_OF_STEPS) {
        put_steps(out, digests);
    } else if (part == TP_DIGEST_OF_ROWS) {
        put_header(out, part, sizeof(tp_digest_row), row_count(digests));
        tp_planes_put(out, digests->rows.data, sizeof(tp_digest_row), row_count(digests));
    } else {
        put_values(out, digests, part - TP_DIGEST_OF_STAT);
    }
}

void tp_digests_clear(tp_digests *digests)
{
    if (digests->failed) {
        tp_digests_free(digests);
        return;
    }
    if (digests->open_steps > 0) { /* of a segment that nobody will finish */
        end_span(digests);
        digests->failed = false;
    }
    tp_buf_clear(&digests->steps);
    tp_buf_clear(&digests->spans);
    tp_buf_clear(&digests->scalars);
    tp_buf_clear(&digests->values);
}

void tp_digests_free(tp_digests *digests)
{
    tp_buf *const bufs[] = {&digests->places, &digests->rows,    &digests->open,  &digests->steps,
                            &digests->spans,  &digests->scalars, &digests->values};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) {
        tp_buf_free(bufs[i]);
    }
    tp_map_free(&digests->calls);
    *digests = (tp_digests){0};
}

/* Reads planes of items from *at on, and steps behind them. */
static tp_status get_planes(const tp_buf *payload, size_t *at, uint32_t stored, uint32_t size,
                            uint64_t count, tp_buf *items)
{
    const tp_status status =
        tp_planes_get(payload->data + *at, payload->size - *at, stored, size, count, items);
    *at += status == TP_OK ? stored * count : 0;
    return status;
}

/* Whether its parts agree with each other. */
static bool is_sound(const tp_digest *digest)
{
    const tp_digest_span *spans = (const tp_digest_span *)(const void *)digest->spans.data;
    const tp_digest_scalar *scalars = (const tp_digest_scalar *)(const void *)digest->scalars.data;
    const uint64_t count = digest->steps.size / sizeof(tp_digest_step);
    uint64_t steps = 0;
    bool sound = digest->rows <= ROWS_MAX;
    for (uint64_t i = 0; i < digest->spans.size / sizeof *spans; i++) {
        sound = sound && spans[i].steps > 0 && spans[i].steps <= TP_DIGEST_WIDTH &&
                spans[i].rows <= digest->rows;
        steps += spans[i].steps;
    }
    for (uint64_t i = 0; i < digest->scalars.size / sizeof *scalars; i++) {
        sound = sound && scalars[i].step < count && scalars[i].row < digest->rows;
    }
    return sound && steps == count;
}

tp_status tp_digest_get_steps(const tp_buf *payload, tp_digest *digest)
{
    const uint8_t *p = payload->data;
    if (payload->size < STEPS_HEADER || tp_get_u32(p + 4) != TP_DIGEST_OF_STEPS ||
        tp_get_u32(p) < STEPS_HEADER || tp_get_u32(p) > payload->size) {
        return TP_ERR_CORRUPT;
    }
    size_t at = tp_get_u32(p);
    digest->rows = tp_get_u32(p + 8);
    digest->rows_crc = tp_get_u32(p + 12);
    tp_status status = get_planes(payload, &at, tp_get_u32(p + 16), sizeof(tp_digest_step),
                                  tp_get_u64(p + 32), &digest->steps);
    if (status == TP_OK) {
        status = get_planes(payload, &at, tp_get_u32(p + 20), sizeof(tp_digest_span),
                            tp_get_u64(p + 40), &digest->spans);
    }
    if (status == TP_OK) {
        status = get_planes(payload, &at, tp_get_u32(p + 24), sizeof(tp_digest_scalar),
                            tp_get_u64(p + 48), &digest->scalars);
    }
    return status == TP_OK && !is_sound(digest) ? TP_ERR_CORRUPT : status;
}

/* The items of another part. */
static tp_status get_part(const tp_buf *payload, uint32_t least_part, uint32_t most_part,
                          uint32_t size, uint64_t count, tp_buf *items)
{
    const uint8_t *p = payload->data;
    if (payload->size < HEADER || tp_get_u32(p) < HEADER || tp_get_u32(p) > payload->size ||
        tp_get_u32(p + 4) < least_part || tp_get_u32(p + 4) > most_part ||
        tp_get_u64(p + 16) != count) {
        return TP_ERR_CORRUPT;
    }
    size_t at = tp_get_u32(p);
    return get_planes(payload, &at, tp_get_u32(p + 8), size, count, items);
}

tp_status tp_digest_get_rows(const tp_buf *payload, const tp_digest *digest, tp_buf *rows)
{
    tp_status status = get_part(payload, TP_DIGEST_OF_ROWS, TP_DIGEST_OF_ROWS,
                                sizeof(tp_digest_row), digest->rows, rows);
    if (status == TP_OK && crc_of_rows((const tp_digest_row *)(const void *)rows->data,
                                       digest->rows) != digest->rows_crc) {
        status = TP_ERR_CORRUPT;
    }
    return status;
}

tp_status tp_digest_get_values(const tp_buf *payload, uint64_t spans, uint32_t rows, tp_buf *values)
{
    const tp_status status =
        get_part(payload, TP_DIGEST_OF_STAT, TP_DIGEST_OF_STAT + TP_DIGEST_STATS - 1,
                 sizeof(tp_digest_value), spans * rows, values);
    tp_digest_value *value = (tp_digest_value *)(void *)values->data;
    for (uint64_t i = 0; status == TP_OK && i < spans * rows; i++) {
        value[i] = exclusive_or(value[i]);
    }
    return status;
}

void tp_digest_free(tp_digest *digest)
{
    tp_buf_free(&digest->steps);
    tp_buf_free(&digest->spans);
    tp_buf_free(&digest->scalars);
}
