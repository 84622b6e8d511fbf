/* Tensors that have been read in the forward (or backward) that is running, so that a module's
 * output is not read again as the next one's input. An entry counts as long as the very same Python
 * object lives (checked by a weak reference) and has the same version. Not for weights: fused
 * optimizers and `.data` change them without a new version. */
#ifndef TP_EXT_MEMO_H
#define TP_EXT_MEMO_H

#include "core.h"
#include "tensorprobe/stats.h"

typedef struct memo_entry {
    PyObject *tensor;  /* the address only */
    PyObject *weakref; /* owned */
    PyObject *hook;    /* owned: the gradient hook on this tensor, or NULL */
    int64_t version;
    tp_stats stats;
    const void *step; /* in whose arena the rest is; NULL: nothing is there */
    uint64_t begin_ns;
    uint64_t arena;
    uint32_t flags; /* TP_RECORD_… of what is there */
} memo_entry;

typedef struct memo_table {
    memo_entry *entries;
    uint32_t count, capacity;
    uint32_t *index; /* open addressing: 1 + number of an entry, 0 is free */
    uint32_t index_size;
} memo_table;

/* The entry of this tensor as it is now, or NULL. It is valid until the next call on the memo. */
memo_entry *memo_find(memo_table *memo, PyObject *tensor, int64_t version);

/* Remembers. NULL when memory ran out or the object takes no weak references: then it is just read
 * again next time. */
memo_entry *memo_add(memo_table *memo, PyObject *tensor, int64_t version, const tp_stats *stats);

void memo_clear(memo_table *memo);
void memo_free(memo_table *memo);

#endif
