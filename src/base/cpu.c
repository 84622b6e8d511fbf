#include "base/cpu.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/log.h"

static const char *const names[] = {"scalar", "avx2", "avx512", "neon"};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int supported;
static int chosen;

const char *tp_cpu_isa_name(int isa)
{
    return isa >= TP_ISA_SCALAR && isa <= TP_ISA_NEON ? names[isa] : "unknown";
}

#if defined(__x86_64__)
/* Conversion of half floats; clang 14's built-in test does not know its name. */
static bool has_f16c(void)
{
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C) != 0;
}
#endif

static int detect(void)
{
#if defined(__x86_64__)
    /* gcc's and clang's built-in test asks the operating system (XGETBV) too. */
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) {
        return TP_ISA_SCALAR;
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        return TP_ISA_AVX512;
    }
    return TP_ISA_AVX2;
#elif defined(__aarch64__)
    return TP_ISA_NEON;
#else
    return TP_ISA_SCALAR;
#endif
}

static void choose(void)
{
    const char *wanted = getenv("TENSORPROBE_ISA");
    supported = detect();
    chosen = supported;
    if (wanted == NULL || wanted[0] == '\0') {
        return;
    }
    for (int isa = TP_ISA_SCALAR; isa <= TP_ISA_NEON; isa++) {
        if (strcmp(wanted, names[isa]) == 0) {
            chosen = isa < chosen ? isa : chosen;
            return;
        }
    }
    tp_log(TP_LOG_WARNING, "TENSORPROBE_ISA=%s is none of scalar, avx2, avx512, neon: ignored",
           wanted);
}

int tp_cpu_isa(void)
{
    pthread_once(&once, choose);
    return chosen;
}

int tp_cpu_isa_supported(void)
{
    pthread_once(&once, choose);
    return supported;
}
