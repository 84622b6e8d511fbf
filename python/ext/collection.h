/* What is collected in the open step: what is configured; less, where the configuration has a
 * budget; or more, for a while, where it has a zoom and an incident has begun. Decided at the ends
 * of steps; hooks follow monitor->config, as they always do. */
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

    tp_config wide;       /* monitor->configured, while more is collected */
    uint32_t incident;    /* because of which it is; 0: it isn't */
    uint32_t zooms;       /* so far */
    uint64_t steps_left;  /* of it */
    uint64_t steps_quiet; /* until the next may begin */
    uint64_t records;     /* counter of records, when it began */
    uint64_t spent;       /* bytes of tensors since then */
    bool follows_inputs;  /* as it was before */
} collection;

/* The configuration is another one. False: no memory, an error is set. */
bool collection_take_config(monitor_object *monitor);

/* Whether a rule names a module or parameter. */
bool collection_is_named(const monitor_object *monitor, const char *name);

/* A step has ended, and the next one is open. collected: the one that ended was. own_ns: own time
 * in its hooks, optimizer_ns of it around the optimizer's step. */
void collection_end_step(monitor_object *monitor, bool collected, uint64_t own_ns,
                         uint64_t optimizer_ns);

/* monitor.on_zoom: called with a dict when more is collected from now on (number: of the incident,
 * step: its first, tensors: name, quantity, role, slot and vpp stage of each that it speaks of),
 * with the number of each step that has ended so, and with None when that is over. */
PyObject *collection_get_on_zoom(PyObject *monitor, void *closure);
int collection_set_on_zoom(PyObject *monitor, PyObject *callable, void *closure);

/* monitor.spend(bytes): whether so much may be written of tensors; then it counts. */
PyObject *collection_spend(PyObject *monitor, PyObject *bytes);

void collection_free(monitor_object *monitor);

#endif
