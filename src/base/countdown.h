/* For tests: the n-th of some calls fails, and so does every one after it. Any thread. */
#ifndef TP_BASE_COUNTDOWN_H
#define TP_BASE_COUNTDOWN_H

#include <stdatomic.h>
#include <stdbool.h>

/* Calls left before they begin to fail, plus one; 0 means never. */
typedef atomic_ulong tp_countdown;

/* Returns whether a call has failed since the last start. */
static inline bool tp_countdown_start(tp_countdown *countdown, unsigned long n)
{
    return atomic_exchange(countdown, n == 0 ? 0 : n + 1) == 1;
}

/* Counts one call; whether it must fail. */
static inline bool tp_countdown_is_over(tp_countdown *countdown)
{
    unsigned long left = atomic_load_explicit(countdown, memory_order_relaxed);
    while (left > 1 && !atomic_compare_exchange_weak(countdown, &left, left - 1)) {
    }
    return left == 1 || left == 2;
}

#endif
