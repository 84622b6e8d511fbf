/* Numbers as text. strtod and printf of the C library are the judges. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "sinks/decimal.h"

static const char *written(double value)
{
    static char text[TP_DECIMAL_MAX + 1];
    size_t length = tp_decimal_write(value, text);
    assert_true(length <= TP_DECIMAL_MAX - 4);
    text[length] = '\0';
    return text;
}

static void test_known_numbers(void **state)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0, "0"},
        {-0.0, "0"},
        {1, "1"},
        {-1, "-1"},
        {0.5, "0.5"},
        {1.0 / 3, "0.33333333333333331"},
        {-2.5, "-2.5"},
        {9007199254740991, "9007199254740991"},
        {9007199254740992, "9007199254740992"},
        {1e17, "1e+17"},
        {1e22, "1e+22"},
        {DBL_MAX, "1.7976931348623157e+308"},
        {-DBL_MAX, "-1.7976931348623157e+308"},
        {DBL_MIN, "2.2250738585072014e-308"},
        {4.9406564584124654e-324, "4.9406564584124654e-324"},
        {0x1p-1022 - 0x1p-1074, "2.2250738585072009e-308"},
        {0.1f, "0.10000000149011612"},
        {1e15 + 0.5, "1000000000000000.5"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(written(cases[i].value), cases[i].text);
    }
    assert_string_equal(written((double)NAN), "nan");
    assert_string_equal(written((double)INFINITY), "inf");
    assert_string_equal(written(-(double)INFINITY), "-inf");
}

static uint64_t seed;

static uint64_t draw(void)
{
    seed += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    uint64_t z = seed;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static void check_reads_back(double value)
{
    const char *text = written(value);
    if (strtod(text, NULL) != value) {
        fail_msg("%a was written as %s", value, text);
    }
}

static void test_every_number_reads_back(void **state)
{
    (void)state;
    for (int i = 0; i < 100000; i++) {
        uint64_t bits = draw();
        double any;
        memcpy(&any, &bits, sizeof any);
        if (isfinite(any)) {
            check_reads_back(any);
        }
        float single = (float)ldexp((double)(bits >> 11), -53 - (int)(bits & 63));
        check_reads_back((double)single);
        check_reads_back((double)(int64_t)(bits & 0xffffffffff) / 1000);
    }
    for (int e = -1074; e <= 1023; e++) {
        double power = ldexp(1, e);
        check_reads_back(power);
        check_reads_back(nextafter(power, 0));
        check_reads_back(nextafter(power, (double)INFINITY));
    }
}

static void test_rounding(void **state)
{
    static const struct {
        double value;
        uint32_t digits;
        const char *text;
    } cases[] = {
        {0.123456789, 6, "0.123457"},
        {-3.2686389, 6, "-3.268639"}, /* 17 digits of that are -3.2686389999999999 */
        {0.125, 2, "0.12"},           /* ties are decided by the exact value */
        {2.5, 20, "2.5"},
        {1e-9, 6, "0"},
        {-1e-9, 6, "0"},
        {-0.0, 6, "0"},
        {100, 1, "100"},
        {-7000.04, 1, "-7000"},
        {0.1, 20, "0.10000000000000000555"},
        {-9007199254740991, 20, "-9007199254740991"},
        {-1e300, 1, "-1.0000000000000001e+300"},
        {(double)NAN, 3, "nan"},
        {-(double)INFINITY, 3, "-inf"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[TP_DECIMAL_MAX + 1];
        size_t length = tp_decimal_write_rounded(cases[i].value, cases[i].digits, text);
        assert_true(length < TP_DECIMAL_MAX);
        text[length] = '\0';
        assert_string_equal(text, cases[i].text);
    }
}

static void test_integers(void **state)
{
    char text[TP_DECIMAL_MAX + 1];
    char expected[TP_DECIMAL_MAX];
    (void)state;
    for (int i = 0; i < 1000; i++) {
        uint64_t value = i == 0 ? 0 : i == 1 ? UINT64_MAX : draw() >> (i % 64);
        text[tp_decimal_write_integer(value, text)] = '\0';
        snprintf(expected, sizeof expected, "%" PRIu64, value);
        assert_string_equal(text, expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_numbers),
        cmocka_unit_test(test_every_number_reads_back),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_integers),
    };
    const char *given = getenv("TENSORPROBE_TEST_SEED");
    seed = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    printf("TENSORPROBE_TEST_SEED=%" PRIu64 "\n", seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
