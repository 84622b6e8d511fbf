#include "view/baseline.h"

#include <math.h>
#include <string.h>

#include "rules/window.h"

#define TOO_FAR 6.0F /* MADs: a drift leaves its past behind, and shows */
#define PATIENCE 128 /* values that were too far off, one after the other */

float tp_baseline_median(const tp_baseline *baseline)
{
    return baseline->count == 0 ? (float)NAN
                                : baseline->values[baseline->order[(baseline->count - 1) / 2]];
}

#define IN_ORDER(baseline, i) ((baseline)->values[(baseline)->order[i]])
TP_DEFINE_DEVIATION(deviation, float, tp_baseline, IN_ORDER)

float tp_baseline_mad(const tp_baseline *baseline)
{
    return baseline->count == 0 ? (float)NAN : deviation(baseline, baseline->count);
}

bool tp_baseline_range(const tp_baseline *baseline, float least, float share, float *median,
                       float *mad)
{
    if (baseline->count < TP_BASELINE_NEEDS) {
        return false;
    }
    const float floor = least + share * fabsf(tp_baseline_median(baseline));
    *median = tp_baseline_median(baseline);
    *mad = tp_baseline_mad(baseline);
    *mad = *mad > floor ? *mad : floor;
    return true;
}

float tp_baseline_distance(const tp_baseline *baseline, float value, float least, float share)
{
    float median;
    float mad;
    return tp_baseline_range(baseline, least, share, &median, &mad) ? (value - median) / mad
                                                                    : (float)NAN;
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
