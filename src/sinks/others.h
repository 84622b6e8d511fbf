/* Series that have no tags of their own in TensorBoard, summed up: of each kind and statistic the
 * smallest and the largest value of a step. */
#ifndef TP_SINKS_OTHERS_H
#define TP_SINKS_OTHERS_H

#include "sinks/series.h"

#define TP_OTHERS_KINDS (TP_COMM + 1)

typedef struct tp_others {
    struct {
        double min, max; /* NaN when one of them is */
        uint64_t count;
    } values[TP_OTHERS_KINDS][TP_OP_COUNT + 1];
} tp_others;

/* Forgets the step before. */
void tp_others_clear(tp_others *others);

void tp_others_add(tp_others *others, uint32_t quantity, const tp_record *record,
                   const tp_columns *columns);

/* Appends "others/rank<R>/<kind>_<op>_min" and …_max of each that had a value. */
void tp_others_put(const tp_others *others, uint32_t rank, tp_buf *summary);

#endif
