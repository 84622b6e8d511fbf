/* A folder of its own for each test of a monitor, and a monitor in it. */
#ifndef TP_TESTS_MONITOR_FIXTURE_H
#define TP_TESTS_MONITOR_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "tensorprobe/tensorprobe.h"

static char base[] = "/tmp/tp-monitor-XXXXXX";

static inline int make_base(void **state)
{
    (void)state;
    strcpy(base + strlen(base) - 6, "XXXXXX");
    return mkdtemp(base) == NULL;
}

static inline int remove_base(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", base);
    return system(command);
}

static inline tp_monitor *fixture_monitor(const char *config)
{
    tp_monitor_options options;
    tp_error error;
    tp_monitor *monitor = NULL;
    tp_monitor_defaults(&options);
    options.config_text = config;
    options.output_dir = base;
    options.rank = 3;
    assert_int_equal(tp_monitor_open(&monitor, &options, &error), TP_OK);
    return monitor;
}

/* The key of a parameter's reduced gradient. */
static inline uint32_t fixture_key(tp_monitor *monitor, const char *name)
{
    const tp_key key = {name, NULL, 0, -1, TP_GRAD_REDUCED, TP_ROLE_NONE, NULL, NULL};
    uint32_t id = 99;
    assert_int_equal(tp_monitor_key(monitor, &key, &id), TP_OK);
    return id;
}

static inline void fixture_observe(tp_monitor *monitor, uint32_t key, double x)
{
    const int64_t dims[] = {1};
    const tp_tensor tensor = {&x, dims, NULL, TP_F64, 1};
    assert_int_equal(tp_monitor_observe(monitor, key, &tensor, 0), TP_OK);
}

#endif
