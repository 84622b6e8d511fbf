/* What a person sees: a line for each incident that begins, and few while it goes on. */
#include "check.h"

#include <math.h>
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

static uint32_t add_key(tp_registry *registry, const char *name)
{
    const tp_key key = {name, NULL, 0, -1, TP_ACTIVATION, TP_ROLE_OUTPUT, NULL, NULL};
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

static tp_record incident(uint32_t state, uint32_t key, uint32_t witness)
{
    tp_record record = {.state = TP_SLOT_DONE, .kind = TP_RECORD_INCIDENT, .key = key};
    record.u.incident = (tp_incident){.number = 2,
                                      .state = state,
                                      .severity = TP_SEVERITY_CRITICAL,
                                      .cause = TP_CAUSE_BORN,
                                      .rule = TP_RULE_ANOMALY_NAN,
                                      .op = TP_OP_NANS,
                                      .value = 3,
                                      .baseline = NAN,
                                      .threshold = NAN,
                                      .first_step = 3,
                                      .last_step = 12,
                                      .steps = state == TP_INCIDENT_BEGINS ? 1 : 10,
                                      .alerts = 20,
                                      .series = 2,
                                      .element = 7,
                                      .bits = 0x7fc00000,
                                      .evidence = NAN,
                                      .witness = witness};
    return record;
}

/* Alerts get no line of their own; each record of an incident gets one. */
static void test_lines(void **state)
{
    (void)state;
    tp_registry *registry = NULL;
    tp_buf text = TP_BUF_INIT;
    assert_int_equal(tp_registry_new(&registry), TP_OK);
    const uint32_t first = add_key(registry, "fc1");
    const uint32_t second = add_key(registry, "fc2");
    tp_record alert = {.state = TP_SLOT_DONE, .kind = TP_RECORD_ALERT, .key = first};
    alert.u.alert = (tp_alert){.rule = TP_RULE_ANOMALY_NAN, .op = TP_OP_NANS, .value = 3};
    const tp_record begins[] = {alert, alert, incident(TP_INCIDENT_BEGINS, second, first)};
    const tp_record grows[] = {alert, incident(TP_INCIDENT_GROWS, second, TP_NO_KEY)};
    const tp_record ends[] = {incident(TP_INCIDENT_ENDS, second, first)};
    const tp_record nameless[] = {incident(TP_INCIDENT_BEGINS, 99, first)};
    begin_capture();
    tp_console_incidents(3, begins, 3, registry, "runs/a");
    tp_console_incidents(12, grows, 2, registry, "runs/a");
    tp_console_incidents(33, ends, 1, registry, "runs/a");
    tp_console_incidents(34, nameless, 1, registry, "runs/a");
    end_capture(&text);
    const char *what = "first in fc2.output (actv): 3 values are NaN (element 7 is 0x7fc00000); "
                       "19 more alerts, 2 series in all";
    const char *why = "It arises there: fc1.output, which goes in, is as it should be "
                      "(incident 2, critical; more: runs/a)\n";
    assert_int_equal(count_lines(&text, what), 2);
    assert_int_equal(count_lines(&text, why), 1);
    assert_int_equal(count_lines(&text, "step 3: AnomalyNan: first in"), 1);
    assert_int_equal(count_lines(&text, "step 12: incident 2 goes on (critical): AnomalyNan: "), 1);
    assert_int_equal(count_lines(&text, "in all, in 10 steps since step 3. It arises"), 1);
    assert_int_equal(count_lines(&text, "step 33: incident 2 is over: 20 alerts in 10 steps"), 1);
    assert_int_equal(count_lines(&text, "\n"), 3);
    tp_buf_free(&text);
    tp_registry_free(registry);
}

static void test_cost(void **state)
{
    (void)state;
    const tp_monitor_counters counters = {.steps = 40,
                                          .records = 80,
                                          .hook_ns = 250000000,
                                          .wait_ns = 10000000,
                                          .writer_cpu_ns = 125000000,
                                          .bytes_journal = 3000,
                                          .bytes_csv = 800,
                                          .bytes_tensorboard = 200};
    tp_buf text = TP_BUF_INIT;
    begin_capture();
    tp_console_cost(&counters, 10000000000);
    end_capture(&text);
    assert_string_equal(text.data,
                        "tensorprobe: 40 steps watched: hooks 2.50 %, waiting 0.10 %, writer "
                        "thread 1.25 % of 10.0 s; 2 records and 0.1 KB a step\n");
    tp_buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
