#include "ship/retry.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define SHORTEST_NS UINT64_C(500000000)
#define LONGEST_NS UINT64_C(60000000000)

void tp_retry_failed(tp_retry *retry, const char *what, const tp_error *error)
{
    const uint64_t now = tp_clock_monotonic();
    if (retry->since == 0) {
        retry->since = now;
        retry->pause = SHORTEST_NS;
    } else {
        retry->pause = retry->pause * 2 < LONGEST_NS ? retry->pause * 2 : LONGEST_NS;
    }
    if (error->code == TP_ERR_STATE) {
        retry->pause = LONGEST_NS;
    }
    retry->at = now + retry->pause;
    if (strcmp(retry->last.message, error->message) != 0) {
        retry->last = *error;
        tp_log(TP_LOG_WARNING, "%s: %s; tried again until it works, the journal has everything",
               what, error->message);
    }
}

void tp_retry_worked(tp_retry *retry, const char *what)
{
    if (retry->since != 0) {
        tp_log(TP_LOG_INFO, "%s: works again", what);
    }
    *retry = (tp_retry){0};
}

bool tp_retry_is_due(const tp_retry *retry)
{
    return retry->at == 0 || tp_clock_monotonic() >= retry->at;
}

uint64_t tp_retry_lasts(const tp_retry *retry)
{
    return retry->since != 0 ? tp_clock_monotonic() - retry->since : 0;
}
