/* One cause shows on several ranks: their incidents, put together. */
#ifndef TP_CAUSE_RANKS_H
#define TP_CAUSE_RANKS_H

#include <stdbool.h>
#include <stddef.h>

#include "cause/order.h"

/* NaN and infinities, or something else that is out of its range. */
bool tp_incident_is_broken(const tp_incident *incident);

/* An incident of a rank. */
typedef struct tp_part {
    tp_moment moment; /* of its producer */
    uint32_t rank;
    bool is_broken;
    bool begins;    /* is set: it is the first one of its cause */
    uint32_t cause; /* is set: number of its cause, from 0, in the order in which they begin */
    uint32_t which; /* the caller's */
} tp_part;

/* Puts those together that began together and are of one kind: what breaks one rank reaches the
 * others in the same step, by gradients, or in the next, by weights. Sorts parts by their causes,
 * in each by the order of all ranks. Returns how many causes there are. */
uint32_t tp_parts_put_together(tp_part *parts, uint32_t count);

#endif
