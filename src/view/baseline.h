/* How far a value is from what a series has been lately: the median of its last values, and the
 * median of their distances from it (MAD), as the rules have it, in a third of the memory. */
#ifndef TP_VIEW_BASELINE_H
#define TP_VIEW_BASELINE_H

#include <stdbool.h>
#include <stdint.h>

#define TP_BASELINE_WINDOW 32
#define TP_BASELINE_NEEDS 16 /* earlier values, before anything is said */

/* Zeroed is empty. */
typedef struct tp_baseline {
    float values[TP_BASELINE_WINDOW];  /* as they came, round and round */
    uint8_t order[TP_BASELINE_WINDOW]; /* their places, the smallest value first */
    uint8_t count;
    uint8_t next;
    uint8_t refused; /* values in a row that were too far off to be taken in */
    uint8_t reserved;
} tp_baseline;

/* The value's distance from the median in MADs, a MAD being at least `least` + 5 % of the median
 * (share: a value is large by itself, not beside its median). NaN: too few values yet. */
float tp_baseline_distance(const tp_baseline *baseline, float value, float least, float share);

/* What that is measured from, and in; false: too few values yet. */
bool tp_baseline_range(const tp_baseline *baseline, float least, float share, float *median,
                       float *mad);

float tp_baseline_median(const tp_baseline *baseline); /* NaN: none */
float tp_baseline_mad(const tp_baseline *baseline);

/* Takes a finite value in, if it isn't too far off: then it becomes the new normal only when many
 * of them came in a row. */
void tp_baseline_take(tp_baseline *baseline, float value, float distance);

#endif
