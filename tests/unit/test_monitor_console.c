/* What a person sees: the first alert of each rule, and no more of the same than is useful. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "monitor/console.h"

static char path[] = "/tmp/tp-console-XXXXXX";
static int saved;

static void begin_capture(void)
{
    strcpy(path + strlen(path) - 6, "XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    saved = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

/* What was printed since, as text with a terminator. */
static void end_capture(tp_buf *text)
{
    dup2(saved, STDERR_FILENO);
    close(saved);
    assert_int_equal(tp_file_read(path, text, NULL), TP_OK);
    tp_buf_put(text, "", 1);
    unlink(path);
}

static tp_record alert(uint32_t rule, uint32_t key)
{
    tp_record record = {.state = TP_SLOT_DONE, .kind = TP_RECORD_ALERT, .key = key};
    record.u.alert = (tp_alert){.rule = rule, .op = TP_OP_NANS, .value = 3};
    return record;
}

static uint32_t add_key(tp_registry *registry, const char *name)
{
    const tp_key key = {name, NULL, 0, -1, TP_ACTIVATION, TP_ROLE_OUTPUT, NULL};
    uint32_t id;
    assert_int_equal(tp_registry_add_key(registry, &key, &id), TP_OK);
    return id;
}

static int count_lines(const tp_buf *text, const char *part)
{
    int count = 0;
    for (const char *at = (const char *)text->data; (at = strstr(at, part)) != NULL; at++) {
        count++;
    }
    return count;
}

static void test_repeats(void **state)
{
    (void)state;
    tp_registry *registry = NULL;
    tp_console console = {0};
    tp_buf text = TP_BUF_INIT;
    assert_int_equal(tp_registry_new(&registry), TP_OK);
    const uint32_t first = add_key(registry, "fc1");
    const uint32_t second = add_key(registry, "fc2");
    begin_capture();
    for (uint64_t step = 0; step < 120; step++) {
        /* fc1 breaks in step 3 and stays broken, but for step 50; in step 80 fc2 comes first. */
        const tp_record both[] = {alert(TP_RULE_ANOMALY_NAN, step == 80 ? second : first),
                                  alert(TP_RULE_ANOMALY_NAN, second)};
        if (step >= 3 && step != 50) {
            tp_console_alerts(&console, step, both, 2, registry);
        }
    }
    end_capture(&text);
    static const char *const lines[] = {
        "step 3: AnomalyNan: first in fc1.output (actv): 3 values are NaN\n",
        "step 12: AnomalyNan: first in fc1.output (actv): 3 values are NaN; the 10th step in a row",
        "step 51: AnomalyNan: first in fc1.output",
        "step 60: AnomalyNan: first in fc1.output",
        "step 80: AnomalyNan: first in fc2.output",
        "step 81: AnomalyNan: first in fc1.output",
        "step 90: AnomalyNan: first in fc1.output",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        assert_int_equal(count_lines(&text, lines[i]), 1);
    }
    assert_int_equal(count_lines(&text, "\n"), sizeof lines / sizeof lines[0]);
    tp_buf_free(&text);
    tp_registry_free(registry);
}

static void test_rules_apart(void **state)
{
    (void)state;
    tp_registry *registry = NULL;
    tp_console console = {0};
    tp_buf text = TP_BUF_INIT;
    assert_int_equal(tp_registry_new(&registry), TP_OK);
    const uint32_t first = add_key(registry, "fc1");
    const tp_record both[] = {alert(TP_RULE_ANOMALY_TURBULENCE, first),
                              alert(TP_RULE_ANOMALY_NAN, first), alert(TP_RULE_ANOMALY_NAN, first),
                              alert(99, first)};
    begin_capture();
    tp_console_alerts(&console, 0, both, 4, registry);
    tp_console_alerts(&console, 1, both, 1, registry);
    tp_console_alerts(&console, 2, both, 4, registry);
    end_capture(&text);
    assert_int_equal(count_lines(&text, "AnomalyTurbulence"), 1);
    assert_int_equal(count_lines(&text, "AnomalyNan"), 2); /* it was away in step 1 */
    tp_buf_free(&text);
    tp_registry_free(registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_rules_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
