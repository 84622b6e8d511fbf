#include "record/step.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "record/arena.h"
#include "record/element.h"

/* Records beyond the capacity go to chunks, which never move; the next step has a larger capacity,
 * so that chunks appear in the first step of a run and hardly ever again. */
#define CHUNK_RECORDS 1024u
#define MAX_CHUNKS 4096u

/* Of a step, that are looked at for the first broken one of a tensor. */
#define MAX_ELEMENTS (UINT64_C(1) << 26)

/* It may lie in memory that outlives the process: tp_step_revive then follows its pointers. */
struct tp_step {
    tp_batch header;
    tp_record *records;
    uint32_t capacity;
    atomic_uint reserved;
    atomic_uint references; /* of its owner, and of each slot that is still to be filled */
    atomic_uint lost;       /* reserved without memory: there is no slot behind the number */
    atomic_bool closed;
    atomic_bool stored; /* in the journal, or empty: nothing in it is missed */
    int64_t begin_wall_ns;
    atomic_ullong hook_ns;
    atomic_ullong errors;
    atomic_ullong elements; /* that were looked at */
    tp_record *joined;      /* the view's records, when they had to be copied */
    tp_arena arena;
    tp_mapping *memory;
    pthread_mutex_t chunk_lock;
    _Atomic(tp_record *) chunks[MAX_CHUNKS]; /* behind what every record touches */
};

/* Of a step's piece of memory, so that another version's isn't taken for one of ours: the second
 * digit counts orders of the same members. */
#define STEP_KIND (UINT32_C(0x53100000) + (uint32_t)sizeof(struct tp_step))

tp_status tp_step_new(tp_step **out, uint32_t capacity, tp_mapping *memory)
{
    tp_step *step = tp_mapping_alloc(memory, sizeof *step, STEP_KIND);
    if (step == NULL) {
        return TP_ERR_NOMEM;
    }
    atomic_store(&step->stored, true);
    step->memory = memory;
    step->capacity = capacity > 0 ? capacity : 1;
    step->records = tp_mapping_alloc(memory, step->capacity * sizeof *step->records, 0);
    if (step->records == NULL || pthread_mutex_init(&step->chunk_lock, NULL) != 0) {
        tp_mapping_free(step->records);
        tp_mapping_free(step);
        return TP_ERR_NOMEM;
    }
    if (tp_arena_open(&step->arena, memory) != TP_OK) {
        pthread_mutex_destroy(&step->chunk_lock);
        tp_mapping_free(step->records);
        tp_mapping_free(step);
        return TP_ERR_NOMEM;
    }
    *out = step;
    return TP_OK;
}

static void free_chunks(tp_step *step)
{
    for (uint32_t i = 0; i < MAX_CHUNKS; i++) {
        tp_record *chunk = atomic_load(&step->chunks[i]);
        if (chunk == NULL) {
            break;
        }
        atomic_store(&step->chunks[i], NULL);
        tp_mapping_free(chunk);
    }
    tp_free(step->joined);
    step->joined = NULL;
}

void tp_step_free(tp_step *step)
{
    if (step == NULL) {
        return;
    }
    free_chunks(step);
    tp_arena_close(&step->arena);
    pthread_mutex_destroy(&step->chunk_lock);
    tp_mapping_free(step->records);
    tp_mapping_free(step);
}

void tp_step_begin(tp_step *step, uint64_t number)
{
    uint32_t count = atomic_load(&step->reserved);
    if (count > step->capacity) {
        /* Without memory for more, the chunks are simply used again. */
        uint32_t capacity = count + count / 4;
        tp_record *records = tp_mapping_alloc(step->memory, capacity * sizeof *records, 0);
        if (records != NULL) {
            tp_mapping_free(step->records);
            step->records = records;
            step->capacity = capacity;
        }
    }
    free_chunks(step);
    tp_arena_clear(&step->arena);
    atomic_store(&step->reserved, 0);
    atomic_store(&step->references, 1);
    atomic_store(&step->lost, 0);
    atomic_store(&step->closed, false);
    atomic_store(&step->hook_ns, 0);
    atomic_store(&step->errors, 0);
    atomic_store(&step->elements, 0);
    memset(&step->header, 0, sizeof step->header);
    step->header.step = number;
    step->header.pp_stage = -1;
    step->header.begin_ns = tp_clock_monotonic();
    step->begin_wall_ns = tp_clock_wall();
    atomic_store_explicit(&step->stored, false, memory_order_release);
}

void tp_step_set_stored(tp_step *step)
{
    atomic_store_explicit(&step->stored, true, memory_order_release);
}

void tp_step_empty(tp_step *step)
{
    const uint32_t reserved = atomic_load(&step->reserved);
    const uint32_t used = reserved < step->capacity ? reserved : step->capacity;
    for (uint32_t i = 0; i < used; i++) {
        __atomic_store_n(&step->records[i].state, TP_SLOT_FREE, __ATOMIC_RELAXED);
    }
}

/* The chunk that holds the record, made if need be; NULL without memory. */
static tp_record *chunk_of(tp_step *step, uint32_t number)
{
    if (number >= MAX_CHUNKS) {
        return NULL;
    }
    tp_record *chunk = atomic_load_explicit(&step->chunks[number], memory_order_acquire);
    if (chunk != NULL) {
        return chunk;
    }
    pthread_mutex_lock(&step->chunk_lock);
    /* Chunks are made in order, so that the first NULL ends the list. */
    for (uint32_t i = 0; i <= number; i++) {
        chunk = atomic_load(&step->chunks[i]);
        if (chunk == NULL) {
            chunk = tp_mapping_alloc(step->memory, CHUNK_RECORDS * sizeof *chunk, 0);
            if (chunk == NULL) {
                break;
            }
            atomic_store_explicit(&step->chunks[i], chunk, memory_order_release);
        }
    }
    pthread_mutex_unlock(&step->chunk_lock);
    return chunk;
}

/* What the writer has read lies with its processor, and takes its time to come back. */
static void fetch(const tp_record *slot)
{
    for (size_t line = 0; line < sizeof *slot; line += 64) {
        __builtin_prefetch((const char *)slot + line, 1);
    }
}

/* counted: the step isn't complete before the slot is filled. */
static inline tp_record *take(tp_step *step, uint32_t key, uint64_t now_ns, bool counted)
{
    uint32_t number = atomic_fetch_add_explicit(&step->reserved, 1, memory_order_relaxed);
    tp_record *slot;
    if (number < step->capacity) {
        slot = &step->records[number];
    } else {
        uint32_t behind = number - step->capacity;
        tp_record *chunk = chunk_of(step, behind / CHUNK_RECORDS);
        if (chunk == NULL) {
            atomic_fetch_add(&step->lost, 1);
            tp_step_count_error(step);
            return NULL;
        }
        slot = &chunk[behind % CHUNK_RECORDS];
    }
    if (number + 1 < step->capacity) {
        fetch(slot + 1); /* it is the next one that will be filled */
    }
    if (counted) {
        atomic_fetch_add_explicit(&step->references, 1, memory_order_relaxed);
    }
    memset(slot, 0, counted ? sizeof *slot : offsetof(tp_record, u));
    slot->key = key;
    slot->order = number;
    const uint64_t begin_ns = step->header.begin_ns; /* two clocks: a bit later than now, maybe */
    slot->time_ns = now_ns > begin_ns ? now_ns - begin_ns : 0;
    __atomic_store_n(&slot->state, TP_SLOT_RESERVED, __ATOMIC_RELEASE);
    return slot;
}

tp_record *tp_step_reserve(tp_step *step, uint32_t key, uint64_t now_ns)
{
    return take(step, key, now_ns, true);
}

tp_record *tp_step_take(tp_step *step, uint32_t key, uint64_t now_ns)
{
    return take(step, key, now_ns, false);
}

/* Nothing of the step may be touched after this, unless one holds another reference. */
static void drop_reference(tp_step *step)
{
    if (atomic_fetch_sub_explicit(&step->references, 1, memory_order_acq_rel) == 1) {
        tp_step_free(step);
    }
}

bool tp_step_add_histogram(tp_step *step, tp_record *slot, const tp_stats_options *options)
{
    if (tp_arena_put_histogram(&step->arena, options, &slot->arena) != TP_OK) {
        slot->arena = 0;
        tp_step_count_error(step);
        return false;
    }
    slot->flags |= TP_RECORD_HISTOGRAM;
    return true;
}

void tp_step_add_element(tp_step *step, tp_record *slot, const tp_tensor *tensor)
{
    const uint64_t before = atomic_load(&step->elements);
    const uint64_t most = before < MAX_ELEMENTS ? MAX_ELEMENTS - before : 0;
    uint64_t looked;
    uint64_t index;
    uint64_t bits;
    if ((slot->flags & TP_RECORD_HISTOGRAM) != 0 || most == 0) {
        return;
    }
    const bool found = tp_element_find(tensor, most, &looked, &index, &bits);
    atomic_fetch_add(&step->elements, looked);
    if (!found) {
        return;
    }
    if (tp_arena_put_pair(&step->arena, index, bits, &slot->arena) == TP_OK) {
        slot->flags |= TP_RECORD_ELEMENT;
    } else {
        slot->arena = 0; /* without it the record is good */
    }
}

bool tp_step_add_exponents(tp_step *step, tp_record *slot, const tp_exponents *exponents)
{
    const bool has_block = (slot->flags & TP_ARENA_FLAGS) != 0;
    if (tp_arena_put_exponents(&step->arena, exponents, has_block, &slot->arena) != TP_OK) {
        tp_step_count_error(step);
        return false;
    }
    slot->flags |= TP_RECORD_EXPONENTS;
    return true;
}

void tp_step_issue(tp_record *slot)
{
    __atomic_store_n(&slot->state, TP_SLOT_ISSUED, __ATOMIC_RELEASE);
}

void tp_step_fill(tp_step *step, tp_record *slot)
{
    __atomic_store_n(&slot->state, TP_SLOT_DONE, __ATOMIC_RELEASE);
    drop_reference(step);
}

void tp_step_abandon(tp_step *step)
{
    if (step != NULL) {
        drop_reference(step);
    }
}

void tp_step_close(tp_step *step)
{
    step->header.end_ns = tp_clock_monotonic();
    step->header.wall_ns = tp_clock_wall();
    atomic_store_explicit(&step->closed, true, memory_order_release);
}

bool tp_step_is_complete(const tp_step *step)
{
    return atomic_load_explicit(&step->closed, memory_order_acquire) &&
           atomic_load_explicit(&step->references, memory_order_acquire) == 1;
}

uint64_t tp_step_count(const tp_step *step)
{
    return atomic_load(&step->reserved) - atomic_load(&step->lost);
}

uint64_t tp_step_bytes(const tp_step *step)
{
    uint64_t reserved = atomic_load(&step->reserved);
    uint64_t behind = reserved > step->capacity ? reserved - step->capacity : 0;
    uint64_t chunks = (behind + CHUNK_RECORDS - 1) / CHUNK_RECORDS;
    return sizeof *step + (step->capacity + chunks * CHUNK_RECORDS) * sizeof(tp_record) +
           tp_arena_bytes(&step->arena);
}

tp_batch *tp_step_header(tp_step *step)
{
    return &step->header;
}

void tp_step_add_hook_time(tp_step *step, uint64_t ns)
{
    atomic_fetch_add_explicit(&step->hook_ns, ns, memory_order_relaxed);
}

void tp_step_count_error(tp_step *step)
{
    atomic_fetch_add_explicit(&step->errors, 1, memory_order_relaxed);
}

/* Copies the slot as far as it is published. */
static bool copy_slot(tp_record *to, const tp_record *from)
{
    const uint32_t state = __atomic_load_n(&from->state, __ATOMIC_ACQUIRE);
    if (state == TP_SLOT_DONE) {
        *to = *from;
        return true;
    }
    /* Whoever fills it may be writing at this moment: only what reserving and issuing wrote is
     * read. */
    memset(to, 0, sizeof *to);
    if (state == TP_SLOT_ISSUED) {
        const size_t first = offsetof(tp_record, micro_step);
        memcpy((char *)to + first, (const char *)from + first,
               offsetof(tp_record, u.collective.flags) - first);
    }
    to->state = TP_SLOT_RESERVED;
    to->key = from->key;
    to->order = from->order;
    to->time_ns = from->time_ns;
    return false;
}

/* NULL: there is no memory behind the number. */
static tp_record *slot_at(const tp_step *step, uint32_t number)
{
    if (number < step->capacity) {
        return step->records != NULL ? &step->records[number] : NULL;
    }
    const uint32_t behind = number - step->capacity;
    const uint32_t chunk = behind / CHUNK_RECORDS;
    tp_record *records = chunk < MAX_CHUNKS ? atomic_load(&step->chunks[chunk]) : NULL;
    return records != NULL ? &records[behind % CHUNK_RECORDS] : NULL;
}

bool tp_step_last(const tp_step *step, tp_record *last)
{
    for (uint32_t number = atomic_load(&step->reserved); number-- > 0;) {
        const tp_record *slot = slot_at(step, number);
        const uint32_t state =
            slot == NULL ? TP_SLOT_FREE : __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE);
        if (state == TP_SLOT_DONE || state == TP_SLOT_ISSUED) {
            copy_slot(last, slot);
            return true;
        }
    }
    return false;
}

/* Copies all slots to one array, and counts them and those that are not filled. */
static tp_status join(tp_step *step, uint64_t *kept, uint64_t *unfilled)
{
    uint32_t count = atomic_load(&step->reserved);
    tp_record *joined = tp_alloc(count * sizeof *joined);
    if (joined == NULL) {
        return TP_ERR_NOMEM;
    }
    for (uint32_t number = 0; number < count; number++) {
        const tp_record *slot = slot_at(step, number);
        if (slot == NULL || __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) == TP_SLOT_FREE) {
            continue; /* lost for want of memory, before its chunk could be had */
        }
        *unfilled += !copy_slot(&joined[(*kept)++], slot);
    }
    tp_free(step->joined);
    step->joined = joined;
    return TP_OK;
}

tp_status tp_step_view(tp_step *step, tp_batch *batch)
{
    uint64_t unfilled = 0;
    uint32_t reserved = atomic_load(&step->reserved);
    const bool complete = tp_step_is_complete(step);
    const tp_record *records = step->records;
    uint64_t kept = reserved;
    if (reserved > step->capacity || !complete || records == NULL) {
        kept = 0;
        tp_status status = join(step, &kept, &unfilled);
        if (status != TP_OK) {
            return status;
        }
        records = step->joined;
    }
    *batch = step->header;
    batch->hook_ns = atomic_load(&step->hook_ns);
    batch->errors = atomic_load(&step->errors);
    batch->count = kept;
    batch->records = records;
    batch->unfilled = (uint32_t)unfilled;
    if (unfilled > 0) {
        batch->flags |= TP_BATCH_PARTIAL;
    }
    return tp_arena_view(&step->arena, !complete, batch);
}

/* What the process has not come to: a look at its slots tells some of it. False: there is none,
 * only a number that somebody took before the end. */
static bool complete_open_step(tp_step *step)
{
    const uint32_t count = atomic_load(&step->reserved);
    tp_batch *header = &step->header;
    uint64_t last_ns = 0;
    uint32_t micro_steps = 0;
    bool has_slots = false;
    for (uint32_t number = 0; number < count; number++) {
        const tp_record *slot = slot_at(step, number);
        if (slot != NULL && slot->state != TP_SLOT_FREE) {
            has_slots = true;
            last_ns = slot->time_ns > last_ns ? slot->time_ns : last_ns;
            if (slot->state == TP_SLOT_DONE && slot->micro_step >= micro_steps) {
                micro_steps = slot->micro_step + 1;
            }
        }
    }
    header->flags |= TP_BATCH_PARTIAL;
    header->micro_steps = micro_steps;
    header->end_ns = header->begin_ns + last_ns;
    header->wall_ns = step->begin_wall_ns + (int64_t)last_ns;
    return has_slots;
}

tp_status tp_step_revive(tp_step **out, const tp_pieces *pieces, const tp_piece *piece)
{
    tp_step *step = (tp_step *)(void *)piece->memory;
    if (piece->kind >> 24 != STEP_KIND >> 24) {
        return TP_END;
    }
    if (piece->kind != STEP_KIND || piece->size != sizeof *step) {
        return TP_ERR_VERSION;
    }
    const uint32_t count = atomic_load(&step->reserved);
    if (atomic_load(&step->stored) || (count == 0 && !atomic_load(&step->closed))) {
        return TP_END;
    }
    step->joined = NULL;
    step->records = tp_pieces_find(pieces, step->records, step->capacity * sizeof *step->records);
    for (uint32_t i = 0; i < MAX_CHUNKS; i++) {
        tp_record *chunk = atomic_load(&step->chunks[i]);
        if (chunk != NULL) {
            chunk = tp_pieces_find(pieces, chunk, CHUNK_RECORDS * sizeof *chunk);
            atomic_store(&step->chunks[i], chunk);
        }
    }
    tp_arena_revive(&step->arena, pieces);
    for (uint32_t number = 0; number < count; number++) {
        tp_record *slot = slot_at(step, number);
        if (slot != NULL && slot->state == TP_SLOT_DONE && (slot->flags & TP_ARENA_FLAGS) != 0 &&
            !tp_arena_holds(&step->arena, slot->arena, slot->flags)) {
            slot->flags &= ~TP_ARENA_FLAGS;
            slot->arena = 0;
        }
    }
    if (!atomic_load(&step->closed) && !complete_open_step(step)) {
        return TP_END;
    }
    *out = step;
    return TP_OK;
}

void tp_step_bury(tp_step *step)
{
    tp_free(step->joined);
    step->joined = NULL;
    tp_free(step->arena.joined);
    step->arena.joined = NULL;
}
