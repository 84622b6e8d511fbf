/* As much of cmocka as the tests that run.sh compiles for AArch64 use: Debian's cross compiler comes
 * without the library. */
#ifndef TP_TESTS_AARCH64_CMOCKA_H
#define TP_TESTS_AARCH64_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(function)                                                                 \
    {                                                                                              \
#function, function                                                                        \
    }

#define fail_msg(...)                                                                              \
    do {                                                                                           \
        printf("%s:%d: ", __FILE__, __LINE__);                                                     \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        exit(1);                                                                                   \
    } while (0)

#define assert_true(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fail_msg("%s", #condition);                                                            \
        }                                                                                          \
    } while (0)

#define assert_null(pointer) assert_true((pointer) == NULL)
#define assert_non_null(pointer) assert_true((pointer) != NULL)
#define assert_ptr_equal(a, b) assert_true((a) == (b))
#define assert_int_equal(a, b) assert_true((long long)(a) == (long long)(b))
#define assert_string_equal(a, b) assert_true(strcmp((a), (b)) == 0)
#define assert_memory_equal(a, b, size) assert_true(memcmp((a), (b), (size)) == 0)

#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    run_tests((tests), sizeof(tests) / sizeof((tests)[0]))

static int run_tests(const struct CMUnitTest *tests, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        tests[i].run(NULL);
        printf("ok %s\n", tests[i].name);
    }
    return 0;
}

#endif
