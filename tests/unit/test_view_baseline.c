/* Medians and distances of a baseline, against sorting. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "view/baseline.h"

static int by_value(const void *a, const void *b)
{
    const float p = *(const float *)a;
    const float q = *(const float *)b;
    return p < q ? -1 : p > q;
}

/* The lower one of the two in the middle. */
static float middle_of(float *values, uint32_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return values[(count - 1) / 2];
}

static void medians_are_those_of_sorted_values(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 60; seed++) {
        tp_baseline baseline = {0};
        float all[400];
        uint32_t random = seed;
        for (uint32_t i = 0; i < sizeof all / sizeof *all; i++) {
            random = random * 1664525U + 1013904223U;
            /* Few values, so that many are equal; or many. */
            all[i] = seed % 2 == 0 ? (float)(random >> 29) : (float)(random >> 8) - 8e6F;
            tp_baseline_take(&baseline, all[i], NAN);
            const uint32_t count = i + 1 < TP_BASELINE_WINDOW ? i + 1 : TP_BASELINE_WINDOW;
            float window[TP_BASELINE_WINDOW];
            for (uint32_t k = 0; k < count; k++) {
                window[k] = all[i + 1 - count + k];
            }
            const float median = middle_of(window, count);
            assert_true(tp_baseline_median(&baseline) == median);
            for (uint32_t k = 0; k < count; k++) {
                window[k] = fabsf(window[k] - median);
            }
            const float mad = middle_of(window, count);
            assert_true(tp_baseline_mad(&baseline) == mad);
            const float distance = tp_baseline_distance(&baseline, median + 3, 0.5F, 0.0F);
            if (count < TP_BASELINE_NEEDS) {
                assert_true(isnan(distance));
            } else {
                assert_true(distance == (median + 3 - median) / (mad > 0.5F ? mad : 0.5F));
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(medians_are_those_of_sorted_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
