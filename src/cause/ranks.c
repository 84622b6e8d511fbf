#include "cause/ranks.h"

#include <math.h>
#include <stdlib.h>

bool tp_incident_is_broken(const tp_incident *incident)
{
    return incident->rule == TP_RULE_ANOMALY_NAN &&
           (incident->op == TP_OP_NANS || isinf(incident->value));
}

static int by_moment(const void *a, const void *b)
{
    const tp_part *p = a;
    const tp_part *q = b;
    const int order = tp_moment_compare(&p->moment, &q->moment);
    return order != 0 ? order : p->rank < q->rank ? -1 : p->rank > q->rank;
}

static int by_cause(const void *a, const void *b)
{
    const tp_part *p = a;
    const tp_part *q = b;
    return p->cause != q->cause ? (p->cause < q->cause ? -1 : 1) : by_moment(a, b);
}

/* Whether the rank has a part in this cause, among [first, end). */
static bool has_rank(const tp_part *parts, uint32_t first, uint32_t end, uint32_t cause,
                     uint32_t rank)
{
    for (uint32_t i = first; i < end; i++) {
        if (parts[i].cause == cause && parts[i].rank == rank) {
            return true;
        }
    }
    return false;
}

uint32_t tp_parts_put_together(tp_part *parts, uint32_t count)
{
    uint32_t causes = 0;
    uint32_t near = 0; /* the first one of the step before, or later */
    if (count == 0) {
        return 0;
    }
    qsort(parts, count, sizeof *parts, by_moment);
    for (uint32_t i = 0; i < count; i++) {
        tp_part *one = &parts[i];
        bool found = false;
        while (parts[near].moment.step + 1 < one->moment.step) {
            near++;
        }
        for (uint32_t k = near; k < i && !found; k++) {
            found = parts[k].begins && parts[k].is_broken == one->is_broken &&
                    !has_rank(parts, k, i, parts[k].cause, one->rank);
            one->cause = parts[k].cause;
        }
        one->begins = !found;
        one->cause = found ? one->cause : causes++;
    }
    qsort(parts, count, sizeof *parts, by_cause);
    return causes;
}
