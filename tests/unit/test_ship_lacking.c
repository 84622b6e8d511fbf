/* A build without the libraries of servers says which one it lacks: here with the table of such a
 * build in place of this one's. */
#include "check.h"

#include <string.h>

#include "ship/backend.c"

static void test_what_is_said(void **state)
{
    static const char *const cases[][2] = {
        {"postgresql://h/d", "libpq"}, {"mysql://h/d", "libmariadb"}, {"https://h", "libcurl"}};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const tp_backend *backend = NULL;
        tp_url url;
        tp_error error = {0};
        assert_int_equal(tp_url_parse(&url, cases[i][0], &error), TP_OK);
        assert_int_equal(tp_backend_find(&backend, &url, &error), TP_ERR_UNSUPPORTED);
        assert_non_null(strstr(error.message, cases[i][1]));
        assert_null(backend);
        tp_url_free(&url);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_said)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
