/* The last values of a series, with their median and the median of the distances from it. */
#ifndef TP_RULES_WINDOW_H
#define TP_RULES_WINDOW_H

#include <stddef.h>
#include <stdint.h>

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
