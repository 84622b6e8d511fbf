#include "rules/window.h"

#include <string.h>

size_t tp_window_memory(uint32_t size)
{
    return sizeof(tp_window) + 2 * (size_t)size * sizeof(double);
}

/* How many of the sorted values are smaller. */
static uint32_t rank_of(const double *sorted, uint32_t count, double value)
{
    uint32_t low = 0;
    uint32_t high = count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (sorted[middle] < value) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void tp_window_add(tp_window *window, uint32_t size, double value)
{
    double *sorted = window->values + size;
    if (window->count == size) {
        uint32_t oldest = rank_of(sorted, size, window->values[window->next]);
        memmove(sorted + oldest, sorted + oldest + 1, (size - oldest - 1) * sizeof *sorted);
        window->count--;
    }
    uint32_t place = rank_of(sorted, window->count, value);
    memmove(sorted + place + 1, sorted + place, (window->count - place) * sizeof *sorted);
    sorted[place] = value;
    window->values[window->next] = value;
    window->next = (window->next + 1) % size;
    window->count++;
}

double tp_window_median(const tp_window *window, uint32_t size)
{
    return window->values[size + (window->count - 1) / 2];
}

#define SORTED(sorted, i) ((sorted)[i])
TP_DEFINE_DEVIATION(deviation, double, double, SORTED)

double tp_window_deviation(const tp_window *window, uint32_t size)
{
    return deviation(window->values + size, window->count);
}
