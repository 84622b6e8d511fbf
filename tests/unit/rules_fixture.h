/* What the unit tests of rules share: the registry that their keys come from. */
#ifndef TP_TESTS_RULES_FIXTURE_H
#define TP_TESTS_RULES_FIXTURE_H

#include "check.h"

#include "rules/rules.h"

static tp_registry *registry; /* knows no key but those that a test adds */

static int make_registry(void **state)
{
    (void)state;
    return tp_registry_new(&registry) == TP_OK ? 0 : -1;
}

static int free_registry(void **state)
{
    (void)state;
    tp_registry_free(registry);
    return 0;
}

/* The alerts of the step with this number, which stay until the next one. */
static size_t check_step(tp_rules *rules, uint64_t number, const tp_record *records, uint64_t count,
                         tp_buf *alerts)
{
    const tp_batch batch = {.step = number, .records = records, .count = count};
    tp_buf_clear(alerts);
    assert_int_equal(tp_rules_check(rules, &batch, alerts), TP_OK);
    return alerts->size / sizeof(tp_record);
}

#endif
