/* How soon an alert is on the console. */
#include "monitor_fixture.h"

#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"

/* What has been said since the file was opened, as a text that the caller frees. */
static char *said(const char *path)
{
    tp_buf text = TP_BUF_INIT;
    assert_int_equal(tp_file_read(path, &text, NULL), TP_OK);
    tp_buf_put(&text, "", 1);
    char *copy = strdup((const char *)text.data);
    tp_buf_free(&text);
    return copy;
}

/* The end of a step waits until the one before is in the journal, and what alarmed in it is told of
 * on the way there: when the next step has ended, the alert can be read. */
static void test_an_alert_is_told_of_by_the_end_of_the_next_step(void **state)
{
    (void)state;
    char path[64];
    tp_monitor *monitor =
        fixture_monitor("{\"format\": \"api\", \"journal\": {\"wait_ms\": 600000}, "
                        "\"alert\": {\"rules\": [{\"rule_name\": "
                        "\"AnomalyNan\"}]}}");
    const uint32_t key = fixture_key(monitor, "fc1.weight");
    snprintf(path, sizeof path, "%s/console", base);
    const int console = open(path, O_CREAT | O_RDWR | O_APPEND, 0600);
    const int before = dup(STDERR_FILENO);
    assert_true(console >= 0 && before >= 0);
    for (int step = 0; step < 40; step++) {
        const bool broken = step % 25 == 10; /* far enough apart for incidents of their own */
        char wanted[64];
        dup2(console, STDERR_FILENO);
        fixture_observe(monitor, key, broken ? (double)NAN : 1);
        const tp_status status = tp_monitor_step(monitor);
        dup2(before, STDERR_FILENO);
        assert_int_equal(status, TP_OK);
        char *text = said(path);
        for (int earlier = 0; earlier < step; earlier++) {
            snprintf(wanted, sizeof wanted, "step %d: AnomalyNan: first in fc1.weight", earlier);
            assert_int_equal(strstr(text, wanted) != NULL, earlier % 25 == 10);
        }
        free(text);
    }
    close(console);
    close(before);
    assert_int_equal(tp_monitor_close(&monitor), TP_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_an_alert_is_told_of_by_the_end_of_the_next_step,
                                        make_base, remove_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
