/* ReplicaDrift: the check over ranks has found that some have other values of a parameter. It
 * records a number for each such parameter, and none as long as they are the same. */
#include <math.h>

#include "rules/rule.h"

static bool judge(const tp_judgement *judgement, void *memory, tp_alert *alert)
{
    (void)memory;
    alert->op = TP_OP_ID;
    alert->value = tp_stats_mean(judgement->stats);
    alert->threshold = (double)NAN;
    return alert->value > 0;
}

const tp_rule tp_rule_replicas = {.rule = TP_RULE_REPLICA_DRIFT,
                                  .quantities = TP_QUANTITY(TP_SCALAR),
                                  .checks = true,
                                  .judge = judge};
