#include "cause/producer.h"

#include <math.h>
#include <string.h>

#include "tensor/dtype.h"

/* Of the largest finite number: values that reach it stand right before an overflow. */
#define NEAR_LIMIT (1.0 / 64)
/* The square of one element among so many at least is nearly all of the sum of squares. */
#define ONE_OF_MANY 16
#define NEARLY_ALL 0.99

bool tp_stats_is_broken(const tp_stats *stats)
{
    return stats->nan > 0 || stats->pos_inf > 0 || stats->neg_inf > 0;
}

/* Of a dtype without a limit of its own: that of its values, which are at most those of f32. */
static double limit_of(uint32_t dtype)
{
    const double limit = tp_dtype_limit(dtype);
    return isnan(limit) ? tp_dtype_limit(TP_F32) : limit;
}

static bool is_statistics(const tp_record *record)
{
    return record->kind == TP_RECORD_STATS && record->state == TP_SLOT_DONE;
}

static const tp_key *key_of(const tp_scene *scene, const tp_record *record)
{
    return tp_registry_key(scene->registry, record->key);
}

/* The last record in front of this place that is the tensor of the same name (of any where name is
 * NULL), quantity and role (TP_ROLE_NONE: any), micro step and, for one name, call. */
static const tp_record *find_before(const tp_scene *scene, const tp_record *here, const char *name,
                                    uint32_t quantity, uint32_t role)
{
    for (const tp_record *at = here; at-- > scene->batch->records;) {
        const tp_key *key = is_statistics(at) ? key_of(scene, at) : NULL;
        if (key != NULL && key->quantity == quantity && at->micro_step == here->micro_step &&
            (role == TP_ROLE_NONE || key->role == role) &&
            (name == NULL || (at->call == here->call && strcmp(key->name, name) == 0))) {
            return at;
        }
    }
    return NULL;
}

/* The record of a parameter of the same name. */
static const tp_record *find_parameter(const tp_scene *scene, const char *name, uint32_t quantity)
{
    const tp_batch *batch = scene->batch;
    for (uint64_t i = 0; i < batch->count; i++) {
        const tp_record *at = &batch->records[i];
        const tp_key *key = is_statistics(at) ? key_of(scene, at) : NULL;
        if (key != NULL && key->quantity == quantity && strcmp(key->name, name) == 0) {
            return at;
        }
    }
    return NULL;
}

static void set(tp_incident *incident, uint32_t cause, const tp_record *witness, double evidence)
{
    incident->cause = cause;
    incident->witness = witness != NULL ? witness->key : TP_NO_KEY;
    incident->evidence = evidence;
}

/* The largest magnitude that is finite. */
static double finite_extreme(const tp_stats *stats)
{
    return fmax(fabs(stats->finite_min), fabs(stats->finite_max));
}

static bool explain_overflow(const tp_record *producer, const tp_record *input,
                             tp_incident *incident)
{
    const tp_stats *stats = &producer->u.stats;
    const double bound = limit_of(producer->dtype) * NEAR_LIMIT;
    if (stats->pos_inf + stats->neg_inf > 0 && finite_extreme(stats) >= bound) {
        set(incident, TP_CAUSE_OVERFLOW, input, finite_extreme(stats));
        return true;
    }
    if (input != NULL && input->dtype == producer->dtype &&
        finite_extreme(&input->u.stats) >= bound) {
        set(incident, TP_CAUSE_OVERFLOW, input, finite_extreme(&input->u.stats));
        return true;
    }
    return false;
}

/* What arithmetic on the input could have made of it. */
static void explain_by_input(const tp_record *producer, const tp_record *input,
                             tp_incident *incident)
{
    const tp_stats *stats = &producer->u.stats;
    if (explain_overflow(producer, input, incident) || input == NULL) {
        return;
    }
    const tp_stats *in = &input->u.stats;
    if (in->count == 0) {
        set(incident, TP_CAUSE_EMPTY, input, (double)NAN);
    } else if (stats->nan > 0 && in->count > 1 && in->finite_min == in->finite_max) {
        set(incident, TP_CAUSE_ZERO_BY_ZERO, input, in->finite_min);
    } else if (in->finite_min <= 0 &&
               ((stats->neg_inf > 0 && stats->pos_inf == 0) ||
                (stats->nan > 0 && stats->nan < stats->count && in->finite_min < 0))) {
        set(incident, TP_CAUSE_LOG, input, in->finite_min);
    }
}

/* One element is wrong, and no sum over many others has made it. */
static bool is_single(const tp_stats *stats, bool broken)
{
    if (stats->count < ONE_OF_MANY) {
        return false;
    }
    if (broken) {
        return stats->nan + stats->pos_inf + stats->neg_inf == 1;
    }
    const double largest = ldexp(stats->abs_max, (int)-stats->sq_exp);
    return largest * largest >= NEARLY_ALL * stats->sum_sq;
}

/* Arithmetic makes NaN of one pattern, with either sign: the first bit of the fraction alone. */
static bool is_odd_nan(uint32_t dtype, uint64_t bits)
{
    switch (dtype) {
    case TP_F64:
        return (bits & UINT64_C(0xfffffffffffff)) != UINT64_C(0x8000000000000);
    case TP_F32:
        return (bits & 0x7fffff) != 0x400000;
    case TP_F16:
        return (bits & 0x3ff) != 0x200;
    case TP_BF16:
        return (bits & 0x7f) != 0x40;
    default:
        return false;
    }
}

static void explain_activation(const tp_scene *scene, const tp_record *producer, const tp_key *key,
                               bool broken, tp_incident *incident)
{
    const tp_record *before = find_before(scene, producer, NULL, TP_ACTIVATION, TP_ROLE_NONE);
    const tp_record *input = key->role == TP_ROLE_OUTPUT ? find_before(scene, producer, key->name,
                                                                       TP_ACTIVATION, TP_ROLE_INPUT)
                                                         : NULL;
    if (before == NULL && key->role == TP_ROLE_INPUT) {
        set(incident, TP_CAUSE_BAD_BATCH, NULL, (double)NAN);
        return;
    }
    set(incident, input != NULL ? TP_CAUSE_BORN : TP_CAUSE_BETWEEN, input != NULL ? input : before,
        (double)NAN);
    if (before == NULL) {
        incident->cause = TP_CAUSE_UNKNOWN;
    }
    if (broken) {
        explain_by_input(producer, input != NULL ? input : before, incident);
    }
}

static void explain_gradient(const tp_scene *scene, const tp_record *producer, const tp_key *key,
                             bool broken, tp_incident *incident)
{
    if ((scene->batch->flags & TP_BATCH_SKIPPED) != 0 && broken) {
        set(incident, TP_CAUSE_LOSS_SCALE, NULL, (double)NAN);
        return;
    }
    if (key->quantity == TP_ACTIVATION_GRAD) {
        const tp_record *first =
            find_before(scene, producer, NULL, TP_ACTIVATION_GRAD, TP_ROLE_NONE);
        const tp_record *from =
            key->role == TP_ROLE_INPUT
                ? find_before(scene, producer, key->name, TP_ACTIVATION_GRAD, TP_ROLE_OUTPUT)
                : NULL;
        if (first == NULL) {
            set(incident, TP_CAUSE_LOSS,
                find_before(scene, producer, NULL, TP_ACTIVATION, TP_ROLE_OUTPUT), (double)NAN);
        } else {
            set(incident, TP_CAUSE_BACKWARD, from != NULL ? from : first, (double)NAN);
        }
        if (broken) {
            explain_overflow(producer, from, incident);
        }
        return;
    }
    const tp_record *own = key->quantity == TP_GRAD_REDUCED
                               ? find_parameter(scene, key->name, TP_GRAD_UNREDUCED)
                               : NULL;
    if (own != NULL && broken && !tp_stats_is_broken(&own->u.stats)) {
        set(incident, TP_CAUSE_REDUCTION, own, (double)NAN);
    } else {
        const tp_record *from =
            find_before(scene, producer, NULL, TP_ACTIVATION_GRAD, TP_ROLE_NONE);
        set(incident, from != NULL ? TP_CAUSE_BACKWARD : TP_CAUSE_UNKNOWN, from, (double)NAN);
        if (broken) {
            explain_overflow(producer, NULL, incident);
        }
    }
}

/* What came out of a collective, where what this rank gave is as it should be. */
static void explain_collective(const tp_scene *scene, const tp_record *producer, const tp_key *key,
                               bool broken, tp_incident *incident)
{
    const tp_record *given = find_before(scene, producer, key->name, TP_COMM, TP_ROLE_PRE);
    if (key->role == TP_ROLE_POST && given != NULL &&
        !(broken && tp_stats_is_broken(&given->u.stats))) {
        set(incident, TP_CAUSE_REDUCTION, given, (double)NAN);
    }
}

static void explain_moment(const tp_scene *scene, const tp_key *key, tp_incident *incident)
{
    const tp_record *gradient = find_parameter(scene, key->name, TP_GRAD_REDUCED);
    const double before = gradient != NULL && gradient->key < scene->key_count
                              ? scene->largest[gradient->key]
                              : (double)NAN;
    if (before * before > limit_of(TP_F32) * NEAR_LIMIT) {
        set(incident, TP_CAUSE_MOMENT, gradient, before);
    } else {
        set(incident, TP_CAUSE_WEIGHT, NULL, (double)NAN);
    }
}

void tp_producer_explain(const tp_scene *scene, const tp_record *producer, bool broken,
                         tp_incident *incident)
{
    const tp_stats *stats = &producer->u.stats;
    const tp_key *key = key_of(scene, producer);
    set(incident, TP_CAUSE_UNKNOWN, NULL, (double)NAN);
    incident->element = TP_NO_INDEX;
    if (key == NULL) {
        return;
    }
    switch (key->quantity) {
    case TP_ACTIVATION:
        explain_activation(scene, producer, key, broken, incident);
        break;
    case TP_ACTIVATION_GRAD:
    case TP_GRAD_UNREDUCED:
    case TP_GRAD_REDUCED:
        explain_gradient(scene, producer, key, broken, incident);
        break;
    case TP_COMM:
        explain_collective(scene, producer, key, broken, incident);
        break;
    case TP_EXP_AVG:
    case TP_EXP_AVG_SQ:
        explain_moment(scene, key, incident);
        break;
    case TP_PARAM_ORIGIN:
        set(incident, TP_CAUSE_WEIGHT, NULL, (double)NAN);
        break;
    case TP_PARAM_UPDATED:
        if (broken) {
            set(incident, TP_CAUSE_BORN, find_parameter(scene, key->name, TP_GRAD_REDUCED),
                (double)NAN);
        }
        break;
    default:
        break;
    }
    const bool single = is_single(stats, broken);
    const bool known =
        tp_batch_element(scene->batch, producer, &incident->element, &incident->bits) == TP_OK;
    if (!known && single && stats->abs_max_index != TP_NO_INDEX && (!broken || stats->nan == 0)) {
        incident->element = stats->abs_max_index;
    }
    if (single && stats->nan > 0 ? known && is_odd_nan(producer->dtype, incident->bits)
                                 : single && key->quantity == TP_PARAM_ORIGIN) {
        incident->cause = TP_CAUSE_FLIPPED_BIT;
    }
}
