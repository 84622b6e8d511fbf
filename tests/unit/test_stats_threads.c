/* A tensor that several threads read has the bytes of one that a single thread reads: every dtype,
 * layout and output. The helpers are out of the way of forks, signals and other callers.
 * TP_TEST_SEED changes the draw. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "base/pool.h"
#include "stats/kernels.h"

#define BYTES (3U << 20)
#define BINS 50

static uint8_t memory[BYTES];
static uint64_t state;

static uint64_t below(uint64_t n)
{
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (state >> 33) % n;
}

typedef struct outputs {
    tp_stats stats;
    uint64_t bins[BINS];
    tp_exponents exponents;
    uint64_t hash;
} outputs;

static void compute(const tp_tensor *tensor, unsigned threads, outputs *out)
{
    tp_stats_options options;
    tp_stats_options_defaults(&options);
    memset(out, 0xee, sizeof(*out));
    options.eps = 1e-3;
    options.bins = out->bins;
    options.bin_count = BINS;
    options.exponents = &out->exponents;
    options.hash = &out->hash;
    options.threads = threads;
    assert_int_equal(tp_stats_compute_with(tensor, &options, &out->stats), TP_OK);
}

/* Any bits; bytes of exponents near 1 so that sums are finite; or mostly zeros, so that the largest
 * element is at one place, far back. */
static void fill(uint32_t dtype, int kind)
{
    const size_t size = tp_dtype_size(dtype);
    memset(memory, 0, sizeof(memory));
    for (size_t i = 0; kind != 2 && i < sizeof(memory); i += 4) {
        const uint32_t bits = (uint32_t)below(UINT32_MAX);
        memcpy(memory + i, &bits, sizeof(bits));
    }
    for (size_t i = size - 1; kind == 1 && dtype <= TP_BF16 && i < sizeof(memory); i += size) {
        memory[i] = (uint8_t)((memory[i] & 0x80) | 0x3b);
    }
    for (int i = 0; kind == 2 && i < 3; i++) {
        memory[below(sizeof(memory) / size) * size + size - 1] = 0x40;
    }
}

/* One of the layouts in n elements. */
static tp_tensor lay_out(int layout, uint32_t dtype, int64_t n, int64_t shape[3],
                         int64_t strides[3])
{
    tp_tensor tensor = {memory, shape, strides, dtype, 2};
    const int64_t rows = 300;
    shape[0] = rows;
    shape[1] = n / rows;
    strides[0] = shape[1];
    strides[1] = 1;
    switch (layout) {
    case 0: /* one dimension, an odd number of elements */
        tensor.ndim = 1;
        shape[0] = n - (int64_t)below(5000);
        strides[0] = 1;
        break;
    case 1: /* dense, in another order than the indices */
        strides[0] = 1;
        strides[1] = rows;
        break;
    case 2: /* rows with gaps, an expanded dimension between */
        tensor.ndim = 3;
        shape[2] = shape[1] - 3;
        shape[1] = 2;
        strides[2] = 1;
        strides[1] = 0;
        break;
    default: /* backwards */
        tensor.data = memory + (size_t)((rows - 1) * shape[1]) * tp_dtype_size(dtype);
        strides[0] = -shape[1];
        break;
    }
    return tensor;
}

static void same_bytes_on_every_number_of_threads(void **unused)
{
    (void)unused;
    static const unsigned threads[] = {2, 3, 7, 100};
    const char *seed = getenv("TP_TEST_SEED");
    state = seed != NULL ? strtoull(seed, NULL, 0) : 20261130;
    printf("TP_TEST_SEED=%llu\n", (unsigned long long)state);
    const int rounds = getenv("TP_SOAK") != NULL ? 24 : 1;
    for (uint32_t dtype = TP_F64; dtype <= TP_C128; dtype++) {
        for (int round = 0; round < 4 * rounds; round++) {
            const int64_t most = BYTES / tp_dtype_size(dtype);
            const int64_t n = most - (int64_t)below((uint64_t)most / 2);
            int64_t shape[3];
            int64_t strides[3];
            fill(dtype, (int)((dtype + (uint32_t)round) % 3));
            const tp_tensor tensor = lay_out(round % 4, dtype, n, shape, strides);
            static outputs right;
            static outputs found;
            compute(&tensor, 1, &right);
            compute(&tensor, threads[below(4)], &found);
            assert_memory_equal(&right, &found, sizeof(right));
        }
    }
    assert_true(tp_pool_size() > 0);
}

/* Just above the size from which on a tensor is split, around the borders of blocks and shares. */
static void same_bytes_at_the_borders(void **unused)
{
    (void)unused;
    state = 3;
    fill(TP_F32, 1);
    static const int64_t shares[] = {4, 5, 8, 11};
    for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
        for (int64_t off = -1; off <= 1; off++) {
            const int64_t shape[] = {shares[i] * 16 * TP_BLOCK + off * (off < 0 ? 1 : 4097)};
            const tp_tensor tensor = {memory, shape, NULL, TP_F32, 1};
            outputs right;
            outputs found;
            compute(&tensor, 1, &right);
            compute(&tensor, 2, &found);
            assert_memory_equal(&right, &found, sizeof(right));
        }
    }
}

static tp_tensor large(const int64_t shape[1])
{
    return (tp_tensor){memory, shape, NULL, TP_F32, 1};
}

static const int64_t large_shape[] = {BYTES / 4};

static tp_tensor large_bytes(const int64_t shape[1])
{
    return (tp_tensor){memory, shape, NULL, TP_I8, 1};
}

static const int64_t bytes_shape[] = {BYTES};

static void *call_often(void *right)
{
    const tp_tensor tensor = large(large_shape);
    for (int i = 0; i < 15; i++) {
        tp_stats found;
        if (tp_stats_compute(&tensor, 1e-3, &found) != TP_OK ||
            memcmp(&found, right, sizeof(found)) != 0) {
            return right;
        }
    }
    return NULL;
}

/* Bytes that are counted in pairs, of which not everybody can have the counters. */
static void *count_often(void *right)
{
    const tp_tensor tensor = large_bytes(bytes_shape);
    for (int i = 0; i < 8; i++) {
        tp_stats found;
        if (tp_stats_compute(&tensor, 1e-3, &found) != TP_OK ||
            memcmp(&found, right, sizeof(found)) != 0) {
            return right;
        }
    }
    return NULL;
}

static void callers_at_once(void **unused)
{
    (void)unused;
    const tp_tensor tensor = large(large_shape);
    fill(TP_F32, 1);
    tp_stats right;
    tp_stats right_bytes;
    assert_int_equal(tp_stats_compute(&tensor, 1e-3, &right), TP_OK);
    const tp_tensor bytes = large_bytes(bytes_shape);
    assert_int_equal(tp_stats_compute(&bytes, 1e-3, &right_bytes), TP_OK);
    tp_stats_set_threads(3);
    pthread_t callers[8];
    for (int i = 0; i < 8; i++) {
        assert_int_equal(pthread_create(&callers[i], NULL, i < 3 ? call_often : count_often,
                                        i < 3 ? &right : &right_bytes),
                         0);
    }
    for (int i = 0; i < 8; i++) {
        void *wrong;
        pthread_join(callers[i], &wrong);
        assert_null(wrong);
    }
    tp_stats_set_threads(1);
}

/* Forks while another thread has the helpers: the children compute, alone, and end by exit(). */
static void forked(void **unused)
{
    (void)unused;
    const tp_tensor tensor = large(large_shape);
    tp_stats right;
    assert_int_equal(tp_stats_compute(&tensor, 1e-3, &right), TP_OK);
    tp_stats_set_threads(2);
    pthread_t caller;
    assert_int_equal(pthread_create(&caller, NULL, call_often, &right), 0);
    for (int i = 0; i < 8; i++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            alarm(60); /* ends a child that hangs */
            tp_stats found;
            const bool ok = tp_stats_compute(&tensor, 1e-3, &found) == TP_OK &&
                            memcmp(&found, &right, sizeof(found)) == 0 && tp_pool_size() == 0;
            exit(ok ? 0 : 1);
        }
        int status = -1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    void *wrong;
    pthread_join(caller, &wrong);
    assert_null(wrong);
    tp_stats_set_threads(1);
}

#define MANY 400

static void many_in_one_call(void **unused)
{
    (void)unused;
    static tp_tensor tensors[MANY];
    static int64_t shapes[MANY][2];
    static int64_t strides[MANY][2];
    static tp_stats right[MANY];
    static tp_stats found[MANY];
    state = 11;
    fill(TP_F32, 1);
    for (int i = 0; i < MANY; i++) {
        const uint32_t dtype = TP_F64 + (uint32_t)below(TP_C128);
        const uint64_t largest = i % 100 == 17 ? BYTES / 16 : below(3) == 0 ? 20000 : 300;
        const int64_t n = (int64_t)below(largest);
        shapes[i][0] = 1 + n / 40;
        shapes[i][1] = below(20) == 0 ? 0 : 1 + (int64_t)below(30);
        strides[i][0] = below(3) == 0 ? 1 : 40;
        strides[i][1] = strides[i][0] == 1 ? shapes[i][0] : 1;
        if (i % 100 == 17) { /* one that is split */
            shapes[i][0] = BYTES / 4 - n;
            strides[i][0] = 1;
            shapes[i][1] = 1;
        }
        tensors[i] = (tp_tensor){memory, shapes[i], strides[i], i % 100 == 17 ? TP_F32 : dtype, 2};
        assert_int_equal(tp_stats_compute(&tensors[i], 1e-3, &right[i]), TP_OK);
    }
    for (unsigned threads = 1; threads <= 5; threads += 2) {
        const tp_stats_options options = {.eps = 1e-3, .threads = threads};
        for (uint64_t count = 0; count <= MANY; count += MANY / 2) {
            memset(found, 0xee, sizeof(found));
            assert_int_equal(tp_stats_compute_many(tensors, count, &options, found), TP_OK);
            assert_memory_equal(found, right, count * sizeof(*found));
        }
        tp_tensor *wrong[] = {&tensors[350], &tensors[217], &tensors[90]};
        static const tp_status errors[] = {TP_ERR_ARGUMENT, TP_ERR_ARGUMENT, TP_ERR_UNSUPPORTED};
        const tp_tensor kept[] = {tensors[350], tensors[217], tensors[90]};
        for (int i = 0; i < 3; i++) { /* the first in order counts */
            if (i < 2) {
                wrong[i]->data = NULL;
                shapes[wrong[i] - tensors][1] += shapes[wrong[i] - tensors][1] == 0;
            } else {
                wrong[i]->dtype = 77;
            }
            assert_int_equal(tp_stats_compute_many(tensors, MANY, &options, found), errors[i]);
        }
        for (int i = 0; i < 3; i++) {
            *wrong[i] = kept[i];
        }
    }
    uint64_t hash;
    const tp_stats_options more = {.eps = 1e-3, .hash = &hash};
    assert_int_equal(tp_stats_compute_many(tensors, 3, &more, found), TP_ERR_ARGUMENT);
}

/* A signal to the process is not taken by a helper, where it would end the program. */
static void signals_are_left_alone(void **unused)
{
    (void)unused;
    sigset_t usual;
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    assert_true(tp_pool_size() > 0);
    pthread_sigmask(SIG_BLOCK, &blocked, &usual);
    kill(getpid(), SIGUSR1);
    outputs found;
    const tp_tensor tensor = large(large_shape);
    compute(&tensor, 4, &found);
    int taken = 0;
    assert_int_equal(sigwait(&blocked, &taken), 0);
    assert_int_equal(taken, SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &usual, NULL);
}

/* A dense tensor of one block has a way of its own, unless something else is asked for. */
static void small_tensors_have_the_same_bytes(void **unused)
{
    (void)unused;
    state = 5;
    for (int i = 0; i < 3000; i++) {
        const uint32_t dtype = TP_F64 + (uint32_t)below(TP_BF16);
        if (i % 100 == 0) {
            fill(dtype, i / 100 % 3);
        }
        const int64_t shape[] = {1 + (int64_t)below(i % 2 == 0 ? 60 : TP_BLOCK)};
        const tp_tensor tensor = {memory + below(BYTES / 2), shape, NULL, dtype, 1};
        static outputs right;
        tp_stats found;
        compute(&tensor, 1, &right);
        assert_int_equal(tp_stats_compute(&tensor, 1e-3, &found), TP_OK);
        assert_memory_equal(&right.stats, &found, sizeof(found));
    }
}

static void small_tensors_make_no_thread(void **unused)
{
    (void)unused;
    const int64_t shape[] = {200000};
    const tp_tensor tensor = {memory, shape, NULL, TP_F32, 1};
    outputs found;
    compute(&tensor, 8, &found);
    const tp_tensor whole = large(large_shape);
    compute(&whole, 1, &found);
    assert_int_equal(tp_pool_size(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_tensors_make_no_thread),
        cmocka_unit_test(small_tensors_have_the_same_bytes),
        cmocka_unit_test(same_bytes_on_every_number_of_threads),
        cmocka_unit_test(same_bytes_at_the_borders),
        cmocka_unit_test(callers_at_once),
        cmocka_unit_test(many_in_one_call),
        cmocka_unit_test(signals_are_left_alone),
        cmocka_unit_test(forked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
