/* Loops that bench/stats.py calls through ctypes, so that no call from Python lies between two
 * reads. Each returns the nanoseconds that `repeats` calls took. */
#include <stdlib.h>
#include <time.h>

#include "stats/kernels.h"

#define EXPORT __attribute__((visibility("default")))

#define BINS 30

EXPORT uint64_t tp_bench_stats(const void *data, int64_t n, uint32_t dtype, int isa, int with,
                               uint64_t repeats);
EXPORT uint64_t tp_bench_call(const void *data, int64_t n, uint32_t dtype, uint64_t repeats);
EXPORT uint64_t tp_bench_threads(const void *data, int64_t n, uint32_t dtype, uint32_t threads,
                                 uint64_t repeats);
EXPORT uint64_t tp_bench_read(const void *data, uint64_t bytes, uint64_t repeats);

static uint64_t ns_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

static uint64_t cpu_ns(void)
{
    return ns_of(CLOCK_THREAD_CPUTIME_ID);
}

/* with: 1 a histogram, 2 exponents, 4 the hash. */
uint64_t tp_bench_stats(const void *data, int64_t n, uint32_t dtype, int isa, int with,
                        uint64_t repeats)
{
    static uint64_t bins[BINS];
    static tp_exponents exponents;
    static uint64_t hash;
    const tp_stats_options options = {
        .eps = 1e-8,
        .bins = (with & 1) != 0 ? bins : NULL,
        .bin_count = BINS,
        .low = -1.0,
        .high = 1.0,
        .exponents = (with & 2) != 0 ? &exponents : NULL,
        .hash = (with & 4) != 0 ? &hash : NULL,
        .threads = 1,
    };
    const tp_tensor tensor = {data, &n, NULL, dtype, 1};
    tp_stats stats;
    const uint64_t start = cpu_ns();
    for (uint64_t i = 0; i < repeats; i++) {
        if (tp_stats_compute_isa(&tensor, &options, isa, &stats, NULL) != TP_OK) {
            abort();
        }
    }
    return cpu_ns() - start;
}

/* As a C program calls it. */
uint64_t tp_bench_call(const void *data, int64_t n, uint32_t dtype, uint64_t repeats)
{
    const tp_tensor tensor = {data, &n, NULL, dtype, 1};
    tp_stats stats;
    const uint64_t start = cpu_ns();
    for (uint64_t i = 0; i < repeats; i++) {
        if (tp_stats_compute(&tensor, 1e-8, &stats) != TP_OK) {
            abort();
        }
    }
    return cpu_ns() - start;
}

/* In wall time, as other threads take part. */
uint64_t tp_bench_threads(const void *data, int64_t n, uint32_t dtype, uint32_t threads,
                          uint64_t repeats)
{
    const tp_stats_options options = {.eps = 1e-8, .threads = threads};
    const tp_tensor tensor = {data, &n, NULL, dtype, 1};
    tp_stats stats;
    const uint64_t start = ns_of(CLOCK_MONOTONIC);
    for (uint64_t i = 0; i < repeats; i++) {
        if (tp_stats_compute_with(&tensor, &options, &stats) != TP_OK) {
            abort();
        }
    }
    return ns_of(CLOCK_MONOTONIC) - start;
}

/* The plain read, as fast as this machine can: nothing but loads, ahead of which the memory is
 * fetched as the kernels do it. */
typedef uint64_t words __attribute__((vector_size(64), aligned(1), may_alias));

#define AHEAD 2048
#define STEP 256

#define PLAIN_READ(name)                                                                           \
    static uint64_t name(const uint8_t *data, uint64_t bytes)                                      \
    {                                                                                              \
        words x[4] = {{0}};                                                                        \
        for (uint64_t i = 0; i + STEP <= bytes; i += STEP) {                                       \
            for (int k = 0; k < 4; k++) {                                                          \
                __builtin_prefetch(data + i + AHEAD + 64 * k);                                     \
                x[k] ^= *(const words *)(const void *)(data + i + 64 * k);                         \
            }                                                                                      \
        }                                                                                          \
        x[0] ^= x[1] ^ x[2] ^ x[3];                                                                \
        uint64_t all = 0;                                                                          \
        for (int k = 0; k < 8; k++) {                                                              \
            all ^= x[0][k];                                                                        \
        }                                                                                          \
        return all;                                                                                \
    }

PLAIN_READ(read_any)
#if defined(__x86_64__)
__attribute__((target("avx512f"))) PLAIN_READ(read_avx512) __attribute__((target("avx2")))
PLAIN_READ(read_avx2)
#endif

    uint64_t tp_bench_read(const void *data, uint64_t bytes, uint64_t repeats)
{
    uint64_t (*volatile read)(const uint8_t *, uint64_t) = read_any; /* called every time */
#if defined(__x86_64__)
    read = __builtin_cpu_supports("avx512f") ? read_avx512
           : __builtin_cpu_supports("avx2")  ? read_avx2
                                             : read_any;
#endif
    const uint64_t start = cpu_ns();
    for (uint64_t i = 0; i < repeats; i++) {
        read(data, bytes);
    }
    return cpu_ns() - start;
}
