/* Reading configurations from text in tests. */
#ifndef TP_TESTS_CONFIG_FIXTURE_H
#define TP_TESTS_CONFIG_FIXTURE_H

#include <string.h>
#include <unistd.h>

#include "check.h"
#include "config/config.h"

/* The text must be right; the caller frees. */
static inline tp_config read_good(const char *text, bool watch)
{
    tp_config config;
    tp_error error = {0};
    char message[1024];
    tp_config_defaults(&config, watch);
    tp_status status = tp_config_parse(&config, text, strlen(text), "t.json", &error);
    if (status != TP_OK) {
        fail_msg("%s", tp_error_format(&error, message, sizeof message));
    }
    return config;
}

/* The text must be wrong; the whole message. */
static inline const char *read_bad(const char *text)
{
    static char message[1024];
    tp_config config;
    tp_error error = {0};
    tp_config_defaults(&config, false);
    tp_status status = tp_config_parse(&config, text, strlen(text), "t.json", &error);
    assert_int_equal(status, TP_ERR_CONFIG);
    assert_int_equal(error.code, TP_ERR_CONFIG);
    assert_null(config.targets);
    return tp_error_format(&error, message, sizeof message);
}

/* The text must be right; what it writes to standard error. */
static inline const char *read_warnings(const char *text)
{
    static char output[8192];
    int pipe_ends[2];
    assert_int_equal(pipe(pipe_ends), 0);
    int saved = dup(STDERR_FILENO);
    dup2(pipe_ends[1], STDERR_FILENO);
    close(pipe_ends[1]);
    tp_config config = read_good(text, false);
    dup2(saved, STDERR_FILENO);
    close(saved);
    size_t used = 0;
    ssize_t got;
    while ((got = read(pipe_ends[0], output + used, sizeof output - 1 - used)) > 0) {
        used += (size_t)got;
    }
    close(pipe_ends[0]);
    output[used] = '\0';
    tp_config_free(&config);
    return output;
}

#endif
