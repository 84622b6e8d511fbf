/* What a parameter's moments say of the step to come: Adam's update and ratio (ur_distribution),
 * and how far gradient and first moment agree (mg_direction). */
#ifndef TP_EXT_ADAM_HOOKS_H
#define TP_EXT_ADAM_HOOKS_H

#include "optimizer_hooks.h"

/* Before the parameters of a step: takes their groups' betas and eps over. False: an error is set.
 */
bool adam_begin(optimizer_hook *hook, PyObject *optimizer);

/* The same of one row that an adapter has located. */
bool adam_take_group(optimizer_hook *hook, watched *entry);

/* Records the update and the ratio of a parameter whose optimizer keeps exp_avg, exp_avg_sq and the
 * number of steps; nothing where it doesn't, or before its first step. state: its own. False: an
 * error is set. */
bool adam_record_update(optimizer_hook *hook, watched *entry, PyObject *state);

/* Records the direction of a parameter that has an exp_avg and this gradient. False: an error is
 * set. */
bool adam_record_direction(optimizer_hook *hook, watched *entry, PyObject *state,
                           PyObject *gradient);

/* After a step: warns once when the optimizer keeps nothing of what is to be recorded. False: an
 * error is set. */
bool adam_check(optimizer_hook *hook, PyObject *optimizer);

#endif
