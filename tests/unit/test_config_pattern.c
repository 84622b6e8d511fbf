/* Targets that are patterns; the right answers are those of the shell and of the documentation. */
#include "check.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "config/pattern.h"

static char message[256];

static bool matches(const char *target, const char *name, bool beginning)
{
    tp_pattern *pattern = NULL;
    assert_int_equal(tp_pattern_new(&pattern, target, message, sizeof message), TP_OK);
    assert_non_null(pattern);
    const bool yes = tp_pattern_matches(pattern, name, beginning);
    tp_pattern_free(pattern);
    return yes;
}

static void test_kinds(void **state)
{
    (void)state;
    assert_int_equal(tp_pattern_kind_of(""), TP_PATTERN_NONE);
    assert_int_equal(tp_pattern_kind_of("layers.0"), TP_PATTERN_NONE);
    assert_int_equal(tp_pattern_kind_of("1:layers.0"), TP_PATTERN_NONE);
    assert_int_equal(tp_pattern_kind_of("regular"), TP_PATTERN_NONE);
    assert_int_equal(tp_pattern_kind_of("a*"), TP_PATTERN_GLOB);
    assert_int_equal(tp_pattern_kind_of("12:a?"), TP_PATTERN_GLOB);
    assert_int_equal(tp_pattern_kind_of("re:a"), TP_PATTERN_REGEX);
    assert_int_equal(tp_pattern_kind_of("0:re:a"), TP_PATTERN_REGEX);
    tp_pattern *pattern = NULL;
    assert_int_equal(tp_pattern_new(&pattern, "layers.0", message, sizeof message), TP_OK);
    assert_null(pattern);
}

static void test_globs(void **state)
{
    static const struct {
        const char *glob, *name;
        bool whole, beginning;
    } rows[] = {
        {"layers.*", "layers.10", true, true},
        {"layers.*", "layers.10.mlp", false, true},
        {"layers.*", "layers", false, false},
        {"layers.**", "layers.10.mlp", true, true},
        {"**", "", true, true},
        {"*", "a.b", false, true},
        {"a?c", "abc", true, true},
        {"a?c", "a.c", false, false},
        {"a?c",
         "a\xc3\xa9"
         "c",
         true, true},
        {"a[x-z]", "ay", true, true},
        {"a[!x-z]", "ay", false, false},
        {"a[!x-z]", "ab", true, true},
        {"a[!x-z]", "a.", false, false},
        {"a[]]", "a]", true, true},
        {"a[.]b*", "a.bc", true, true},
        {"a[b", "a[b", true, true},
        {"a(+*", "a(+$", true, true},
        {"1:a*", "ab", true, true},
        {"*\\d", "7", false, false},
        {"*\\d", "7\\d", true, true},
        {"w*", "w1.x\nw", false, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(matches(rows[i].glob, rows[i].name, false), rows[i].whole);
        assert_int_equal(matches(rows[i].glob, rows[i].name, true), rows[i].beginning);
    }
}

static void test_expressions(void **state)
{
    (void)state;
    assert_true(matches("re:mlp", "layers.0.mlp.up", false));
    assert_true(matches("re:mlp", "layers.0.mlp.up", true));
    assert_false(matches("re:^mlp", "layers.0.mlp.up", false));
    assert_true(matches("2:re:^layers\\.\\d+$", "layers.11", false));
    tp_pattern *pattern = NULL;
    assert_int_equal(tp_pattern_new(&pattern, "re:a(b", message, sizeof message), TP_ERR_CONFIG);
    assert_null(pattern);
    assert_string_equal(message,
                        "is no regular expression: missing closing parenthesis, behind character 3 "
                        "of \"a(b\"");
}

static void test_no_memory(void **state)
{
    static const char *const targets[] = {"re:(a|b)[^x]+", "layers.*.[a-c]"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        tp_status status = TP_ERR_NOMEM;
        unsigned long n = 1;
        for (; status != TP_OK; n++) {
            tp_pattern *pattern = NULL;
            tp_mem_fail_after(n);
            status = tp_pattern_new(&pattern, targets[i], message, sizeof message);
            tp_mem_fail_after(0);
            assert_true(status == TP_OK || status == TP_ERR_NOMEM);
            tp_pattern_free(pattern);
        }
        assert_in_range(n, 6, 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_globs),
        cmocka_unit_test(test_expressions),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
