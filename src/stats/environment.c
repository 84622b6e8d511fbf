#include "stats/environment.h"

#if !defined(__SSE2__)
#include <fenv.h>
#endif

void tp_in_default_environment(void (*run)(void *context), void *context)
{
#if defined(__SSE2__)
    const unsigned int found = _mm_getcsr();
    const bool differs = (found & ~TP_SSE_STATUS) != TP_SSE_INITIAL;
    if (differs) {
        _mm_setcsr(TP_SSE_INITIAL);
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
