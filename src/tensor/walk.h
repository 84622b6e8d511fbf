/* Reading a tensor of any strides as one sequence of elements: the traversal.
 *
 * Expanded dimensions (stride 0) are read once; `weight` says how often each element counts. When
 * the other dimensions nest (no two index tuples share an address, no stride is negative) they are
 * taken in memory order, so that a transposed or permuted dense tensor is one contiguous run; else
 * in row-major order of their indices. */
#ifndef TP_TENSOR_WALK_H
#define TP_TENSOR_WALK_H

#include <stddef.h>
#include <stdint.h>

#include "tensorprobe/tensor.h"

/* One loop of the traversal, from the outermost to the innermost. */
typedef struct tp_walk_loop {
    uint64_t size;
    int64_t stride; /* elements */
    uint64_t at;    /* index within the loop */
} tp_walk_loop;

typedef struct tp_walk {
    const uint8_t *data;
    uint32_t element;  /* bytes of one element */
    uint32_t loops;    /* at least 1; neighbours that continue each other are one loop */
    uint64_t count;    /* elements of the traversal */
    uint64_t weight;   /* count * weight is the number of elements of the tensor */
    uint64_t left;     /* elements of the traversal that tp_walk_next has not yet returned */
    const uint8_t *at; /* next element */
    tp_walk_loop loop[TP_MAX_DIMS];
    uint32_t order_size;
    uint8_t order[TP_MAX_DIMS]; /* dimensions with more than one position, outermost first */
} tp_walk;

/* Starts a traversal of *tensor, which must stay valid. TP_ERR_ARGUMENT: a negative or overflowing
 * shape, or no data. TP_ERR_UNSUPPORTED: dtype or number of dimensions. */
tp_status tp_walk_open(tp_walk *walk, const tp_tensor *tensor);

/* Starts traversals of two tensors of the same shape, so that both give the same elements at a
 * time. Only dimensions that are expanded in both are read once; the order is that of the first.
 * Errors as above; TP_ERR_ARGUMENT when the shapes differ. */
tp_status tp_walk_open_pair(tp_walk *first, const tp_tensor *a, tp_walk *second,
                            const tp_tensor *b);

/* How many elements a tensor has that lie side by side in row-major order; 0 when they don't, when
 * there are more than `most` (below 2^31), none, or when tp_walk_open would refuse the shape or the
 * data. Quick. */
static inline size_t tp_walk_plain(const tp_tensor *tensor, size_t most)
{
    uint64_t count = 1;
    if (tensor->data == NULL || tensor->ndim > TP_MAX_DIMS ||
        (tensor->ndim > 0 && tensor->shape == NULL)) {
        return 0;
    }
    for (uint32_t d = tensor->ndim; d-- > 0;) {
        const uint64_t size = (uint64_t)tensor->shape[d];
        if (size == 1) {
            continue;
        }
        if (size > most || (tensor->strides != NULL && tensor->strides[d] != (int64_t)count)) {
            return 0;
        }
        count *= size;
        if (count > most) {
            return 0;
        }
    }
    return count;
}

/* The next n elements (n <= walk->left), contiguous: in the tensor itself where they are, else
 * copied to buffer, which has room for them. */
const void *tp_walk_next(tp_walk *walk, size_t n, void *buffer);

/* How many of the next elements lie side by side in memory. */
uint64_t tp_walk_run(const tp_walk *walk);

/* Continues at this position (0 <= position < count) of the traversal. */
void tp_walk_seek(tp_walk *walk, uint64_t position);

/* Row-major index in *tensor, the one given to tp_walk_open, of the element at this position;
 * expanded dimensions count as 0. */
uint64_t tp_walk_index(const tp_walk *walk, const tp_tensor *tensor, uint64_t position);

#endif
