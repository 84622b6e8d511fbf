/* A stream of pieces gives the bytes of one call, however the pieces are cut, for every dtype; merged
 * parts give the values of one call. TP_TEST_SEED changes the draw. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tensorprobe/stats.h"

#define MOST 70000

static uint8_t memory[16 * MOST];
static uint64_t state;

static uint64_t below(uint64_t n)
{
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (state >> 33) % n;
}

/* Any bits, with an element in some places that is zero, one or NaN in many types. */
static void fill(uint32_t dtype, size_t n)
{
    const size_t size = tp_dtype_size(dtype);
    const uint64_t kind = below(4);
    for (size_t i = 0; i < n * size; i++) {
        memory[i] = (uint8_t)below(256);
    }
    for (size_t i = 0; i < n; i++) {
        if (kind == 0 || (kind == 1 && below(50) != 0)) {
            memset(memory + i * size, 0, size);
        } else if (kind == 2 && dtype <= TP_BF16) { /* positive, not large, never NaN */
            memory[i * size + size - 1] = 0x3c;
        }
    }
}

#define BINS 37

typedef struct outputs {
    tp_stats stats;
    uint64_t bins[BINS];
    tp_exponents exponents;
    uint64_t hash;
} outputs;

/* Everything that can be asked for. */
static tp_stats_options all_of(outputs *out)
{
    tp_stats_options options;
    tp_stats_options_defaults(&options);
    memset(out, 0xee, sizeof(*out));
    options.eps = 1e-3;
    options.bins = out->bins;
    options.bin_count = BINS;
    options.low = -3.0;
    options.high = 40.0;
    options.exponents = &out->exponents;
    options.hash = &out->hash;
    return options;
}

static void in_pieces(void **unused)
{
    (void)unused;
    static const uint64_t sizes[] = {1, 17, 300, 5000, 9000, 40000};
    const char *seed = getenv("TP_TEST_SEED");
    state = seed != NULL ? strtoull(seed, NULL, 0) : 20261130;
    printf("TP_TEST_SEED=%llu\n", (unsigned long long)state);
    for (uint32_t dtype = TP_F64; dtype <= TP_C128; dtype++) {
        for (int round = 0; round < 12; round++) {
            const size_t n = round == 0 ? 0 : round == 1 ? 8192 : below(MOST);
            fill(dtype, n);
            const int64_t shape[] = {(int64_t)n};
            const tp_tensor whole = {memory, shape, NULL, dtype, 1};
            static outputs right;
            static outputs found;
            const tp_stats_options at_once = all_of(&right);
            const tp_stats_options piecewise = all_of(&found);
            assert_int_equal(tp_stats_compute_with(&whole, &at_once, &right.stats), TP_OK);
            tp_stats_stream *stream;
            assert_int_equal(tp_stats_stream_open_with(&stream, dtype, &piecewise), TP_OK);
            const uint64_t most = sizes[below(sizeof(sizes) / sizeof(sizes[0]))];
            for (size_t at = 0; at < n;) {
                const uint64_t part = most == 1 ? n - at : below(most < n - at ? most : n - at) + 1;
                const int64_t cut[] = {(int64_t)part};
                const tp_tensor piece = {memory + at * tp_dtype_size(dtype), cut, NULL, dtype, 1};
                assert_int_equal(tp_stats_stream_add(stream, &piece), TP_OK);
                at += part;
                if (below(20) == 0) { /* a look in between changes nothing */
                    tp_stats_stream_result(stream, &found.stats);
                    assert_int_equal(found.stats.count, at * (dtype == TP_F4_E2M1FN_X2 ? 2 : 1));
                }
            }
            tp_stats_stream_result(stream, &found.stats);
            tp_stats_stream_close(stream);
            assert_memory_equal(&found, &right, sizeof(right));
        }
    }
}

static void pieces_of_any_strides(void **unused)
{
    (void)unused;
    float rows[24];
    float flat[6 * 4 + 4 * 3 + 10];
    size_t n = 0;
    for (int i = 0; i < 24; i++) {
        rows[i] = (float)(i * i % 11) - 7.5F;
    }
    memcpy(flat, rows, sizeof(rows)); /* a transposed tensor is read in memory order */
    n = 24;
    for (int i = 0; i < 3; i++) { /* overlapping: in row-major order */
        for (int k = 0; k < 4; k++) {
            flat[n++] = rows[2 * i + k];
        }
    }
    for (int i = 0; i < 10; i++) { /* expanded */
        flat[n++] = rows[i % 2];
    }
    static outputs right_all;
    static outputs found_all;
    const tp_stats_options at_once = all_of(&right_all);
    const tp_stats_options piecewise = all_of(&found_all);
    const int64_t shapes[3][2] = {{4, 6}, {3, 4}, {5, 2}};
    const int64_t strides[3][2] = {{1, 4}, {2, 1}, {0, 1}};
    tp_stats_stream *stream;
    tp_stats_stream *stream_all;
    assert_int_equal(tp_stats_stream_open(&stream, TP_F32, 0.0), TP_OK);
    assert_int_equal(tp_stats_stream_open_with(&stream_all, TP_F32, &piecewise), TP_OK);
    for (int i = 0; i < 3; i++) {
        const tp_tensor piece = {rows, shapes[i], strides[i], TP_F32, 2};
        assert_int_equal(tp_stats_stream_add(stream, &piece), TP_OK);
        assert_int_equal(tp_stats_stream_add(stream_all, &piece), TP_OK);
    }
    const int64_t shape[] = {(int64_t)n};
    const tp_tensor whole = {flat, shape, NULL, TP_F32, 1};
    tp_stats right;
    tp_stats found;
    assert_int_equal(tp_stats_compute(&whole, 0.0, &right), TP_OK);
    tp_stats_stream_result(stream, &found);
    assert_memory_equal(&found, &right, sizeof(right));
    assert_int_equal(tp_stats_compute_with(&whole, &at_once, &right_all.stats), TP_OK);
    tp_stats_stream_result(stream_all, &found_all.stats);
    tp_stats_stream_close(stream_all);
    assert_memory_equal(&found_all, &right_all, sizeof(right_all));
    tp_tensor wrong = whole;
    wrong.dtype = TP_F64;
    assert_int_equal(tp_stats_stream_add(stream, &wrong), TP_ERR_ARGUMENT);
    wrong = (tp_tensor){NULL, shape, NULL, TP_F32, 1};
    assert_int_equal(tp_stats_stream_add(stream, &wrong), TP_ERR_ARGUMENT);
    tp_stats_stream_result(stream, &found);
    assert_memory_equal(&found, &right, sizeof(right));
    tp_stats_stream_close(stream);
    tp_stats_stream_close(NULL);
    assert_int_equal(tp_stats_stream_open(&stream, 99, 0.0), TP_ERR_UNSUPPORTED);
    assert_null(stream);
    assert_int_equal(tp_stats_stream_open(&stream, TP_F32, -1.0), TP_ERR_ARGUMENT);
    const tp_stats_options backwards = {.bins = right_all.bins, .bin_count = BINS, .low = 1.0};
    assert_int_equal(tp_stats_stream_open_with(&stream, TP_F32, &backwards), TP_ERR_ARGUMENT);
    assert_int_equal(tp_stats_stream_open_with(&stream, TP_F32, NULL), TP_ERR_ARGUMENT);
    for (unsigned long request = 1; request <= 2; request++) {
        tp_mem_fail_after(request);
        assert_int_equal(tp_stats_stream_open_with(&stream, TP_F32, &at_once), TP_ERR_NOMEM);
        assert_null(stream);
    }
    tp_mem_fail_after(0);
}

static tp_stats stats_of(const double *x, int64_t n)
{
    const int64_t shape[] = {n};
    const tp_tensor tensor = {x, shape, NULL, TP_F64, 1};
    tp_stats stats;
    assert_int_equal(tp_stats_compute(&tensor, 0.5, &stats), TP_OK);
    return stats;
}

static void near(double found, double right)
{
    if (!(fabs(found - right) <= 1e-14 * fabs(right))) {
        fail_msg("%.17g is not %.17g", found, right);
    }
}

static void merged(void **unused)
{
    (void)unused;
    /* Values calculated by hand. */
    const double x[] = {1.0, 2.0, 3.0, -101.0, 0.25, 99.0};
    tp_stats all = stats_of(x, 0);
    for (int i = 0; i < 6; i += 2) { /* means 1.5, -49, 49.625 */
        const tp_stats part = stats_of(x + i, 2);
        tp_stats_merge(&all, &part);
    }
    assert_int_equal(all.count, 6);
    assert_int_equal(all.zeros, 1);
    assert_true(all.min == -101.0 && all.max == 99.0 && all.finite_min == -101.0);
    assert_true(all.abs_max == 101.0);
    assert_int_equal(all.abs_max_index, 3);
    near(all.sum, 4.25);
    near(all.sum_abs, 206.25);
    near(all.sum_sq, 20016.0625);
    near(all.m2, 20016.0625 - 4.25 * 4.25 / 6.0);
    near(tp_stats_norm(&all), sqrt(20016.0625));

    /* What is not finite shows in the shown extremes only; an empty part changes nothing. */
    const double odd[] = {NAN, INFINITY, -3.0};
    const tp_stats before = all;
    const tp_stats nothing = stats_of(odd, 0);
    tp_stats_merge(&all, &nothing);
    assert_memory_equal(&all, &before, sizeof(all));
    const tp_stats last = stats_of(odd + 1, 2);
    tp_stats_merge(&all, &last);
    assert_true(all.max == INFINITY && all.finite_max == 99.0 && all.abs_max == INFINITY);
    assert_int_equal(all.abs_max_index, 6);
    near(all.sum, 1.25);
    const tp_stats first = stats_of(odd, 1);
    tp_stats_merge(&all, &first);
    assert_true(isnan(all.min) && isnan(all.max) && all.finite_min == -101.0);
    assert_int_equal(all.nan, 1);
    assert_int_equal(all.abs_max_index, 6);
    tp_stats reversed = first;
    tp_stats_merge(&reversed, &last);
    assert_true(isnan(reversed.min) && reversed.finite_min == -3.0);
    assert_int_equal(reversed.abs_max_index, 1);
}

static void merged_far_apart(void **unused)
{
    (void)unused;
    const double huge[] = {3e200, -4e200};
    const double tiny[] = {3e-200, 4e-200};
    const double one[] = {1.0};
    tp_stats all = stats_of(tiny, 2);
    tp_stats part = stats_of(tiny, 2);
    tp_stats_merge(&all, &part);
    near(tp_stats_norm(&all), sqrt(50.0) * 1e-200);
    near(tp_stats_std(&all), 0.5e-200);
    part = stats_of(one, 1);
    tp_stats_merge(&all, &part);
    near(tp_stats_norm(&all), 1.0);
    part = stats_of(huge, 2);
    tp_stats_merge(&all, &part);
    near(tp_stats_norm(&all), 5e200);
    near(all.sum, -1e200);
    near(all.sum_abs, 7e200);
    const double offset[] = {1e8 - 1.0, 1e8 + 1.0}; /* the deviations survive the mean */
    tp_stats two = stats_of(offset, 2);
    part = stats_of(offset, 2);
    tp_stats_merge(&two, &part);
    near(tp_stats_std(&two), 1.0);
    const double same[] = {0.1, 0.1, 0.1};
    tp_stats constant = stats_of(same, 3);
    part = stats_of(same, 2);
    tp_stats_merge(&constant, &part);
    assert_true(constant.m2 == 0.0);
}

static void weighed(void **unused)
{
    (void)unused;
    const double x[] = {1.0, NAN, -4.0, 0.0, INFINITY};
    tp_stats one = stats_of(x, 5);
    tp_stats three = stats_of(x, 0);
    for (int i = 0; i < 3; i++) {
        tp_stats_merge(&three, &one);
    }
    assert_int_equal(tp_stats_weigh(&three, 3), TP_OK);
    near(three.m2, one.m2);
    three.m2 = one.m2;
    assert_memory_equal(&three, &one, sizeof(one)); /* the sums are small integers */

    /* Replicas that are no longer equal: a NaN in one of them shows; the index is that within it. */
    const double replica[] = {1.0, 2.0, -4.0, 0.0, 7.0};
    tp_stats both = stats_of(replica, 5);
    tp_stats_merge(&both, &one);
    const tp_stats before = both;
    assert_int_equal(tp_stats_weigh(&both, 3), TP_ERR_ARGUMENT);
    assert_int_equal(tp_stats_weigh(&both, 0), TP_ERR_ARGUMENT);
    assert_int_equal(tp_stats_weigh(NULL, 1), TP_ERR_ARGUMENT);
    assert_memory_equal(&both, &before, sizeof(both));
    assert_int_equal(tp_stats_weigh(&both, 2), TP_OK);
    assert_int_equal(both.count, 5);
    assert_int_equal(both.nan, 1);
    assert_int_equal(both.pos_inf, 1);
    assert_int_equal(both.zeros, 1);
    assert_int_equal(both.abs_max_index, 4);
    near(both.sum, 1.5);
    near(both.sum_sq, 43.5);
    tp_stats nothing = stats_of(x, 0);
    assert_int_equal(tp_stats_weigh(&nothing, 4), TP_OK);
    assert_int_equal(nothing.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_pieces), cmocka_unit_test(pieces_of_any_strides),
        cmocka_unit_test(merged),    cmocka_unit_test(merged_far_apart),
        cmocka_unit_test(weighed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
