/* The kernels that count neither zeros nor subnormal numbers know when they may not, and give the
 * bytes of those that do; a tensor that changes between the two kinds of blocks has its right
 * counts. TP_TEST_SEED changes the draw. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "stats/kernels.h"

#define BLOCKS 90

static uint64_t state;

static uint64_t below(uint64_t n)
{
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (state >> 33) % n;
}

/* Exponents near that of 1, any sign and fraction. */
static void fill(uint32_t dtype, uint8_t *data, size_t n)
{
    const size_t size = tp_dtype_size(dtype);
    for (size_t i = 0; i < n * size; i++) {
        data[i] = (uint8_t)below(256);
    }
    for (size_t i = 0; i < n; i++) {
        uint8_t *top = data + i * size + size - 1;
        *top = (uint8_t)((*top & 0x80) | 0x3c);
        data[i * size + size - 2] |= 0x80; /* bf16: not below 2^-7 */
    }
}

/* Magnitudes by their bits: the smallest normal number, the largest subnormal one, and so on. */
static void put(uint32_t dtype, uint8_t *at, uint64_t bits)
{
    memcpy(at, &bits, tp_dtype_size(dtype));
}

static void lean_is_clean(void **unused)
{
    (void)unused;
    static _Alignas(64) uint8_t data[TP_BLOCK * 8];
    static const int mantissa[] = {[TP_F64] = 52, [TP_F32] = 23, [TP_F16] = 10, [TP_BF16] = 7};
    state = getenv("TP_TEST_SEED") != NULL ? strtoull(getenv("TP_TEST_SEED"), NULL, 0) : 20261130;
    printf("TP_TEST_SEED=%llu\n", (unsigned long long)state);
    for (int isa = TP_ISA_AVX2; isa <= tp_cpu_isa_supported(); isa++) {
        for (uint32_t dtype = TP_F64; dtype <= TP_BF16; dtype++) {
            const tp_kernel *kernel = tp_kernel_with(isa, dtype);
            if (kernel == NULL || kernel->lean == NULL) {
                continue;
            }
            const uint64_t normal = UINT64_C(1) << mantissa[dtype];
            const tp_bounds bounds = {
                .eps = 0.0,
                .normal = dtype == TP_F64   ? 0x1p-1022
                          : dtype == TP_F16 ? 0x1p-14
                                            : 0x1p-126,
            };
            const uint64_t small[] = {normal, normal - 1, 1, 0};
            const uint64_t sign = UINT64_C(1) << (8 * tp_dtype_size(dtype) - 1);
            for (int round = 0; round < 120; round++) {
                fill(dtype, data, TP_BLOCK);
                const uint64_t bits = small[round % 4] | (below(2) == 0 ? sign : 0);
                put(dtype, data + below(TP_BLOCK) * tp_dtype_size(dtype), bits);
                tp_block right;
                tp_block found;
                memset(&found, 0xee, sizeof(found));
                kernel->clean(data, TP_BLOCK, &bounds, &right);
                const bool quiet = kernel->lean(data, &bounds, &found);
                assert_int_equal(quiet, round % 4 == 0);
                if (quiet) {
                    assert_memory_equal(&found, &right, sizeof(right));
                }
                /* The other bound: the least magnitude itself is no zero, the next one is. */
                tp_bounds large = bounds;
                large.eps = fmin(fabs(right.min), fabs(right.max)) * 4.0;
                assert_false(kernel->lean(data, &large, &found));
            }
        }
    }
}

static void blocks_of_both_kinds(void **unused)
{
    (void)unused;
    static uint8_t data[BLOCKS * TP_BLOCK * 8];
    for (uint32_t dtype = TP_F64; dtype <= TP_BF16; dtype++) {
        const size_t size = tp_dtype_size(dtype);
        for (int round = 0; round < 12; round++) {
            const size_t n = BLOCKS * TP_BLOCK - below(3000);
            const uint64_t seldom = round % 3 == 0 ? 2 : round % 3 == 1 ? 10 : 40;
            uint64_t zeros = 0;
            fill(dtype, data, n);
            for (size_t block = 0; block < n / TP_BLOCK; block++) {
                if (below(seldom) == 0) { /* one of its elements, or more if it is hit twice */
                    uint8_t *at = data + (block * TP_BLOCK + below(TP_BLOCK)) * size;
                    memset(at, 0, size);
                    zeros++;
                }
            }
            const int64_t shape[] = {(int64_t)n};
            const tp_tensor tensor = {data, shape, NULL, dtype, 1};
            const tp_stats_options options = {.eps = 1e-20};
            tp_stats right;
            assert_int_equal(tp_stats_compute_isa(&tensor, &options, TP_ISA_SCALAR, &right, NULL),
                             TP_OK);
            assert_int_equal(right.zeros, zeros);
            for (int isa = TP_ISA_AVX2; isa <= tp_cpu_isa_supported(); isa++) {
                tp_stats found;
                if (tp_kernel_with(isa, dtype) == NULL) {
                    continue;
                }
                assert_int_equal(tp_stats_compute_isa(&tensor, &options, isa, &found, NULL), TP_OK);
                assert_memory_equal(&found, &right, sizeof(right));
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lean_is_clean),
        cmocka_unit_test(blocks_of_both_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
