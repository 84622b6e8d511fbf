/* Targets that are patterns: globs (layers.*.mlp) and regular expressions (re:…). */
#ifndef TP_CONFIG_PATTERN_H
#define TP_CONFIG_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef struct tp_pattern tp_pattern;

typedef enum tp_pattern_kind {
    TP_PATTERN_NONE,  /* a name */
    TP_PATTERN_GLOB,  /* has * ? or [ */
    TP_PATTERN_REGEX, /* begins with re: */
} tp_pattern_kind;

/* What a target is. "1:", which limits it to a chunk, may stand in front. */
tp_pattern_kind tp_pattern_kind_of(const char *target);

/* *out is NULL for a name. In a glob * is anything but a dot, ** anything, ? one character but a
 * dot, [abc] [a-z] [!abc] one of these. TP_ERR_CONFIG: message says what is wrong with a regular
 * expression, and where in it. TP_ERR_NOMEM. The caller frees *out. */
tp_status tp_pattern_new(tp_pattern **out, const char *target, char *message, size_t size);
void tp_pattern_free(tp_pattern *pattern); /* accepts NULL */

/* Does the name match? A glob stands for the whole name, or (beginning) for its beginning up to a
 * dot; a regular expression may match anywhere in it, unless it has ^ and $. One thread at a time
 * for each pattern. */
bool tp_pattern_matches(const tp_pattern *pattern, const char *name, bool beginning);

#endif
