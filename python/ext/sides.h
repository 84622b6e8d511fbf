/* Which tensors of a module's four sides are recorded: all of them, or those that its target in the
 * configuration names. */
#ifndef TP_EXT_SIDES_H
#define TP_EXT_SIDES_H

#include "config/config.h"
#include "tensor_access.h"

struct module_hook;

enum side {
    SIDE_INPUT,
    SIDE_OUTPUT,
    SIDE_INPUT_GRAD,
    SIDE_OUTPUT_GRAD,
    SIDES,
    SIDE_ALL = SIDES, /* everything that the module returned, whatever the target names */
};

typedef struct side_filter {
    bool by_spec;  /* false: every tensor of every side */
    bool integers; /* without a spec those of integers and bools are wanted, too */
    tp_side_spec specs[SIDES];
    bool warned[SIDES];
} side_filter;

/* target NULL: every tensor, those of integers if the configuration says so. */
side_filter side_filter_of(const tp_config *config, const tp_target *target);

/* Is anything of this side to be recorded? */
static inline bool side_is_wanted(const side_filter *filter, enum side side)
{
    return !filter->by_spec || filter->specs[side].given;
}

/* Makes the list of the tensors to be recorded of one side. values: for inputs the tuple of the
 * positional and the dict of the keyword arguments, for outputs what the module returned. A spec
 * that does not fit these gives an empty list and, once, a warning that shows what is there. The
 * caller frees the list, also after false: memory ran out, and an error is set. */
bool side_collect(struct module_hook *hook, enum side side, PyObject *const *values,
                  tensor_list *list);

/* The Python number that the side's spec selects, a new reference; NULL: there is no spec, or it
 * selects something else. */
PyObject *side_number(const struct module_hook *hook, enum side side, PyObject *const *values);

#endif
