/* Memory of one step for what records have beside their own bytes: histograms and the like. It is
 * kept from one step to the next, so that nothing is allocated in the steady state. docs/journal.md
 * says how they lie in it: a record's blocks one behind the other. */
#ifndef TP_RECORD_ARENA_H
#define TP_RECORD_ARENA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/mapping.h"
#include "tensorprobe/record.h"

#define TP_ARENA_CHUNK 65536u
#define TP_ARENA_CHUNKS 1024u

typedef struct tp_arena {
    atomic_ullong used;
    _Atomic(uint8_t *) chunks[TP_ARENA_CHUNKS];
    pthread_mutex_t lock;
    uint8_t *joined; /* the view's bytes, when they had to be copied */
    tp_mapping *memory;
} tp_arena;

/* Of zeroed memory. Chunks come from memory (NULL: the heap). TP_ERR_NOMEM. */
tp_status tp_arena_open(tp_arena *arena, tp_mapping *memory);
void tp_arena_close(tp_arena *arena);

/* Empties it and keeps its memory. Not while somebody puts something in. */
void tp_arena_clear(tp_arena *arena);

/* Copies the histogram of these options (bins, bin_count, low, high) and tells where it is. Any
 * thread. TP_ERR_NOMEM: no memory, or all of it is used, or it is larger than a chunk. */
tp_status tp_arena_put_histogram(tp_arena *arena, const tp_stats_options *options, uint64_t *place);

/* The same for two numbers, which lie there as the bins of a histogram do. */
tp_status tp_arena_put_pair(tp_arena *arena, uint64_t first, uint64_t second, uint64_t *place);

/* The same for the exponents of a tensor, whatever their signs. has_block: the record has a block
 * at *place already; it is copied, so that the exponents lie behind it. */
tp_status tp_arena_put_exponents(tp_arena *arena, const tp_exponents *exponents, bool has_block,
                                 uint64_t *place);

/* What records may have in it. */
#define TP_ARENA_FLAGS (TP_RECORD_HISTOGRAM | TP_RECORD_ELEMENT | TP_RECORD_EXPONENTS)

/* Sets the arena of a batch, whose records are set; valid until the next view and until it is
 * cleared. partial: somebody may be putting something in; what records in the state DONE refer to
 * is there, the rest is 0. TP_ERR_NOMEM. */
tp_status tp_arena_view(tp_arena *arena, bool partial, tp_batch *batch);

/* Bytes of memory that it holds, for views not counted. */
uint64_t tp_arena_bytes(const tp_arena *arena);

/* That of a dead process: finds its chunks where they are now. */
void tp_arena_revive(tp_arena *arena, const tp_pieces *pieces);

/* Whether all blocks of a record with these flags lie at this place. */
bool tp_arena_holds(const tp_arena *arena, uint64_t place, uint32_t flags);

#endif
