#include "base/clock.h"

#include <pthread.h>
#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

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

#if defined(__x86_64__)
#define MILLISECOND UINT64_C(1000000)
#define COUNTS_TOGETHER 500 /* a fraction of a microsecond: nothing came between */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_steady;

/* Does the counter go on at one rate, whatever the processor's speed and rest? */
static void look_at_counter(void)
{
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    is_steady = __get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) && (edx & (1u << 8)) != 0;
}

/* Reads both clocks. What they say is kept if nothing came between, and their rate since it was
 * kept before if that isn't too short a time. The rate is wrong when the machine slept meanwhile,
 * until the next time. */
static uint64_t read_both(tp_quick_clock *clock)
{
    pthread_once(&once, look_at_counter);
    if (!is_steady) {
        return tp_clock_monotonic();
    }
    const uint64_t before = __rdtsc();
    const uint64_t ns = tp_clock_monotonic();
    const uint64_t counter = before + (__rdtsc() - before) / 2;
    if (counter - before > COUNTS_TOGETHER / 2) {
        return ns;
    }
    const uint64_t apart = ns - clock->ns;
    if (clock->counter > 0 && counter > clock->counter && apart >= MILLISECOND / 2 &&
        apart < MILLISECOND * 1000) {
        clock->scale = (apart << 32) / (counter - clock->counter);
    } else if (clock->counter > 0 && apart < MILLISECOND / 2) {
        return ns;
    }
    clock->counter = counter;
    clock->ns = ns;
    return ns;
}

uint64_t tp_quick_clock_look(tp_quick_clock *clock)
{
    const uint64_t now = read_both(clock);
    clock->last = now > clock->last ? now : clock->last;
    return clock->last;
}
#else
uint64_t tp_quick_clock_look(tp_quick_clock *clock)
{
    clock->last = tp_clock_monotonic();
    return clock->last;
}
#endif
