/* What is known of a series beyond its statistics: histograms over steps, and a step's records one
 * by one. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "view/ask.h"

#define RECORDS_MAX 3000000 /* that are read; of more steps some are passed over */
#define COLUMNS 240

/* A step that is read. */
typedef struct place {
    uint64_t step;
    tp_position position;
    const char *directory; /* the run's */
    bool is_new;           /* another journal than the one before */
} place;

/* The picture: counts by column and bin. */
typedef struct picture {
    const char *row;
    uint32_t quantity;
    bool is_values;
    uint32_t rank;
    uint64_t from;
    uint64_t to;
    uint64_t per;
    uint32_t width;
    uint64_t every;
    tp_buf places;
    uint32_t bins;
    double low; /* of all: the exponent, or the value, at which the first bin begins */
    double high;
    double *counts; /* [column][bin] */
    double *zeros;  /* [column], and what follows as well */
    double *odd;
    double *elements;
    uint64_t found;  /* histograms */
    uint64_t others; /* of them with other bins than the last one: left out */
    uint32_t dtype;
} picture;

static void choose_places(const tp_view_rank *rank, picture *of)
{
    char *const *directories = (char *const *)(const void *)rank->directories.data;
    uint64_t records = 0;
    uint64_t number = 0;
    uint32_t journal = UINT32_MAX;
    for (uint64_t i = 0; i < tp_view_column_count(rank); i++) {
        const tp_view_column *column = tp_view_column_at(rank, i);
        const bool is_in = column->step >= of->from && column->step <= of->to;
        records += is_in && !column->is_over ? column->records : 0;
    }
    of->every = records / RECORDS_MAX + 1;
    for (uint64_t i = 0; i < tp_view_column_count(rank); i++) {
        const tp_view_column *column = tp_view_column_at(rank, i);
        if (column->is_over || column->step < of->from || column->step > of->to ||
            (column->flags & TP_BATCH_GAP) != 0 || number++ % of->every != 0) {
            continue;
        }
        const place one = {.step = column->step,
                           .position = column->position,
                           .directory = directories[column->journal],
                           .is_new = column->journal != journal};
        journal = column->journal;
        tp_buf_put(&of->places, &one, sizeof one);
    }
}

static bool is_meant(const tp_reader *reader, const tp_record *record, const picture *of)
{
    char row[1056];
    const tp_key *key = tp_reader_key(reader, record->key);
    if (key == NULL || key->quantity != of->quantity || record->kind != TP_RECORD_STATS ||
        record->state != TP_SLOT_DONE) {
        return false;
    }
    tp_view_row_name(key, record->call, row, sizeof row);
    return strcmp(row, of->row) == 0;
}

static bool histogram_of(const tp_batch *batch, const tp_record *record, const picture *of,
                         tp_histogram *out)
{
    const tp_status status = of->is_values ? tp_batch_histogram(batch, record, out)
                                           : tp_batch_exponents(batch, record, out);
    return status == TP_OK && out->bin_count > 0 && out->high > out->low && isfinite(out->low) &&
           isfinite(out->high);
}

/* Of exponents each tensor has those that occur; of values the bins are the same as long as nobody
 * asks for others. False: these are others than those of the picture. */
static bool add_bins(const tp_histogram *from, const picture *of, double *to)
{
    const bool is_same =
        from->low == of->low && from->high == of->high && from->bin_count == of->bins;
    const uint32_t shift = of->is_values ? 0 : (uint32_t)(from->low - of->low);
    if ((of->is_values && !is_same) || shift + from->bin_count > of->bins) {
        return false;
    }
    for (uint32_t i = 0; i < from->bin_count; i++) {
        to[shift + i] += (double)from->bins[i];
    }
    return true;
}

static void widen(picture *of, const tp_histogram *one)
{
    const bool takes_it = of->is_values || of->found == 0;
    of->low = takes_it ? one->low : fmin(of->low, one->low);
    of->high = takes_it ? one->high : fmax(of->high, one->high);
    of->bins = of->is_values ? one->bin_count : (uint32_t)(of->high - of->low);
    of->found++;
}

/* Goes through all records of the series; the first time for the limits, then for the counts. */
static tp_status read_all(picture *of, bool is_first)
{
    const place *places = (const place *)(const void *)of->places.data;
    tp_reader *reader = NULL;
    tp_status status = TP_OK;
    for (size_t i = 0; i < of->places.size / sizeof *places && status == TP_OK; i++) {
        tp_item item;
        if (places[i].is_new) {
            tp_reader_close(&reader);
            status = tp_reader_open(&reader, places[i].directory, NULL);
        }
        if (status == TP_OK && places[i].position.offset > 0) {
            status = tp_reader_seek(reader, places[i].position, NULL);
        }
        do {
            status = status == TP_OK || status == TP_ERR_CORRUPT
                         ? tp_reader_next(reader, &item, NULL)
                         : status;
        } while (status == TP_ERR_CORRUPT || (status == TP_OK && item.type != TP_ITEM_BATCH));
        if (status != TP_OK || item.batch.step != places[i].step) {
            status = status == TP_ERR_NOMEM ? status : TP_OK; /* what is gone is passed over */
            continue;
        }
        for (uint64_t k = 0; item.batch.records != NULL && k < item.batch.count; k++) {
            const tp_record *record = &item.batch.records[k];
            tp_histogram one;
            if (!is_meant(reader, record, of)) {
                continue;
            }
            /* A tensor of NaN alone has none, and is told of all the same. */
            const bool has_one = histogram_of(&item.batch, record, of, &one);
            const uint64_t column = (places[i].step - of->from) / of->per;
            if (is_first && !has_one) {
                continue;
            }
            if (is_first) {
                widen(of, &one);
                of->dtype = record->dtype;
                continue;
            }
            const tp_stats *stats = &record->u.stats;
            if (has_one && !add_bins(&one, of, of->counts + column * of->bins)) {
                of->others++;
                continue;
            }
            of->zeros[column] += (double)stats->zeros;
            of->odd[column] += (double)(stats->nan + stats->pos_inf + stats->neg_inf);
            of->elements[column] += (double)stats->count;
        }
    }
    tp_reader_close(&reader);
    return status;
}

static void put_numbers(tp_buf *out, const char *name, const double *numbers, uint64_t count)
{
    tp_buf_printf(out, ",\"%s\":[", name);
    for (uint64_t i = 0; i < count; i++) {
        tp_buf_printf(out, i > 0 ? ",%.7g" : "%.7g", numbers[i]);
    }
    tp_buf_printf(out, "]");
}

static void put_picture(tp_buf *out, const picture *of)
{
    const char *dtype = tp_dtype_name(of->dtype);
    tp_buf_printf(out, "{\"row\":");
    tp_text_put_json(out, of->row);
    tp_buf_printf(out,
                  ",\"q\":\"%s\",\"rank\":%" PRIu32 ",\"what\":\"%s\",\"from\":%" PRIu64
                  ",\"to\":%" PRIu64 ",\"per\":%" PRIu64 ",\"w\":%" PRIu32 ",\"every\":%" PRIu64
                  ",\"found\":%" PRIu64 ",\"others\":%" PRIu64 ",\"bins\":%" PRIu32
                  ",\"low\":%.17g,\"high\":%.17g,\"dtype\":\"%s\"",
                  tp_quantity_name(of->quantity), of->rank, of->is_values ? "values" : "exponents",
                  of->from, of->to, of->per, of->width, of->every, of->found, of->others, of->bins,
                  of->low, of->high, dtype != NULL ? dtype : "?");
    if (of->found > 0) {
        put_numbers(out, "counts", of->counts, (uint64_t)of->width * of->bins);
        put_numbers(out, "zeros", of->zeros, of->width);
        put_numbers(out, "odd", of->odd, of->width);
        put_numbers(out, "elements", of->elements, of->width);
    }
    tp_buf_printf(out, "}");
}

/* The rank that is asked for, or the first one that has the series. */
static const tp_view_rank *rank_of(const tp_view_run *run, const tp_ask *ask, uint32_t key)
{
    const uint64_t wanted = tp_ask_number(ask, "rank", UINT64_MAX);
    for (uint32_t i = 0; i < tp_view_rank_count(run); i++) {
        const tp_view_rank *rank = tp_view_rank_at(run, i);
        if (tp_view_row_of(rank, key) != UINT32_MAX &&
            (wanted == UINT64_MAX || rank->rank == wanted)) {
            return rank;
        }
    }
    return NULL;
}

void tp_answer_histogram(tp_library *library, const tp_ask *ask, tp_answer *answer)
{
    tp_view_run *run = tp_library_find(library, tp_ask_text(ask, "r", ""));
    const uint64_t pixels = tp_ask_number(ask, "w", COLUMNS);
    picture of = {.row = tp_ask_text(ask, "row", ""),
                  .quantity = tp_ask_quantity(ask),
                  .is_values = strcmp(tp_ask_text(ask, "what", ""), "values") == 0,
                  .places = TP_BUF_INIT};
    tp_buf memory = TP_BUF_INIT;
    if (run == NULL) {
        tp_answer_wrong(answer, 404, "no such run");
        return;
    }
    pthread_rwlock_rdlock(&run->lock);
    const tp_view_rank *rank = rank_of(run, ask, tp_view_key_find(run, of.quantity, of.row));
    tp_ask_steps(ask, run, &of.from, &of.to);
    const uint64_t span = of.to - of.from + 1;
    const uint64_t width = pixels < 1 || pixels > COLUMNS ? COLUMNS : pixels;
    of.per = span / width + (span % width != 0);
    of.width = (uint32_t)(span / of.per + (span % of.per != 0));
    if (rank != NULL) {
        of.rank = rank->rank;
        choose_places(rank, &of);
    }
    pthread_rwlock_unlock(&run->lock);
    if (rank == NULL) {
        tp_answer_wrong(answer, 404, "no such series");
        return;
    }
    tp_status status = of.places.failed ? TP_ERR_NOMEM : read_all(&of, true);
    if (status == TP_OK && of.found > 0) {
        const size_t numbers = (size_t)of.width * (of.bins + 3);
        of.counts = tp_buf_extend(&memory, numbers * sizeof(double));
        status = of.counts == NULL ? TP_ERR_NOMEM : TP_OK;
        if (status == TP_OK) {
            memset(of.counts, 0, numbers * sizeof(double));
            of.zeros = of.counts + (size_t)of.width * of.bins;
            of.odd = of.zeros + of.width;
            of.elements = of.odd + of.width;
            status = read_all(&of, false);
        }
    }
    if (status == TP_OK) {
        put_picture(&answer->body, &of);
    } else {
        tp_answer_wrong(answer, 503, "no memory");
    }
    tp_buf_free(&memory);
    tp_buf_free(&of.places);
}

/* The records of a series in a step, micro step by micro step. */
void tp_answer_micro(const tp_view_run *run, const tp_ask *ask, tp_answer *answer)
{
    const picture of = {.row = tp_ask_text(ask, "row", ""), .quantity = tp_ask_quantity(ask)};
    const uint64_t step = tp_ask_number(ask, "step", UINT64_MAX);
    const tp_view_rank *rank = rank_of(run, ask, tp_view_key_find(run, of.quantity, of.row));
    const tp_view_column *column = rank != NULL ? tp_view_column_find(rank, step) : NULL;
    tp_reader *reader = NULL;
    tp_item item;
    tp_buf *out = &answer->body;
    const char *separator = "";
    if (column == NULL) {
        tp_answer_wrong(answer, 404, "no such step of this series");
        return;
    }
    tp_buf_printf(out, "{\"rank\":%" PRIu32 ",\"step\":%" PRIu64 ",\"records\":[", rank->rank,
                  step);
    if (tp_view_read_step(rank, column, &reader, &item) == TP_OK) {
        for (uint64_t i = 0; item.batch.records != NULL && i < item.batch.count; i++) {
            const tp_record *record = &item.batch.records[i];
            if (is_meant(reader, record, &of)) {
                tp_buf_printf(out, "%s{\"micro_step\":%" PRIu32, separator, record->micro_step);
                tp_json_stats(out, &record->u.stats);
                tp_buf_printf(out, "}");
                separator = ",";
            }
        }
    }
    tp_buf_printf(out, "]}");
    tp_reader_close(&reader);
}
