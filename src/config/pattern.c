#include "config/pattern.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"

/* Of one match; a pattern that needs more than this for a name will not be used on thousands. */
#define MATCH_LIMIT 1000000

struct tp_pattern {
    pcre2_general_context *memory;
    pcre2_match_context *limits;
    pcre2_match_data *found;
    pcre2_code *whole;
    pcre2_code *beginning; /* of a glob; NULL: the same as whole */
};

static void *allocate(size_t size, void *unused)
{
    (void)unused;
    return tp_alloc(size);
}

static void release(void *memory, void *unused)
{
    (void)unused;
    tp_free(memory);
}

/* Behind the chunk that it is limited to. */
static const char *without_chunk(const char *target)
{
    size_t digits = strspn(target, "0123456789");
    return digits > 0 && target[digits] == ':' ? target + digits + 1 : target;
}

tp_pattern_kind tp_pattern_kind_of(const char *target)
{
    const char *text = without_chunk(target);
    return strncmp(text, "re:", 3) == 0   ? TP_PATTERN_REGEX
           : strpbrk(text, "*?[") != NULL ? TP_PATTERN_GLOB
                                          : TP_PATTERN_NONE;
}

/* [abc], [a-z], [!abc] as the same set of a regular expression. Returns what stands behind it, NULL
 * when it has no end: then the [ is only a character. */
static const char *put_set(tp_buf *regex, const char *glob)
{
    const bool excluding = glob[1] == '!' || glob[1] == '^';
    const char *first = glob + 1 + excluding;
    const char *end = *first == '\0' ? NULL : strchr(first + 1, ']'); /* []] has ] as its first */
    if (end == NULL) {
        return NULL;
    }
    tp_buf_printf(regex, excluding ? "[^." : "[");
    for (const char *c = first; c < end; c++) {
        tp_buf_printf(regex, *c == '-' || (unsigned char)*c >= 0x80 ? "%c" : "\\x{%02x}", *c);
    }
    tp_buf_put(regex, "]", 1);
    return end + 1;
}

/* The regular expression that means the same as a glob. */
static void put_glob(tp_buf *regex, const char *glob)
{
    tp_buf_put(regex, "\\A", 2);
    while (*glob != '\0') {
        const char *behind = *glob == '[' ? put_set(regex, glob) : NULL;
        if (behind != NULL) {
            glob = behind;
        } else if (glob[0] == '*' && glob[1] == '*') {
            tp_buf_put(regex, ".*", 2);
            glob += 2;
        } else if (*glob == '*') {
            tp_buf_put(regex, "[^.]*", 5);
            glob++;
        } else if (*glob == '?') {
            tp_buf_put(regex, "[^.]", 4);
            glob++;
        } else if ((unsigned char)*glob >= 0x80) {
            tp_buf_put(regex, glob++, 1);
        } else {
            tp_buf_printf(regex, "\\x{%02x}", *glob++);
        }
    }
}

static tp_status compile(const tp_pattern *pattern, const char *regex, size_t size,
                         pcre2_code **out, char *message, size_t message_size)
{
    int error = 0;
    size_t offset = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(pattern->memory);
    if (context == NULL) {
        return TP_ERR_NOMEM;
    }
    *out = pcre2_compile((PCRE2_SPTR)regex, size, PCRE2_UTF | PCRE2_UCP | PCRE2_DOTALL, &error,
                         &offset, context);
    pcre2_compile_context_free(context);
    if (*out != NULL) {
        return TP_OK;
    }
    if (error == PCRE2_ERROR_NOMEMORY || error == 121) { /* 121: no memory for the code */
        return TP_ERR_NOMEM;
    }
    char why[128] = "";
    pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
    snprintf(message, message_size, "is no regular expression: %s, behind character %zu of \"%s\"",
             why, offset, regex);
    return TP_ERR_CONFIG;
}

static tp_status compile_glob(tp_pattern *pattern, const char *glob, char *message, size_t size)
{
    tp_buf regex = TP_BUF_INIT;
    tp_status status = TP_ERR_NOMEM;
    put_glob(&regex, glob);
    size_t stem = regex.size;
    tp_buf_put(&regex, "\\z", 2);
    if (!regex.failed) {
        status =
            compile(pattern, (const char *)regex.data, regex.size, &pattern->whole, message, size);
    }
    if (status == TP_OK) {
        regex.size = stem;
        tp_buf_put(&regex, "(?:\\.|\\z)", 9);
        status = regex.failed ? TP_ERR_NOMEM
                              : compile(pattern, (const char *)regex.data, regex.size,
                                        &pattern->beginning, message, size);
    }
    tp_buf_free(&regex);
    return status;
}

tp_status tp_pattern_new(tp_pattern **out, const char *target, char *message, size_t size)
{
    const tp_pattern_kind kind = tp_pattern_kind_of(target);
    const char *text = without_chunk(target);
    *out = NULL;
    if (kind == TP_PATTERN_NONE) {
        return TP_OK;
    }
    tp_pattern *pattern = tp_calloc(1, sizeof *pattern);
    if (pattern == NULL) {
        return TP_ERR_NOMEM;
    }
    tp_status status = TP_ERR_NOMEM;
    pattern->memory = pcre2_general_context_create(allocate, release, NULL);
    if (pattern->memory != NULL) {
        pattern->limits = pcre2_match_context_create(pattern->memory);
        pattern->found = pcre2_match_data_create(1, pattern->memory);
    }
    if (pattern->limits != NULL && pattern->found != NULL) {
        pcre2_set_match_limit(pattern->limits, MATCH_LIMIT);
        status = kind == TP_PATTERN_GLOB
                     ? compile_glob(pattern, text, message, size)
                     : compile(pattern, text + 3, strlen(text + 3), &pattern->whole, message, size);
    }
    if (status != TP_OK) {
        tp_pattern_free(pattern);
        return status;
    }
    *out = pattern;
    return TP_OK;
}

void tp_pattern_free(tp_pattern *pattern)
{
    if (pattern == NULL) {
        return;
    }
    pcre2_code_free(pattern->whole);
    pcre2_code_free(pattern->beginning);
    pcre2_match_data_free(pattern->found);
    pcre2_match_context_free(pattern->limits);
    pcre2_general_context_free(pattern->memory);
    tp_free(pattern);
}

bool tp_pattern_matches(const tp_pattern *pattern, const char *name, bool beginning)
{
    const pcre2_code *code =
        beginning && pattern->beginning != NULL ? pattern->beginning : pattern->whole;
    int result =
        pcre2_match(code, (PCRE2_SPTR)name, strlen(name), 0, 0, pattern->found, pattern->limits);
    if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
        char why[128] = "";
        pcre2_get_error_message(result, (PCRE2_UCHAR *)why, sizeof why);
        tp_log(TP_LOG_WARNING, "a target's pattern can't be compared with %s: %s", name, why);
    }
    return result >= 0;
}
