#include "view/baseline.h"

#include <math.h>
#include <string.h>

#define TOO_FAR 6.0F /* MADs: a drift leaves its past behind, and shows */
#define PATIENCE 128 /* values that were too far off, one after the other */

float tp_baseline_median(const tp_baseline *baseline)
{
    return baseline->count == 0 ? (float)NAN
                                : baseline->values[baseline->order[(baseline->count - 1) / 2]];
}

/* The distances below the median and above it lie in order: half of them are passed, the smaller
 * one first. */
float tp_baseline_mad(const tp_baseline *baseline)
{
    const uint32_t count = baseline->count;
    if (count == 0) {
        return (float)NAN;
    }
    const uint32_t middle = (count - 1) / 2;
    const float median = baseline->values[baseline->order[middle]];
    uint32_t below = middle;
    uint32_t above = middle + 1;
    float distance = 0;
    for (uint32_t i = 0; i < middle; i++) {
        const float down = below > 0 ? median - baseline->values[baseline->order[below - 1]] : 0;
        const float up = above < count ? baseline->values[baseline->order[above]] - median : 0;
        if (above == count || (below > 0 && down <= up)) {
            distance = down;
            below--;
        } else {
            distance = up;
            above++;
        }
    }
    return distance;
}

float tp_baseline_distance(const tp_baseline *baseline, float value, float least, float share)
{
    if (baseline->count < TP_BASELINE_NEEDS) {
        return (float)NAN;
    }
    const float median = tp_baseline_median(baseline);
    const float mad = fmaxf(tp_baseline_mad(baseline), least + share * fabsf(median));
    return (value - median) / mad;
}

static void add(tp_baseline *baseline, float value)
{
    uint8_t *order = baseline->order;
    if (baseline->count == TP_BASELINE_WINDOW) {
        uint32_t oldest = 0;
        while (order[oldest] != baseline->next) {
            oldest++;
        }
        memmove(order + oldest, order + oldest + 1, TP_BASELINE_WINDOW - oldest - 1);
        baseline->count--;
    }
    uint32_t low = 0;
    for (uint32_t high = baseline->count; low < high;) {
        const uint32_t middle = (low + high) / 2;
        if (baseline->values[order[middle]] < value) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    memmove(order + low + 1, order + low, baseline->count - low);
    order[low] = baseline->next;
    baseline->values[baseline->next] = value;
    baseline->next = (uint8_t)((baseline->next + 1) % TP_BASELINE_WINDOW);
    baseline->count++;
}

void tp_baseline_take(tp_baseline *baseline, float value, float distance)
{
    if (fabsf(distance) > TOO_FAR) { /* not so when it is NaN */
        if (++baseline->refused < PATIENCE) {
            return;
        }
        memset(baseline, 0, sizeof *baseline);
    }
    baseline->refused = 0;
    add(baseline, value);
}
