#include "record/arena.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

/* A histogram: low and high (f64), number of bins (u32), 0 (u32), the bins (u64 each). */
#define HEADER 24u

tp_status tp_arena_open(tp_arena *arena, tp_mapping *memory)
{
    arena->memory = memory;
    return pthread_mutex_init(&arena->lock, NULL) == 0 ? TP_OK : TP_ERR_NOMEM;
}

void tp_arena_close(tp_arena *arena)
{
    for (uint32_t i = 0; i < TP_ARENA_CHUNKS; i++) {
        tp_mapping_free(atomic_load(&arena->chunks[i]));
    }
    tp_free(arena->joined);
    pthread_mutex_destroy(&arena->lock);
}

void tp_arena_clear(tp_arena *arena)
{
    tp_free(arena->joined);
    arena->joined = NULL;
    atomic_store(&arena->used, 0);
}

/* NULL without memory. */
static uint8_t *chunk_of(tp_arena *arena, uint64_t number)
{
    uint8_t *chunk = atomic_load_explicit(&arena->chunks[number], memory_order_acquire);
    if (chunk == NULL) {
        pthread_mutex_lock(&arena->lock);
        chunk = atomic_load(&arena->chunks[number]);
        if (chunk == NULL) {
            chunk = tp_mapping_alloc(arena->memory, TP_ARENA_CHUNK, 0);
            atomic_store_explicit(&arena->chunks[number], chunk, memory_order_release);
        }
        pthread_mutex_unlock(&arena->lock);
    }
    return chunk;
}

/* Room for size bytes, a multiple of 8, that lie in one chunk. */
static uint8_t *take(tp_arena *arena, uint64_t size, uint64_t *place)
{
    unsigned long long used = atomic_load(&arena->used);
    uint64_t start;
    if (size > TP_ARENA_CHUNK) {
        return NULL;
    }
    do {
        const uint64_t left = TP_ARENA_CHUNK - used % TP_ARENA_CHUNK;
        start = left < size ? used + left : used;
        if (start / TP_ARENA_CHUNK >= TP_ARENA_CHUNKS) {
            return NULL;
        }
    } while (!atomic_compare_exchange_weak(&arena->used, &used, start + size));
    uint8_t *chunk = chunk_of(arena, start / TP_ARENA_CHUNK);
    *place = start;
    return chunk == NULL ? NULL : chunk + start % TP_ARENA_CHUNK;
}

static uint64_t block_size(const uint8_t *block)
{
    return HEADER + 8 * (uint64_t)tp_get_u32(block + 16);
}

/* How many blocks a record with these flags has. */
static unsigned blocks_of(uint32_t flags)
{
    return ((flags & TP_RECORD_EXPONENTS) != 0) +
           ((flags & (TP_ARENA_FLAGS & ~TP_RECORD_EXPONENTS)) != 0);
}

tp_status tp_arena_put_histogram(tp_arena *arena, const tp_stats_options *options, uint64_t *place)
{
    const size_t bins = options->bin_count * sizeof(*options->bins);
    uint8_t *at = take(arena, HEADER + bins, place);
    if (at == NULL) {
        return TP_ERR_NOMEM;
    }
    memset(at, 0, HEADER);
    memcpy(at, &options->low, 8);
    memcpy(at + 8, &options->high, 8);
    memcpy(at + 16, &options->bin_count, 4);
    memcpy(at + HEADER, options->bins, bins);
    return TP_OK;
}

tp_status tp_arena_put_pair(tp_arena *arena, uint64_t first, uint64_t second, uint64_t *place)
{
    uint64_t pair[] = {first, second};
    const tp_stats_options options = {.bins = pair, .bin_count = 2};
    return tp_arena_put_histogram(arena, &options, place);
}

tp_status tp_arena_put_exponents(tp_arena *arena, const tp_exponents *exponents, bool has_block,
                                 uint64_t *place)
{
    uint32_t first = 0;
    uint32_t end = TP_EXPONENT_BINS;
    while (first < end && exponents->negative[first] + exponents->positive[first] == 0) {
        first++;
    }
    while (end > first && exponents->negative[end - 1] + exponents->positive[end - 1] == 0) {
        end--;
    }
    const uint8_t *block = NULL;
    uint64_t before = 0;
    if (has_block) {
        block = atomic_load(&arena->chunks[*place / TP_ARENA_CHUNK]) + *place % TP_ARENA_CHUNK;
        before = block_size(block);
    }
    uint64_t start;
    uint8_t *at = take(arena, before + HEADER + 8 * (uint64_t)(end - first), &start);
    if (at == NULL) {
        return TP_ERR_NOMEM;
    }
    if (has_block) {
        memcpy(at, block, before);
        at += before;
    }
    const uint32_t count = end - first;
    const double low = TP_EXPONENT_FIRST + (double)first;
    const double high = low + count;
    memset(at, 0, HEADER);
    memcpy(at, &low, 8);
    memcpy(at + 8, &high, 8);
    memcpy(at + 16, &count, 4);
    for (uint32_t k = 0; k < count; k++) {
        const uint64_t both = exponents->negative[first + k] + exponents->positive[first + k];
        memcpy(at + HEADER + 8 * (size_t)k, &both, 8);
    }
    *place = start;
    return TP_OK;
}

/* What lies at this place of the arena, which may have been cut between two chunks only. */
static void copy(const tp_arena *arena, uint8_t *to, uint64_t place, uint64_t size)
{
    const uint8_t *chunk = atomic_load(&arena->chunks[place / TP_ARENA_CHUNK]);
    if (chunk != NULL) {
        memcpy(to + place, chunk + place % TP_ARENA_CHUNK, size);
    }
}

static void copy_all(const tp_arena *arena, uint8_t *to, uint64_t used)
{
    for (uint64_t place = 0; place < used; place += TP_ARENA_CHUNK) {
        copy(arena, to, place, used - place < TP_ARENA_CHUNK ? used - place : TP_ARENA_CHUNK);
    }
}

static void copy_finished(const tp_arena *arena, uint8_t *to, uint64_t used, const tp_batch *batch)
{
    for (uint64_t i = 0; i < batch->count; i++) {
        const tp_record *record = &batch->records[i];
        if (record->state == TP_SLOT_DONE && (record->flags & TP_ARENA_FLAGS) != 0 &&
            record->arena < used) {
            uint64_t place = record->arena;
            for (unsigned left = blocks_of(record->flags); left > 0; left--) {
                copy(arena, to, place, HEADER);
                const uint64_t bins = block_size(to + place) - HEADER;
                copy(arena, to, place + HEADER, bins);
                place += HEADER + bins;
            }
        }
    }
}

tp_status tp_arena_view(tp_arena *arena, bool partial, tp_batch *batch)
{
    const uint64_t used = atomic_load(&arena->used);
    batch->arena = used == 0 ? NULL : atomic_load(&arena->chunks[0]);
    batch->arena_size = used;
    if (used == 0 || (used <= TP_ARENA_CHUNK && !partial && batch->arena != NULL)) {
        return TP_OK;
    }
    tp_free(arena->joined);
    arena->joined = tp_calloc(1, used);
    if (arena->joined == NULL) {
        return TP_ERR_NOMEM;
    }
    if (partial) {
        copy_finished(arena, arena->joined, used, batch);
    } else {
        copy_all(arena, arena->joined, used);
    }
    batch->arena = arena->joined;
    return TP_OK;
}

uint64_t tp_arena_bytes(const tp_arena *arena)
{
    const uint64_t used = atomic_load(&arena->used);
    return (used + TP_ARENA_CHUNK - 1) / TP_ARENA_CHUNK * TP_ARENA_CHUNK;
}

void tp_arena_revive(tp_arena *arena, const tp_pieces *pieces)
{
    const uint64_t used = atomic_load(&arena->used);
    const uint64_t most = (uint64_t)TP_ARENA_CHUNK * TP_ARENA_CHUNKS;
    arena->joined = NULL;
    atomic_store(&arena->used, used < most ? used : most);
    for (uint32_t i = 0; i < TP_ARENA_CHUNKS; i++) {
        uint8_t *chunk = atomic_load(&arena->chunks[i]);
        if (chunk != NULL) {
            atomic_store(&arena->chunks[i], tp_pieces_find(pieces, chunk, TP_ARENA_CHUNK));
        }
    }
}

/* Whether a whole block lies at this place; *size: its bytes. */
static bool holds_block(const tp_arena *arena, uint64_t place, uint64_t *size)
{
    const uint64_t used = atomic_load(&arena->used);
    const uint64_t start = place % TP_ARENA_CHUNK;
    if (place % 8 != 0 || place >= used || start > TP_ARENA_CHUNK - HEADER) {
        return false;
    }
    const uint8_t *chunk = atomic_load(&arena->chunks[place / TP_ARENA_CHUNK]);
    if (chunk == NULL) {
        return false;
    }
    *size = block_size(chunk + start);
    return *size <= TP_ARENA_CHUNK - start && *size <= used - place;
}

bool tp_arena_holds(const tp_arena *arena, uint64_t place, uint32_t flags)
{
    uint64_t size = 0;
    for (unsigned left = blocks_of(flags); left > 0; left--) {
        if (!holds_block(arena, place, &size)) {
            return false;
        }
        place += size;
    }
    return true;
}

/* The block at this place, as a histogram; *place: where the next one would be. */
static tp_status find_at(const tp_batch *batch, uint64_t *place, tp_histogram *out)
{
    tp_histogram found = {0};
    if (batch->arena == NULL || *place % 8 != 0 || batch->arena_size < HEADER ||
        *place > batch->arena_size - HEADER) {
        return TP_ERR_NOTFOUND;
    }
    const uint8_t *at = batch->arena + *place;
    memcpy(&found.low, at, 8);
    memcpy(&found.high, at + 8, 8);
    memcpy(&found.bin_count, at + 16, 4);
    found.bins = (const uint64_t *)(const void *)(at + HEADER);
    if (found.bin_count > (batch->arena_size - *place - HEADER) / 8) {
        return TP_ERR_NOTFOUND;
    }
    *place += block_size(at);
    *out = found;
    return TP_OK;
}

static tp_status find(const tp_batch *batch, const tp_record *record, uint32_t flag,
                      tp_histogram *out)
{
    uint64_t place = record->arena;
    return (record->flags & flag) == 0 ? TP_ERR_NOTFOUND : find_at(batch, &place, out);
}

tp_status tp_batch_histogram(const tp_batch *batch, const tp_record *record, tp_histogram *out)
{
    return find(batch, record, TP_RECORD_HISTOGRAM, out);
}

tp_status tp_batch_exponents(const tp_batch *batch, const tp_record *record, tp_histogram *out)
{
    uint64_t place = record->arena;
    tp_histogram before;
    if ((record->flags & TP_RECORD_EXPONENTS) == 0 ||
        (blocks_of(record->flags) == 2 && find_at(batch, &place, &before) != TP_OK)) {
        return TP_ERR_NOTFOUND;
    }
    return find_at(batch, &place, out);
}

tp_status tp_batch_element(const tp_batch *batch, const tp_record *record, uint64_t *index,
                           uint64_t *bits)
{
    tp_histogram found;
    const tp_status status = find(batch, record, TP_RECORD_ELEMENT, &found);
    if (status != TP_OK || found.bin_count != 2) {
        return TP_ERR_NOTFOUND;
    }
    *index = found.bins[0];
    *bits = found.bins[1];
    return TP_OK;
}
