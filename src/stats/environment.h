/* The results must not depend on what the program has set (torch.set_flush_denormal flushes
 * subnormals to 0), so tensors are read in the default floating-point environment. */
#ifndef TP_STATS_ENVIRONMENT_H
#define TP_STATS_ENVIRONMENT_H

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <stdbool.h>

#define TP_SSE_STATUS 0x3fU    /* exceptions that have been */
#define TP_SSE_INITIAL 0x1f80U /* nothing flushed, round to nearest, all masked */

/* Is that what is set? False where it isn't known at once. */
static inline bool tp_environment_is_default(void)
{
#if defined(__SSE2__)
    return (_mm_getcsr() & ~TP_SSE_STATUS) == TP_SSE_INITIAL;
#else
    return false;
#endif
}

/* Calls run(context) with nothing flushed and rounding to nearest, and puts the thread's own
 * settings back. By pointer, so that no arithmetic moves across the change. */
void tp_in_default_environment(void (*run)(void *context), void *context);

#endif
