/* When to try again what has failed, and what to say of it: each trouble once. */
#ifndef TP_SHIP_RETRY_H
#define TP_SHIP_RETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct tp_retry {
    uint64_t at;    /* monotonic: not before; 0: at once */
    uint64_t since; /* when the present trouble began; 0: there is none */
    uint64_t pause; /* before the next time */
    tp_error last;  /* what was said last */
} tp_retry;

/* What is tried has failed. A refusal (TP_ERR_STATE) is tried again after a minute. */
void tp_retry_failed(tp_retry *retry, const char *what, const tp_error *error);

/* It has worked. */
void tp_retry_worked(tp_retry *retry, const char *what);

bool tp_retry_is_due(const tp_retry *retry);

/* How long the present trouble has lasted. */
uint64_t tp_retry_lasts(const tp_retry *retry);

#endif
