/* What is collected in the open step: what is configured, or less, where the configuration has a
 * budget. Decided at the ends of steps; hooks follow monitor->config, as they always do. */
#ifndef TP_EXT_COLLECTION_H
#define TP_EXT_COLLECTION_H

#include "monitor/budget.h"
#include "monitor_object.h"

typedef struct collection {
    tp_config lean; /* monitor->config, in a step that leaves something out */
    tp_budget budget;
    tp_selection named; /* what rules name: it is never left out */
    uint64_t begin;     /* of the open step, as monitor_now says */
    uint64_t wait_ns;   /* counter of waiting, as it was then */
    uint32_t left_out;  /* groups, in the open step */
    uint32_t told;      /* lines about it */
} collection;

/* The configuration is another one. False: no memory, an error is set. */
bool collection_take_config(monitor_object *monitor);

/* Whether a rule names a module or parameter. */
bool collection_is_named(const monitor_object *monitor, const char *name);

/* A step has ended, and the next one is open. collected: the one that ended was. own_ns: own time
 * in its hooks, optimizer_ns of it around the optimizer's step. */
void collection_end_step(monitor_object *monitor, bool collected, uint64_t own_ns,
                         uint64_t optimizer_ns);

void collection_free(monitor_object *monitor);

#endif
