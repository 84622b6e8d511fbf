/* What is said of troubles, and when it is tried again. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

#include "ship/retry.h"

static tp_error error_of(tp_status code, const char *message)
{
    tp_error error = {0};
    tp_fail(&error, code, "%s", message);
    return error;
}

static void test_each_trouble_is_said_once(void **state)
{
    static const struct {
        const char *message;
        const char *said_last;
    } cases[] = {
        {"timed out after 10001 ms", "timed out after 10001 ms"},
        {"timed out after 9 ms", "timed out after 10001 ms"}, /* the same */
        {"timed out after ms", "timed out after ms"},
        {"timed out after 1 ms 2", "timed out after 1 ms 2"},
        {"", ""},
        {"7", "7"},
        {"89", "7"},
    };
    tp_retry retry = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const tp_error error = error_of(TP_ERR_IO, cases[i].message);
        tp_retry_failed(&retry, "x", &error);
        assert_string_equal(retry.last.message, cases[i].said_last);
    }
}

static void test_pauses(void **state)
{
    const tp_error gone = error_of(TP_ERR_IO, "gone");
    const tp_error refused = error_of(TP_ERR_STATE, "refused");
    tp_retry retry = {0};
    (void)state;
    assert_true(tp_retry_is_due(&retry));
    assert_int_equal(tp_retry_lasts(&retry), 0);
    for (uint64_t pause = 500; pause < 60000; pause *= 2) {
        tp_retry_failed(&retry, "x", &gone);
        assert_int_equal(retry.pause, pause * 1000000);
        assert_false(tp_retry_is_due(&retry));
    }
    for (int i = 0; i < 3; i++) {
        tp_retry_failed(&retry, "x", &gone);
        assert_int_equal(retry.pause, UINT64_C(60000000000));
    }
    tp_retry_worked(&retry, "x");
    assert_true(tp_retry_is_due(&retry));
    tp_retry_failed(&retry, "x", &refused);
    assert_int_equal(retry.pause, UINT64_C(60000000000));
}

int main(void)
{
    setenv("TENSORPROBE_LOG_LEVEL", "4", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_trouble_is_said_once),
        cmocka_unit_test(test_pauses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
