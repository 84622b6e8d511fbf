/* Clocks, all in nanoseconds. Any thread. */
#ifndef TP_BASE_CLOCK_H
#define TP_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

uint64_t tp_clock_monotonic(void);
int64_t tp_clock_wall(void);        /* Unix time */
uint64_t tp_clock_thread_cpu(void); /* CPU time of the calling thread */

/* The monotonic clock at less than half the price: between two readings of it, which are a
 * millisecond apart at most, the processor's counter is read alone. Within a microsecond of the
 * monotonic clock; never before what it said last. Zero it first. One thread at a time. */
typedef struct tp_quick_clock {
    uint64_t counter; /* when the monotonic clock was read, and what it said */
    uint64_t ns;
    uint64_t scale; /* nanoseconds a count, times 2^32; 0: not known yet */
    uint64_t last;  /* what was said last */
} tp_quick_clock;

/* Reads the monotonic clock itself. */
uint64_t tp_quick_clock_look(tp_quick_clock *clock);

/* Counts of the processor's counter that its rate is trusted for. */
#define TP_COUNTS_APART (UINT64_C(1) << 21) /* less than a millisecond from 2.1 GHz on */

static inline uint64_t tp_quick_clock_read(tp_quick_clock *clock)
{
#if defined(__x86_64__)
    const uint64_t counts = __rdtsc() - clock->counter;
    if (clock->scale > 0 && counts < TP_COUNTS_APART) {
        const uint64_t now = clock->ns + (counts * clock->scale >> 32);
        clock->last = now > clock->last ? now : clock->last;
        return clock->last;
    }
#endif
    return tp_quick_clock_look(clock);
}

#endif
