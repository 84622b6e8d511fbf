/* The last values of a series, with their median and the median of the distances from it. */
#ifndef TP_RULES_WINDOW_H
#define TP_RULES_WINDOW_H

#include <stddef.h>
#include <stdint.h>

/* Defines a function of count > 0 values, of which at(values, i) is the i-th smallest: the median
 * of |value - median| (MAD), where each of the two medians is the lower one of the middle two. The
 * distances below the median and above it each lie in order: of both together half are smaller than
 * what is looked for, and so many of these as `low` says lie below. */
#define TP_DEFINE_DEVIATION(name, number, container, at)                                           \
    static number name(const container *values, uint32_t count)                                    \
    {                                                                                              \
        const uint32_t half = (count - 1) / 2;                                                     \
        const number median = at(values, half);                                                    \
        const uint32_t above = count - 1 - half;                                                   \
        uint32_t low = half > above ? half - above : 0;                                            \
        for (uint32_t high = half; low < high;) {                                                  \
            const uint32_t middle = (low + high) / 2;                                              \
            if (median - at(values, half - 1 - middle) <                                           \
                at(values, half + (half - middle)) - median) {                                     \
                low = middle + 1;                                                                  \
            } else {                                                                               \
                high = middle;                                                                     \
            }                                                                                      \
        }                                                                                          \
        const number down = low > 0 ? median - at(values, half - low) : 0;                         \
        const number up = low < half ? at(values, half + (half - low)) - median : 0;               \
        return down > up ? down : up;                                                              \
    }

/* In a rule's memory, with room for size doubles twice: as they came, and sorted. */
typedef struct tp_window {
    uint32_t count; /* values held, at most size */
    uint32_t next;  /* where the next one goes */
    uint64_t refused;
    double values[];
} tp_window;

size_t tp_window_memory(uint32_t size);

/* Takes a value (no NaN) in; when the window is full, the oldest goes. */
void tp_window_add(tp_window *window, uint32_t size, double value);

/* Of the values held; count > 0. The median of an even number is the lower of the middle two. */
double tp_window_median(const tp_window *window, uint32_t size);

/* The median of |value - median| (MAD). */
double tp_window_deviation(const tp_window *window, uint32_t size);

#endif
