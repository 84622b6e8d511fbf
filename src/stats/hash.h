/* A hash of a tensor's content that doesn't depend on its strides.
 *
 * The bytes of the row-major tensor are taken as little-endian words w0, w1, … of 32 bits (of 16 or
 * 8 where an element has no more). Their polynomial, the sum of wk * r^k mod 2^61 - 1, can be added
 * up in any order, so that the traversal may be that of the memory. Then it is mixed with the
 * number of elements. */
#ifndef TP_STATS_HASH_H
#define TP_STATS_HASH_H

#include "tensor/walk.h"

#define TP_HASH_RUN 64

typedef struct tp_hash_loop {
    uint64_t size;
    uint64_t at;
    uint64_t step;  /* factor from one index to the next */
    uint64_t power; /* r^k of the element at the indices of this loop and those around it */
} tp_hash_loop;

typedef struct tp_hash {
    uint64_t sum;
    uint64_t expanded; /* what expanded dimensions multiply the sum by */
    uint64_t count;
    uint32_t word;  /* bytes */
    uint32_t words; /* in an element */
    uint32_t loops; /* as in the traversal, outermost first */
    tp_hash_loop loop[TP_MAX_DIMS];
    uint64_t table[4][TP_HASH_RUN]; /* [j][k] = r^j * (innermost step)^k */
    uint64_t run;                   /* (innermost step)^TP_HASH_RUN */
} tp_hash;

/* For the traversal that *walk, just opened for *tensor, is about to make. */
void tp_hash_open(tp_hash *hash, const tp_tensor *tensor, const tp_walk *walk);

/* For elements of this size that come one after the other, all contiguous; `count` grows with those
 * that are added. */
void tp_hash_open_sequence(tp_hash *hash, uint32_t element);

/* The next n elements of the traversal, contiguous. */
void tp_hash_add(tp_hash *hash, const void *data, size_t n);

/* Continues at this position of the traversal. The sum stays. */
void tp_hash_seek(tp_hash *hash, uint64_t position);

/* Adds the sum of another part of the same traversal. */
void tp_hash_join(tp_hash *hash, uint64_t sum);

uint64_t tp_hash_value(const tp_hash *hash);

#endif
