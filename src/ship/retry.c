#include "ship/retry.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define SHORTEST_NS UINT64_C(500000000)
#define LONGEST_NS UINT64_C(60000000000)

/* Whether they say the same, whatever numbers they tell: how long something took … */
static bool is_same(const char *a, const char *b)
{
    static const char digits[] = "0123456789";
    for (;;) {
        const size_t number_a = strspn(a, digits);
        const size_t number_b = strspn(b, digits);
        if ((number_a > 0) != (number_b > 0)) {
            return false;
        }
        a += number_a;
        b += number_b;
        if (*a != *b || *a == '\0') {
            return *a == *b;
        }
        a++;
        b++;
    }
}

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
    if (!is_same(retry->last.message, error->message)) {
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
