/* Why a tensor went wrong, as far as the other records of its step tell. */
#ifndef TP_CAUSE_PRODUCER_H
#define TP_CAUSE_PRODUCER_H

#include <stdbool.h>

#include "record/registry.h"

/* What is looked at. */
typedef struct tp_scene {
    const tp_batch *batch;
    const tp_registry *registry;
    const double *largest; /* by key: the largest |x| of the step before; NaN: none was recorded */
    uint32_t key_count;    /* of largest */
} tp_scene;

/* A tensor with a NaN or an infinity. */
bool tp_stats_is_broken(const tp_stats *stats);

/* Sets cause, evidence, witness, element and bits of the incident whose producer is this record of
 * the batch. broken: because it holds a NaN or an infinity, else because it left its range. */
void tp_producer_explain(const tp_scene *scene, const tp_record *producer, bool broken,
                         tp_incident *incident);

#endif
