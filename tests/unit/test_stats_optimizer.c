/* Adam's update and ratio and the agreement of signs: the same bytes on every instruction set, for
 * random pairs of tensors of every floating-point dtype and layout. TP_TEST_SEED and TP_TEST_CASES
 * change the draw. tests/python/test_optimizer_stats.py compares the values with torch. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "stats/loops.h"

#define MOST 9000
#define MOST_BINS 200

static uint8_t memory[2][MOST * 8 + 64];
static uint64_t state;

/* splitmix64 */
static uint64_t random_bits(void)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

static uint64_t below(uint64_t n)
{
    return random_bits() % n;
}

static uint64_t setting(const char *name, uint64_t usual)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 0) : usual;
}

static void put(uint32_t dtype, uint8_t *at, double x)
{
    const float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    uint16_t half = (uint16_t)(bits >> 16);
    if (dtype == TP_F16) { /* cut, not rounded; what is too small becomes any bits */
        const int exponent = (int)(bits >> 23 & 0xff) - 127 + 15;
        half = exponent > 0 && exponent < 31
                   ? (uint16_t)(half & 0x8000) | (uint16_t)((uint32_t)exponent << 10) |
                         (uint16_t)(bits >> 13 & 0x3ff)
                   : (uint16_t)random_bits();
    }
    memcpy(at,
           dtype == TP_F64   ? (const void *)&x
           : dtype == TP_F32 ? (const void *)&f
                             : (const void *)&half,
           tp_dtype_size(dtype));
}

/* Moments as they are, with what may go wrong in between. */
static void fill(uint32_t dtype, uint8_t *data, size_t n, bool square)
{
    static const double odd[] = {0.0,   -0.0,   INFINITY, -INFINITY, 1e-40,  -1e-45, 1e-300,
                                 3e-38, -3e-38, 1e300,    3.4e38,    0x1p-1, -1.0,   5e-324};
    const uint64_t rate = 1 + below(400);
    const double scale = pow(10.0, -(double)below(8));
    const bool any_bits = below(8) == 0;
    for (size_t i = 0; i < n; i++) {
        double x = ((double)(random_bits() >> 11) * 0x1p-52 - 1.0) * scale;
        x = square ? x * x : x;
        if (below(rate) == 0) {
            x = below(16) == 0 ? (double)NAN : odd[below(sizeof(odd) / sizeof(odd[0]))];
        }
        uint8_t *at = data + i * tp_dtype_size(dtype);
        put(dtype, at, x);
        if (any_bits) {
            const uint64_t bits = random_bits();
            memcpy(at, &bits, tp_dtype_size(dtype));
        }
    }
}

/* A shape for both, and strides of their own within MOST elements. */
static void draw_layout(int64_t shape[3], int64_t strides[2][3], uint32_t *ndim)
{
    static const int64_t borders[] = {0, 1, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097, 8193};
    *ndim = (uint32_t)below(4);
    if (*ndim == 1) {
        shape[0] = below(2) ? borders[below(12)] : (int64_t)below(below(2) ? 80 : 3000);
        strides[0][0] = below(8) == 0 && shape[0] < MOST / 2 ? 2 : 1;
        strides[1][0] = below(8) == 0 && shape[0] < MOST / 2 ? 2 : below(16) == 0 ? 0 : 1;
        return;
    }
    for (uint32_t d = 0; d < *ndim; d++) {
        shape[d] = 1 + (int64_t)below(*ndim == 2 ? 60 : 16);
    }
    for (int k = 0; k < 2; k++) {
        int64_t stride = 1;
        const uint32_t first = (uint32_t)below(*ndim + 1);
        for (uint32_t i = 0; i < *ndim; i++) { /* any rotation of the dimensions in memory */
            const uint32_t d = (i + first) % *ndim;
            strides[k][d] = stride;
            stride *= shape[d] + (stride == 1 ? (int64_t)below(2) : 0);
        }
        if (*ndim > 0 && below(6) == 0) {
            strides[k][below(*ndim)] = 0;
        }
    }
}

typedef struct results {
    tp_stats update;
    tp_stats ratio;
    uint64_t bins[2][MOST_BINS];
    tp_agreement agreement;
} results;

static bool compute(const tp_tensor tensors[2], tp_adam_options *options, int isa, results *out)
{
    memset(out, 0x5a, sizeof(*out));
    options->update.bins = out->bins[0];
    options->ratio.bins = out->bins[1];
    const tp_status status =
        tp_adam_compute_isa(&tensors[0], &tensors[1], options, isa, &out->update, &out->ratio);
    const tp_status other =
        tp_agreement_compute_isa(&tensors[0], &tensors[1], isa, &out->agreement);
    assert_int_equal(status, other);
    if (status == TP_OK) {
        return true;
    }
    assert_int_equal(status, TP_ERR_UNSUPPORTED); /* of another kind of processor */
    return false;
}

static void same_bytes_on_every_isa(void **unused)
{
    (void)unused;
    static const uint32_t dtypes[] = {TP_F32, TP_F32, TP_BF16, TP_F16, TP_F64};
    static const uint32_t bin_counts[] = {30, 30, 1, 64, 65, 200};
    const uint64_t seed = setting("TP_TEST_SEED", 20261130);
    const uint64_t cases = setting("TP_TEST_CASES", getenv("TP_SOAK") != NULL ? 400000 : 20000);
    int compared = 0;
    printf("TP_TEST_SEED=%llu TP_TEST_CASES=%llu\n", (unsigned long long)seed,
           (unsigned long long)cases);
    for (uint64_t i = 0; i < cases; i++) {
        state = seed + i * 0x100000000U;
        int64_t shape[3];
        int64_t strides[2][3];
        uint32_t ndim;
        draw_layout(shape, strides, &ndim);
        tp_tensor tensors[2];
        const uint32_t common = dtypes[below(5)];
        for (int k = 0; k < 2; k++) {
            const uint32_t dtype = below(4) == 0 ? dtypes[below(5)] : common;
            uint8_t *data = memory[k] + below(64); /* any address, odd ones too */
            int64_t reach = 1;
            for (uint32_t d = 0; d < ndim; d++) {
                reach += shape[d] > 0 ? (shape[d] - 1) * strides[k][d] : 0;
            }
            assert_true(reach <= MOST);
            fill(dtype, data, (size_t)reach, k == 1);
            tensors[k] = (tp_tensor){data, shape, strides[k], dtype, ndim};
        }
        tp_adam_options options;
        tp_adam_options_defaults(&options);
        options.step = below(3) == 0 ? 0.0 : 1.0 + (double)below(below(2) ? 10 : 50000);
        options.eps = below(4) == 0 ? 0.0 : 1e-8;
        options.update.bin_count = bin_counts[below(6)];
        options.ratio.bin_count = bin_counts[below(6)];
        options.ratio.high = below(2) ? 1.0 : 0.7;
        results expected;
        assert_true(compute(tensors, &options, TP_ISA_SCALAR, &expected));
        for (int isa = TP_ISA_SCALAR + 1; isa <= tp_cpu_isa_supported(); isa++) {
            results found;
            if (compute(tensors, &options, isa, &found)) {
                compared++;
                if (memcmp(&expected, &found, sizeof(found)) != 0) {
                    fail_msg("case %llu: %s differs from scalar: %u dims, dtypes %u %u, step %g, "
                             "sum %a %a and %a %a",
                             (unsigned long long)i, tp_cpu_isa_name(isa), ndim, tensors[0].dtype,
                             tensors[1].dtype, options.step, expected.update.sum, found.update.sum,
                             expected.ratio.sum, found.ratio.sum);
                }
            }
        }
    }
    printf("%d results compared with those of the scalar code\n", compared);
}

static void wrong_arguments(void **unused)
{
    (void)unused;
    const int64_t four = 4;
    const int64_t five = 5;
    const float data[5] = {1, 2, 3, 4, 5};
    const tp_tensor a = {data, &four, NULL, TP_F32, 1};
    const tp_tensor longer = {data, &five, NULL, TP_F32, 1};
    const tp_tensor integers = {data, &four, NULL, TP_I32, 1};
    tp_adam_options options;
    tp_stats update = {.count = 77};
    tp_stats ratio = update;
    tp_agreement agreement = {.count = 77};
    uint64_t hash;
    tp_adam_options_defaults(&options);
    assert_int_equal(tp_adam_compute(&a, &longer, &options, &update, &ratio), TP_ERR_ARGUMENT);
    assert_int_equal(tp_adam_compute(&a, NULL, &options, &update, &ratio), TP_ERR_ARGUMENT);
    assert_int_equal(tp_adam_compute(&integers, &a, &options, &update, &ratio), TP_ERR_UNSUPPORTED);
    assert_int_equal(tp_agreement_compute(&a, &longer, &agreement), TP_ERR_ARGUMENT);
    assert_int_equal(tp_agreement_compute(&a, &integers, &agreement), TP_ERR_UNSUPPORTED);
    const struct {
        double *place;
        double value;
    } wrong[] = {
        {&options.beta1, 1.0}, {&options.beta1, -0.1},       {&options.beta2, (double)NAN},
        {&options.eps, -1.0},  {&options.step, 0.5},         {&options.step, (double)INFINITY},
        {&options.step, -1.0}, {&options.ratio.eps, -1e-30},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const double before = *wrong[i].place;
        *wrong[i].place = wrong[i].value;
        assert_int_equal(tp_adam_compute(&a, &a, &options, &update, &ratio), TP_ERR_ARGUMENT);
        *wrong[i].place = before;
    }
    options.update.hash = &hash;
    assert_int_equal(tp_adam_compute(&a, &a, &options, &update, &ratio), TP_ERR_ARGUMENT);
    options.update.hash = NULL;
    uint64_t bin = 0;
    options.ratio.bins = &bin;
    options.ratio.bin_count = 0;
    assert_int_equal(tp_adam_compute(&a, &a, &options, &update, &ratio), TP_ERR_ARGUMENT);
    assert_int_equal(update.count, 77);
    assert_int_equal(ratio.count, 77);
    assert_int_equal(agreement.count, 77);
    options.ratio.bin_count = 1;
    assert_int_equal(tp_adam_compute(&a, &a, &options, &update, &ratio), TP_OK);
    assert_int_equal(update.count, 4);
    assert_int_equal(bin, 1); /* 1 / sqrt(1); the others are larger than 1 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bytes_on_every_isa),
        cmocka_unit_test(wrong_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
