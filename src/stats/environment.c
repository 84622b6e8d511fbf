#include "stats/environment.h"

#include <stdbool.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <fenv.h>
#endif

void tp_in_default_environment(void (*run)(void *context), void *context)
{
#if defined(__SSE2__)
    const unsigned int status_flags = 0x3f;
    const unsigned int initial = 0x1f80; /* nothing flushed, round to nearest, all masked */
    const unsigned int found = _mm_getcsr();
    const bool differs = (found & ~status_flags) != initial;
    if (differs) {
        _mm_setcsr(initial);
    }
    run(context);
    if (differs) {
        _mm_setcsr(found);
    }
#else
    fenv_t found;
    fegetenv(&found);
    fesetenv(FE_DFL_ENV);
    run(context);
    fesetenv(&found);
#endif
}
