/* The tensors of an optimizer's parameters, read many at a time and recorded in the order in which
 * they came. */
#ifndef TP_EXT_OPTIMIZER_BATCH_H
#define TP_EXT_OPTIMIZER_BATCH_H

#include "optimizer_hooks.h"

#define BATCH_TENSORS 64

typedef struct batch_item {
    PyObject *tensor; /* owned */
    watched *entry;
    int first; /* series */
    int last;
    int64_t shape[SITE_DIMS]; /* copies: another thread could resize the tensor */
    int64_t strides[SITE_DIMS];
} batch_item;

/* On the stack of the hook that fills it, which is busy from begin to end. */
typedef struct optimizer_batch {
    optimizer_hook *hook;
    uint32_t count;
    uint32_t micro_step; /* of all that is in it */
    uint64_t bytes;
    batch_item items[BATCH_TENSORS];
    tp_tensor tensors[BATCH_TENSORS];
} optimizer_batch;

void optimizer_batch_begin(optimizer_batch *batch, optimizer_hook *hook);

/* Has the tensor recorded under the series first … last of each of the parameter's names, now or
 * when the batch is full or ends. None is nothing. False: an error is set. */
bool optimizer_batch_add(optimizer_batch *batch, watched *entry, PyObject *tensor, int first,
                         int last);

/* Reads and records what has been added; the GIL is released for it when that is much. */
bool optimizer_batch_flush(optimizer_batch *batch);

/* The same, or, when something has failed (ok is false), only lets go of it. */
bool optimizer_batch_end(optimizer_batch *batch, bool ok);

#endif
