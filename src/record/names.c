#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tensorprobe/record.h"

static const char *const op_names[] = {NULL,    "norm", "min", "max",   "mean",
                                       "zeros", "nans", "id",  "shape", "dtype"};

static const char *const quantity_names[] = {
    NULL,           "actv",          "actv_grad",   "grad_unreduced", "grad_reduced",
    "param_origin", "param_updated", "exp_avg",     "exp_avg_sq",     "scalar",
    "adam_update",  "adam_ratio",    "mg_direction"};

static const char *const role_names[] = {"", "input", "output"};

static const char *const rule_names[] = {NULL,        "AnomalyNan",     "AnomalyTurbulence",
                                         "Exploding", "Vanishing",      "LossSpike",
                                         "AllZero",   "UnchangedTensor"};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

_Static_assert(LENGTH(op_names) == TP_OP_COUNT + 1, "every op has a name");
_Static_assert(LENGTH(rule_names) == TP_RULE_COUNT + 1, "every rule has a name");
_Static_assert(sizeof(tp_stats) == 136, "tp_stats is stored in journals");
_Static_assert(sizeof(tp_alert) == 136, "tp_alert is stored in journals");
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

const char *tp_role_name(uint32_t role)
{
    return role < LENGTH(role_names) ? role_names[role] : NULL;
}

const char *tp_rule_name(uint32_t rule)
{
    return rule < LENGTH(rule_names) ? rule_names[rule] : NULL;
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

/* The length without a character of UTF-8 that was cut apart at the end: readers of event files
 * refuse such text. */
static uint64_t whole_characters(const char *text, uint64_t length)
{
    uint64_t lead = length;
    while (lead > 0 && ((uint8_t)text[lead - 1] & 0xc0) == 0x80) {
        lead--;
    }
    if (lead == 0) {
        return length;
    }
    lead--;
    uint8_t first = (uint8_t)text[lead];
    uint64_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
    return lead + size > length ? lead : length;
}

uint64_t tp_row_name(const tp_key *key, uint32_t call, char *text, uint64_t size)
{
    const char *side = key->role == TP_ROLE_INPUT    ? ".input"
                       : key->role == TP_ROLE_OUTPUT ? ".output"
                                                     : "";
    char slot[16] = "";
    char repeat[16] = "";
    if (size == 0) {
        return 0;
    }
    if (key->slot >= 0) {
        snprintf(slot, sizeof slot, "_%d", key->slot);
    }
    if (call > 0) {
        snprintf(repeat, sizeof repeat, "#%u", call);
    }
    int length = snprintf(text, size, "%s%s%s%s", key->name, side, slot, repeat);
    if (length < 0) {
        text[0] = '\0';
        return 0;
    }
    if ((uint64_t)length < size) {
        return (uint64_t)length;
    }
    uint64_t kept = whole_characters(text, size - 1);
    text[kept] = '\0';
    return kept;
}

uint64_t tp_alert_describe(const tp_alert *alert, char *text, uint64_t size)
{
    const char *op = tp_op_name(alert->op);
    const char *many = alert->samples == 1 ? "" : "s";
    const unsigned long long samples = alert->samples;
    int length;
    op = alert->op == TP_OP_ID ? "it" : op != NULL ? op : "?";
    if (alert->rule == TP_RULE_ALL_ZERO) {
        length = snprintf(text, size, "%.4g %% of its values have been 0 for %llu step%s",
                          100 * alert->value, samples, many);
    } else if (alert->rule == TP_RULE_UNCHANGED_TENSOR) {
        length = snprintf(text, size, "has not changed for %llu step%s", samples, many);
    } else if (alert->op == TP_OP_NANS) {
        length = snprintf(text, size, "%.0f values are NaN", alert->value);
    } else if (!isnan(alert->baseline)) {
        const char *kind = alert->rule == TP_RULE_ANOMALY_TURBULENCE ? "mean" : "median";
        length = snprintf(text, size, "%s is %.4g, the %s of %llu earlier step%s %.4g", op,
                          alert->value, kind, samples, many, alert->baseline);
    } else {
        length = snprintf(text, size, "%s is %.4g", op, alert->value);
    }
    return length > 0 ? (uint64_t)length : 0;
}
