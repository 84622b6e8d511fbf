#include "record/names.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

static const char *const op_names[] = {NULL,    "norm", "min", "max",   "mean",
                                       "zeros", "nans", "id",  "shape", "dtype"};

static const char *const quantity_names[] = {
    NULL,           "actv",         "actv_grad",     "grad_unreduced",
    "grad_reduced", "param_origin", "param_updated", "exp_avg",
    "exp_avg_sq",   "scalar",       "adam_update",   "adam_ratio",
    "mg_direction", "comm"};

static const char *const role_names[] = {"", "input", "output", "pre", "post"};

const char *const tp_rule_names[] = {NULL,
                                     "AnomalyNan",
                                     "AnomalyTurbulence",
                                     "Exploding",
                                     "Vanishing",
                                     "LossSpike",
                                     "AllZero",
                                     "UnchangedTensor",
                                     "DeadUnits",
                                     "Saturated",
                                     "WeightUpdateRatio",
                                     "VarianceBounds",
                                     "GradNormSpike",
                                     "UnderflowShare",
                                     "OverflowShare",
                                     "MomentumAgainstGradient",
                                     "StalledStep",
                                     "ReplicaDrift",
                                     "CommStraggler",
                                     NULL};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

_Static_assert(LENGTH(op_names) == TP_OP_COUNT + 1, "every op has a name");
_Static_assert(LENGTH(tp_rule_names) == TP_RULE_COUNT + 2, "every rule has a name");
_Static_assert(sizeof(tp_stats) == 136, "tp_stats is stored in journals");
_Static_assert(sizeof(tp_collective) == 136, "tp_collective is stored in journals");
_Static_assert(sizeof(tp_alert) == 136, "tp_alert is stored in journals");
_Static_assert(sizeof(tp_incident) == 136, "tp_incident is stored in journals");
_Static_assert(sizeof(tp_record) == 192, "a record is three cache lines");

const char *tp_op_name(uint32_t op)
{
    return op < LENGTH(op_names) ? op_names[op] : NULL;
}

uint32_t tp_op_from_name(const char *name)
{
    for (uint32_t op = 1; op < LENGTH(op_names); op++) {
        if (strcmp(op_names[op], name) == 0) {
            return op;
        }
    }
    return 0;
}

const char *tp_quantity_name(uint32_t quantity)
{
    return quantity < LENGTH(quantity_names) ? quantity_names[quantity] : NULL;
}

uint64_t tp_quantities_describe(uint32_t bits, char *text, uint64_t size)
{
    uint64_t used = 0;
    text[0] = '\0';
    for (uint32_t quantity = 1; quantity < LENGTH(quantity_names); quantity++) {
        if ((bits >> quantity & 1) != 0 && used < size) {
            used += (uint64_t)snprintf(text + used, size - used, "%s%s", used > 0 ? " " : "",
                                       quantity_names[quantity]);
        }
    }
    return used < size ? used : size - 1;
}

const char *tp_role_name(uint32_t role)
{
    return role < LENGTH(role_names) ? role_names[role] : NULL;
}

const char *tp_rule_name(uint32_t rule)
{
    return rule <= TP_RULE_COUNT ? tp_rule_names[rule] : NULL;
}

bool tp_is_replica_check(const char *scalar)
{
    return strncmp(scalar, "replica_check.", strlen("replica_check.")) == 0;
}

const char *tp_replica_parameter(const char *scalar)
{
    static const char prefix[] = "replica_check.differs.";
    return strncmp(scalar, prefix, strlen(prefix)) == 0 ? scalar + strlen(prefix) : NULL;
}

double tp_stats_op(const tp_stats *stats, uint32_t op)
{
    switch (op) {
    case TP_OP_NORM:
        return tp_stats_norm(stats);
    case TP_OP_MIN:
        return stats->min;
    case TP_OP_MAX:
        return stats->max;
    case TP_OP_MEAN:
        return tp_stats_mean(stats);
    case TP_OP_ZEROS:
        return stats->count > 0 ? (double)stats->zeros / (double)stats->count : (double)NAN;
    case TP_OP_NANS:
        return (double)stats->nan;
    case TP_OP_ID: /* of one element, the smallest is the element itself */
        return stats->count == 1 ? stats->min : (double)NAN;
    default:
        return (double)NAN;
    }
}

uint64_t tp_row_name(const tp_key *key, uint32_t call, char *text, uint64_t size)
{
    const char *role = tp_role_name(key->role);
    const char *argument = key->argument != NULL ? key->argument : "";
    const char *before = key->argument != NULL ? "_" : "";
    char slot[16] = "";
    char repeat[16] = "";
    if (size == 0) {
        return 0;
    }
    if (key->slot >= 0) {
        snprintf(slot, sizeof slot, "%c%d", key->argument != NULL ? '.' : '_', key->slot);
    }
    if (call > 0) {
        snprintf(repeat, sizeof repeat, "#%u", call);
    }
    int length = snprintf(text, size, "%s%s%s%s%s%s%s", key->name,
                          role != NULL && role[0] != '\0' ? "." : "", role != NULL ? role : "",
                          before, argument, slot, repeat);
    if (length < 0) {
        text[0] = '\0';
        return 0;
    }
    if ((uint64_t)length < size) {
        return (uint64_t)length;
    }
    uint64_t kept = tp_text_whole(text, size - 1);
    text[kept] = '\0';
    return kept;
}
