/* Which forwards of a module are recorded. Activation checkpointing runs a part of the model twice:
 * each activation is recorded in its first forward, and its gradient where the graph is that the
 * backward goes through. Without "reentrant" that is the first forward's; with it the first forward
 * makes no graph, and the recomputation, inside the backward, does. */
#ifndef TP_EXT_FORWARDS_H
#define TP_EXT_FORWARDS_H

#include "monitor_object.h"

struct module_hook;

enum forward_kind {
    FORWARD_FAILED,    /* an error is set */
    FORWARD_IGNORED,   /* evaluation, no_grad, and a recomputation that owes nothing */
    FORWARD_WHOLE,     /* training: values and gradients */
    FORWARD_VALUES,    /* checkpointed, without a graph: gradients are owed */
    FORWARD_GRADIENTS, /* the recomputation that pays them */
};

/* A call that has been recorded without its gradients. */
typedef struct owed_call {
    int64_t sequence_nr; /* the number that the next node had when the forward began */
    uint32_t micro_step;
    uint32_t call;
} owed_call;

typedef struct owed_calls {
    owed_call *calls;
    uint32_t count, capacity;
    uint64_t step; /* they are worth nothing after its end */
} owed_calls;

/* What the forward is that begins now. Of FORWARD_GRADIENTS *paid is filled: the call that the
 * gradients belong to. task: the backward that is running, -1: none. */
enum forward_kind forward_kind_of(struct module_hook *hook, PyObject *module, owed_call *paid,
                                  int64_t *task);

/* Notes that the call has been recorded without its gradients. False: an error is set. */
bool forward_owes(struct module_hook *hook, uint32_t micro_step, uint32_t call);

#endif
