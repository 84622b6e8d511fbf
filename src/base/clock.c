#include "base/clock.h"

#include <time.h>

static int64_t read_clock(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

uint64_t tp_clock_monotonic(void)
{
    return (uint64_t)read_clock(CLOCK_MONOTONIC);
}

int64_t tp_clock_wall(void)
{
    return read_clock(CLOCK_REALTIME);
}

uint64_t tp_clock_thread_cpu(void)
{
    return (uint64_t)read_clock(CLOCK_THREAD_CPUTIME_ID);
}
