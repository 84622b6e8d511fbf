/* Statistic by statistic, what the digests of a large journal say of each series. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "journal/thin.h"
#include "view/brief_parts.h"

#define SEED_BLOCKS 16 /* that fill a baseline */

/* How far from normal a span is that had so many steps, and what it does to the baseline. Of many
 * values the extremes are far from the middle by chance alone: so many MADs, about, as the other
 * factor says. The baseline gets what single values may have been. */
static int8_t take_span(tp_baseline *baseline, uint32_t stat, tp_digest_value span, float factor)
{
    if (!isfinite(span.low) || !isfinite(span.high)) {
        return TP_CODE_UNKNOWN;
    }
    const float low = tp_view_scale(span.low, stat);
    const float high = tp_view_scale(span.high, stat);
    const float middle = low + (high - low) / 2;
    const float half = (high - low) / 2 / factor;
    float median = (float)NAN;
    float mad = 1;
    (void)tp_view_range(baseline, stat, &median, &mad); /* NaN: distances aren't known */
    if (!(low < high)) {
        tp_baseline_take(baseline, high, (high - median) / mad);
        return tp_code_of_distance((high - median) / mad);
    }
    tp_baseline_take(baseline, middle - half, (middle - half - median) / mad);
    tp_baseline_take(baseline, middle + half, (middle + half - median) / mad);
    return tp_code_of_distance(((median - low > high - median ? low : high) - median) / mad);
}

static float factor_of(uint32_t steps)
{
    return 1 + 0.5F * log2f((float)steps);
}

void tp_brief_seed_block(const tp_view_rank *rank, uint64_t block, uint32_t stat, uint32_t first,
                         uint32_t count, tp_baseline *baselines, size_t stride)
{
    tp_grid_view view = {0};
    const float factor = factor_of(tp_grid_block(rank->grid, block).width);
    if (tp_grid_read_brief(rank->grid, block, stat, first, count, &view, NULL) == TP_OK) {
        for (uint32_t i = 0; i < view.count; i++) {
            const tp_digest_value span = {view.lows[i], view.values[i]};
            if (!tp_digest_is_none(span)) {
                take_span(&baselines[i * stride], stat, span, factor);
            }
        }
    }
    tp_grid_view_free(&view);
}

void tp_brief_seed(const tp_view_rank *rank, uint64_t column, uint32_t stat, uint32_t first,
                   uint32_t count, tp_baseline *baselines, size_t stride)
{
    const uint64_t end = tp_grid_find(rank->grid, column).block;
    for (uint64_t block = end > SEED_BLOCKS ? end - SEED_BLOCKS : 0; block < end; block++) {
        if (tp_grid_block(rank->grid, block).is_brief) {
            tp_brief_seed_block(rank, block, stat, first, count, baselines, stride);
        }
    }
}

void tp_brief_hurry(const tp_view_rank *rank, uint32_t stat)
{
    if (rank->brief != NULL) {
        __atomic_fetch_or(&rank->brief->hurry, 1U << stat, __ATOMIC_RELAXED);
    }
}

/* Chooses the next statistic; false: all are there. */
static bool choose(tp_brief *brief, uint32_t rows)
{
    const uint32_t hurry = __atomic_load_n(&brief->hurry, __ATOMIC_RELAXED);
    uint32_t best = TP_BRIEF_NO_STAT;
    for (uint32_t stat = TP_GRID_STATS; stat-- > 0;) {
        const bool hurries = (hurry >> stat & 1) != 0;
        if ((brief->done >> stat & 1) == 0 &&
            (best == TP_BRIEF_NO_STAT || hurries || (hurry >> best & 1) == 0)) {
            best = stat;
        }
    }
    brief->stat = best;
    brief->next = 0;
    tp_buf_clear(&brief->baselines);
    tp_baseline *baselines = best != TP_BRIEF_NO_STAT
                                 ? tp_buf_extend(&brief->baselines, rows * sizeof *baselines)
                                 : NULL;
    if (baselines != NULL) {
        memset(baselines, 0, rows * sizeof *baselines);
    } else {
        tp_buf_free(&brief->baselines);
        tp_buf_free(&brief->cells);
        tp_buf_free(&brief->values);
        tp_segment_close(&brief->file);
    }
    return baselines != NULL;
}

/* Counts the series that are far from normal in a span, for each of its columns. */
static void count_abnormal(tp_view_run *run, tp_view_rank *rank, tp_grid_place place,
                           const float *lows, const float *highs, const int8_t *codes,
                           uint32_t rows, uint32_t stat)
{
    tp_brief *brief = rank->brief;
    const uint32_t *keys = (const uint32_t *)(const void *)rank->rows.data;
    const size_t each = (tp_grid_rows(rank->grid) + 7) / 8;
    uint32_t abnormal[TP_VIEW_QUANTITIES] = {0};
    uint32_t series[TP_VIEW_QUANTITIES] = {0};
    while (brief->far.size < (place.block + 1) * each && !brief->far.failed) {
        uint8_t *more = tp_buf_extend(&brief->far, each);
        if (more != NULL) {
            memset(more, 0, each);
        }
    }
    if (brief->far.failed) {
        return;
    }
    uint8_t *far = brief->far.data + place.block * each;
    for (uint32_t row = 0; row < rows; row++) {
        const tp_cell worst = tp_grid_worst(lows[row], highs[row], codes[row]);
        const uint32_t quantity = tp_view_key_at(run, keys[row])->quantity;
        series[quantity] += !tp_cell_is_none(worst);
        if (tp_view_is_abnormal(worst) && (far[row / 8] >> (row % 8) & 1) == 0) {
            far[row / 8] |= (uint8_t)(1U << (row % 8));
            abnormal[quantity]++;
        }
    }
    tp_view_column *columns = (tp_view_column *)(void *)rank->columns.data + place.first;
    for (uint32_t i = 0; i < place.width; i++) {
        for (uint32_t q = 0; q < TP_VIEW_QUANTITIES; q++) {
            columns[i].abnormal[q] += abnormal[q];
            columns[i].series[q] = stat == TP_GRID_NORM ? series[q] : columns[i].series[q];
        }
    }
}

/* A span of the statistic; values: of the digest's rows. */
static bool take_block(tp_view_run *run, tp_view_rank *rank, const tp_brief_segment *one,
                       uint64_t block, const tp_digest_value *values)
{
    tp_brief *brief = rank->brief;
    const uint32_t stat = brief->stat;
    const tp_grid_place place = tp_grid_block(rank->grid, block);
    const uint32_t rows = place.rows;
    const uint32_t *of =
        (const uint32_t *)(const void *)tp_vocabulary_at(brief, one->vocabulary)->rows.data;
    tp_baseline *baselines = (tp_baseline *)(void *)brief->baselines.data;
    const float factor = factor_of(place.width);
    tp_buf_clear(&brief->cells);
    float *lows = tp_buf_extend(&brief->cells, rows * (2 * sizeof(float) + 1));
    if (lows == NULL) {
        return false;
    }
    float *highs = lows + rows;
    int8_t *codes = (int8_t *)(highs + rows);
    for (uint32_t row = 0; row < rows; row++) {
        lows[row] = tp_digest_none().low;
        highs[row] = lows[row];
        codes[row] = TP_CODE_UNKNOWN;
    }
    for (uint32_t i = 0; i < one->rows; i++) {
        if (of[i] < rows && !tp_digest_is_none(values[i])) {
            lows[of[i]] = values[i].low;
            highs[of[i]] = values[i].high;
            codes[of[i]] = take_span(&baselines[of[i]], stat, values[i], factor);
        }
    }
    pthread_rwlock_wrlock(&run->lock);
    tp_error error = {0};
    const bool good =
        tp_grid_fill_brief(rank->grid, block, stat, lows, highs, codes, &error) == TP_OK;
    if (!good) {
        snprintf(run->trouble, sizeof run->trouble, "%.250s", error.message);
    }
    if (stat <= TP_GRID_MAX_ABS) {
        count_abnormal(run, rank, place, lows, highs, codes, rows, stat);
    }
    run->version++;
    pthread_rwlock_unlock(&run->lock);
    return good;
}

/* The values of the statistic, of all rows in each span. */
static bool read_values(tp_brief *brief, const tp_brief_segment *one)
{
    return tp_segment_open(&brief->file, brief->folder, one->number) == TP_OK &&
           tp_segment_read(&brief->file, one->offsets[TP_DIGEST_OF_STAT + brief->stat],
                           TP_FRAME_DIGEST) &&
           tp_digest_get_values(&brief->file.payload, one->spans, one->rows, &brief->values) ==
               TP_OK;
}

static bool copy_made(tp_brief *brief, const tp_brief_segment *one)
{
    const tp_digest_span *spans = (const tp_digest_span *)(const void *)one->made_spans.data;
    const tp_digest_value *from = (const tp_digest_value *)(const void *)one->made_values.data;
    const tp_digest_value none = tp_digest_none();
    tp_buf_clear(&brief->values);
    for (uint32_t i = 0; i < one->spans; i++) {
        tp_buf_put(&brief->values, from + (size_t)brief->stat * spans[i].rows,
                   spans[i].rows * sizeof *from);
        for (uint32_t row = spans[i].rows; row < one->rows; row++) {
            tp_buf_put(&brief->values, &none, sizeof none);
        }
        from += (size_t)spans[i].rows * TP_DIGEST_STATS;
    }
    return !brief->values.failed;
}

bool tp_brief_advance(tp_view_run *run, tp_view_rank *rank)
{
    tp_brief *brief = rank->brief;
    if (brief == NULL || brief->done == (1U << TP_GRID_STATS) - 1 ||
        (brief->stat == TP_BRIEF_NO_STAT && !choose(brief, tp_grid_rows(rank->grid)))) {
        return false;
    }
    const tp_brief_segment *one = tp_brief_segment_at(brief, brief->next);
    const bool good = one->is_made ? copy_made(brief, one) : read_values(brief, one);
    for (uint32_t i = 0; i < one->spans && good; i++) {
        take_block(run, rank, one, one->block + i,
                   (const tp_digest_value *)(const void *)brief->values.data +
                       (size_t)i * one->rows);
    }
    tp_removed removed;
    if (!good && !tp_segment_is_thin(brief->folder, one->number, &removed)) {
        pthread_rwlock_wrlock(&run->lock);
        rank->damaged = true; /* unless the run itself has removed its steps meanwhile */
        pthread_rwlock_unlock(&run->lock);
    }
    brief->next++;
    if (brief->next == tp_brief_segment_count(brief)) {
        brief->done |= 1U << brief->stat;
        choose(brief, tp_grid_rows(rank->grid));
    }
    return true;
}
