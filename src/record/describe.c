/* Alerts and incidents in words. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "record/names.h"
#include "tensor/dtype.h"
#include "tensorprobe/record.h"

/* "float16" */
static const char *range_of(const tp_alert *alert)
{
    const char *name = tp_dtype_name((uint32_t)alert->dtype);
    const char *dot = strchr(name, '.');
    return dot != NULL ? dot + 1 : "its dtype";
}

/* The findings that don't read as "op is value". */
static int describe_share(const tp_alert *alert, const char *many, char *text, uint64_t size)
{
    const unsigned long long samples = alert->samples;
    const double value = alert->value;
    switch (alert->rule) {
    case TP_RULE_ALL_ZERO:
    case TP_RULE_DEAD_UNITS:
        return snprintf(text, size, "%.4g %% of its values have been 0 for %llu step%s",
                        100 * value, samples, many);
    case TP_RULE_SATURATED:
        return snprintf(text, size, "has been at its ends to %.4g %% for %llu step%s", 100 * value,
                        samples, many);
    case TP_RULE_UNCHANGED_TENSOR:
        return snprintf(text, size, "has not changed for %llu step%s", samples, many);
    case TP_RULE_WEIGHT_UPDATE_RATIO:
        return snprintf(text, size, "one step has changed its norm by %.4g %%, usual are %.3g %%",
                        100 * value, 100 * alert->baseline);
    case TP_RULE_VARIANCE_BOUNDS:
        return snprintf(text, size,
                        "standard deviation is %.4g, the median of %llu earlier step%s %.4g", value,
                        samples, many, alert->baseline);
    case TP_RULE_GRAD_NORM_SPIKE:
        return snprintf(text, size,
                        "norm of all gradients is %.4g, the median of %llu earlier step%s %.4g; "
                        "this one has grown most",
                        value, samples, many, alert->baseline);
    case TP_RULE_UNDERFLOW_SHARE:
        return snprintf(text, size,
                        "%.4g %% of its values have been below the normal numbers of %s for %llu "
                        "step%s",
                        100 * value, range_of(alert), samples, many);
    case TP_RULE_OVERFLOW_SHARE:
        return snprintf(text, size, "%.4g %% of its values are at the end of what %s can hold",
                        100 * value, range_of(alert));
    case TP_RULE_MOMENTUM_AGAINST_GRADIENT:
        return snprintf(text, size,
                        "%.4g %% of its signs are those of the first moment, for %llu step%s",
                        100 * value, samples, many);
    case TP_RULE_STALLED_STEP:
        return snprintf(text, size, "is the last one, and since then %.0f s have gone", value);
    case TP_RULE_REPLICA_DRIFT:
        return snprintf(text, size, "%.0f rank%s other values of it than the others", value,
                        value == 1 ? " has" : "s have");
    case TP_RULE_COMM_STRAGGLER:
        return snprintf(text, size, "this rank was waited for in %.3g %% of the time", 100 * value);
    default:
        return -1;
    }
}

uint64_t tp_alert_describe(const tp_alert *alert, char *text, uint64_t size)
{
    const char *op = tp_op_name(alert->op);
    const char *many = tp_plural(alert->samples);
    const unsigned long long samples = alert->samples;
    int length = describe_share(alert, many, text, size);
    op = alert->op == TP_OP_ID ? "it" : op != NULL ? op : "?";
    if (length >= 0) {
        return (uint64_t)length;
    }
    if (alert->op == TP_OP_NANS) {
        length = snprintf(text, size, "%.0f value%s NaN", alert->value,
                          alert->value == 1 ? " is" : "s are");
    } else if (!isnan(alert->baseline)) {
        const char *kind = alert->rule == TP_RULE_ANOMALY_TURBULENCE ? "mean" : "median";
        length = snprintf(text, size, "%s is %.4g, the %s of %llu earlier step%s %.4g", op,
                          alert->value, kind, samples, many, alert->baseline);
    } else {
        length = snprintf(text, size, "%s is %.4g", op, alert->value);
    }
    return length > 0 ? (uint64_t)length : 0;
}

/* A text of limited size that is written piece by piece. */
typedef struct line {
    char *text;
    uint64_t size;
    uint64_t length; /* at most size - 1 */
} line;

static void put(line *to, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(line *to, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    const int length = vsnprintf(to->text + to->length, to->size - to->length, format, values);
    va_end(values);
    const uint64_t room = to->size - 1 - to->length;
    if (length > 0) {
        to->length += (uint64_t)length < room ? (uint64_t)length : room;
    }
}

/* What the cause is, and what tells so. of: the name of the witness. */
static void put_cause(line *to, const tp_record *record, const char *of)
{
    const tp_incident *incident = &record->u.incident;
    const double evidence = incident->evidence;
    const char *dtype = tp_dtype_name(record->dtype);
    switch (incident->cause) {
    case TP_CAUSE_BORN:
        put(to, ". It arises there: %s, which goes in, is as it should be", of);
        break;
    case TP_CAUSE_BETWEEN:
        put(to, ". It arises in code that is no module: %s, right before it, is as it should be",
            of);
        break;
    case TP_CAUSE_BAD_BATCH:
        put(to, ". It comes with the batch: look at the data of this step");
        break;
    case TP_CAUSE_WEIGHT:
        put(to, ". It was right after the step before: something has changed it since; look at "
                "code that writes to weights, at loading, and at the memory of this machine");
        break;
    case TP_CAUSE_OVERFLOW:
        put(to,
            ". Overflow: its other values reach %.4g, and %s ends at %.4g; look at the scale "
            "of what goes in (%s)",
            evidence, dtype, tp_dtype_limit(record->dtype), of);
        break;
    case TP_CAUSE_ZERO_BY_ZERO:
        put(to, ". Likely 0 / 0: all values of %s are %.4g; look for a division without an eps", of,
            evidence);
        break;
    case TP_CAUSE_LOG:
        put(to,
            ". Likely a logarithm, root or power of a number that isn't positive: the smallest "
            "value of %s is %.4g",
            of, evidence);
        break;
    case TP_CAUSE_FLIPPED_BIT:
        put(to, ". Likely one flipped bit: a single element is out of proportion, and the others "
                "are not; look at the memory of this machine");
        break;
    case TP_CAUSE_EMPTY:
        put(to,
            ". Computed of nothing: %s has no elements; look for a mean or a norm over an "
            "expert, or a group, that got none",
            of);
        break;
    case TP_CAUSE_MOMENT:
        put(to, ". The optimizer's moments overflowed: gradients of the step before reach %.4g",
            evidence);
        break;
    case TP_CAUSE_LOSS_SCALE:
        put(to, ". The gradient scaler found it and left the step out: it looks for its scale, and "
                "some such steps are right");
        break;
    case TP_CAUSE_BACKWARD:
        put(to, ". It arises in the backward there: %s, which comes in, is as it should be", of);
        break;
    case TP_CAUSE_REDUCTION:
        put(to,
            ". What this rank's backward gave (%s) is as it should be: it comes with the reduction "
            "over ranks, or with what else changes gradients before the optimizer; look at the "
            "other ranks",
            of);
        break;
    case TP_CAUSE_LOSS:
        put(to, ". The backward begins with it: look at the loss, and at what reaches it (%s)", of);
        break;
    case TP_CAUSE_MANY_AT_ONCE:
        put(to, ". Many weights moved in one step: look at the learning rate, and at the gradients "
                "of this step");
        break;
    default:
        break;
    }
}

static uint64_t describe_finding(const tp_incident *incident, char *text, uint64_t size)
{
    const tp_alert alert = {.rule = incident->rule,
                            .op = incident->op,
                            .value = incident->value,
                            .baseline = incident->baseline,
                            .threshold = incident->threshold,
                            .samples = incident->samples};
    return tp_alert_describe(&alert, text, size);
}

static const char *const severity_names[] = {NULL, "notice", "warning", "critical"};

static const char *const cause_names[] = {
    "unknown",      "born",      "between",     "bad_batch",   "weight", "overflow",
    "zero_by_zero", "log",       "flipped_bit", "empty",       "moment", "loss_scale",
    "backward",     "reduction", "loss",        "many_at_once"};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
_Static_assert(LENGTH(cause_names) == TP_CAUSE_COUNT + 1, "every cause has a name");

const char *tp_severity_name(uint32_t severity)
{
    return severity < LENGTH(severity_names) ? severity_names[severity] : NULL;
}

const char *tp_cause_name(uint32_t cause)
{
    return cause < LENGTH(cause_names) ? cause_names[cause] : NULL;
}

static uint64_t finish(const line *to)
{
    const uint64_t kept = tp_text_whole(to->text, to->length);
    to->text[kept] = '\0';
    return kept;
}

uint64_t tp_incident_describe(const tp_record *record, const tp_key *key, const tp_key *witness,
                              char *text, uint64_t size)
{
    const tp_incident *incident = &record->u.incident;
    char name[1200];
    char of[1200] = "what is in front of it";
    char what[TP_ALERT_TEXT];
    line to = {text, size, 0};
    if (size == 0) {
        return 0;
    }
    tp_row_name(key, record->call, name, sizeof name);
    if (witness != NULL) {
        tp_row_name(witness, 0, of, sizeof of);
    }
    describe_finding(incident, what, sizeof what);
    if (incident->rule == TP_RULE_STALLED_STEP) {
        const bool is_call = key->quantity == TP_COMM && key->role == TP_ROLE_NONE;
        const char *of_what = is_call ? key->global_name : tp_quantity_name(key->quantity);
        put(&to,
            "StalledStep: no step has ended for %.0f s; the last %s was %s (%s), micro step "
            "%" PRIu32 ", call %" PRIu32 ", of step %" PRIu64
            ". Look at what this rank waits for: other ranks, a collective, the data",
            incident->value, is_call ? "collective" : "tensor",
            name[0] != '\0' ? name : "the root module's", of_what != NULL ? of_what : "?",
            record->micro_step, record->call, incident->first_step);
        return finish(&to);
    }
    const char *replica = tp_replica_parameter(key->name);
    if (incident->rule == TP_RULE_REPLICA_DRIFT && replica != NULL) {
        put(&to, "ReplicaDrift: %s: %s", replica, what);
        if (incident->series > 1) {
            put(&to, "; %" PRIu64 " more parameter%s", incident->series - 1,
                tp_plural(incident->series - 1));
        }
        put(&to, ". Look at what happens on that rank alone: to its gradients behind the "
                 "reduction, or to its weights");
        return finish(&to);
    }
    const char *rule = tp_rule_name(incident->rule);
    const char *quantity = tp_quantity_name(key->quantity);
    put(&to, "%s: first in %s (%s): %s", rule != NULL ? rule : "?",
        name[0] != '\0' ? name : "the root module", quantity != NULL ? quantity : "?", what);
    if (incident->element != TP_NO_INDEX) {
        put(&to, " (element %" PRIu64, incident->element);
        if (incident->bits != 0) {
            put(&to, " is 0x%" PRIx64, incident->bits);
        }
        put(&to, ")");
    }
    if (incident->alerts > 1) {
        put(&to, "; %" PRIu64 " more alert%s, %" PRIu64 " series in all", incident->alerts - 1,
            tp_plural(incident->alerts - 1), incident->series);
    }
    if (incident->steps > 1) {
        put(&to, ", in %" PRIu64 " steps since step %" PRIu64, incident->steps,
            incident->first_step);
    }
    put_cause(&to, record, of);
    if (incident->zoom_steps > 0) {
        put(&to, ". From step %" PRIu64 " on %" PRIu32 " steps are recorded with everything",
            incident->first_step + incident->zoom_after, incident->zoom_steps);
    }
    if (incident->parent != 0) {
        put(&to, ". Maybe a consequence of incident %" PRIu32, incident->parent);
    }
    return finish(&to);
}
