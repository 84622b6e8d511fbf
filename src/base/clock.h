/* Clocks, all in nanoseconds. Any thread. */
#ifndef TP_BASE_CLOCK_H
#define TP_BASE_CLOCK_H

#include <stdint.h>

uint64_t tp_clock_monotonic(void);
int64_t tp_clock_wall(void);        /* Unix time */
uint64_t tp_clock_thread_cpu(void); /* CPU time of the calling thread */

#endif
