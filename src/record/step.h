/* The records of one step while they are being made. A slot is reserved in order, and filled at
 * once or later (device values, asynchronous collectives); the step is complete when it has been
 * closed and no slot is pending. Reserving and filling: any thread, no lock, no allocation unless a
 * step has more records than any before it. */
#ifndef TP_RECORD_STEP_H
#define TP_RECORD_STEP_H

#include <stdbool.h>

#include "base/mapping.h"
#include "tensorprobe/record.h"

typedef struct tp_step tp_step;

/* capacity: records that fit without asking for memory, which comes from memory (NULL: the heap)
 * and is given back to it. */
tp_status tp_step_new(tp_step **out, uint32_t capacity, tp_mapping *memory);
void tp_step_free(tp_step *step); /* accepts NULL */

/* Frees a closed step as soon as no slot is pending: now, or when the last one is filled. */
void tp_step_abandon(tp_step *step);

/* Empties it for the step with this number. Not while slots are pending. */
void tp_step_begin(tp_step *step, uint64_t number);

/* A slot with key, order and time set, state RESERVED, all else zero. now_ns: what the monotonic
 * clock says, or a quick one. NULL: no memory (counted as
 * an error of the step). The caller sets micro_step, call, kind, dtype, shape and the union, now or
 * later, then calls tp_step_fill. */
tp_record *tp_step_reserve(tp_step *step, uint32_t key, uint64_t now_ns);

/* Gives the slot, before it is filled, the histogram of these options (bins, bin_count, low, high),
 * which is copied. False: no memory (counted as an error of the step). */
bool tp_step_add_histogram(tp_step *step, tp_record *slot, const tp_stats_options *options);

/* Publishes what a slot of kind TP_RECORD_COLLECTIVE holds up to its flags: from here on a view
 * shows that much of it, and so does what a killed process leaves. tp_step_fill follows. */
void tp_step_issue(tp_record *slot);

/* Looks in the slot's tensor, which has a NaN or an infinity, for the first one, and gives it to
 * the slot before it is filled. Not in tensors with a histogram, and in one step not at more than
 * 2^26 elements: what comes then goes without. */
void tp_step_add_element(tp_step *step, tp_record *slot, const tp_tensor *tensor);

/* Gives the slot the exponents of its tensor, behind the histogram or element that it may have got
 * before. False: no memory (counted as an error of the step); what it had before is there. */
bool tp_step_add_exponents(tp_step *step, tp_record *slot, const tp_exponents *exponents);

/* Publishes the slot's content. The slot must not be touched afterwards. */
void tp_step_fill(tp_step *step, tp_record *slot);

/* The same two for who keeps everybody from ending the step in between, and fills the slot at once:
 * nobody has to count it, which takes longer than the rest. All of the union is the caller's to
 * write. */
tp_record *tp_step_take(tp_step *step, uint32_t key, uint64_t now_ns);
static inline void tp_step_give(tp_record *slot)
{
    __atomic_store_n(&slot->state, TP_SLOT_DONE, __ATOMIC_RELEASE);
}

/* No more slots are reserved from here on. */
void tp_step_close(tp_step *step);

/* Closed, and every reserved slot filled. */
bool tp_step_is_complete(const tp_step *step);

uint64_t tp_step_count(const tp_step *step);

/* Bytes of memory that it holds. */
uint64_t tp_step_bytes(const tp_step *step);

/* Own time and failures of hooks while the step is open. Any thread. */
void tp_step_add_hook_time(tp_step *step, uint64_t ns);
void tp_step_count_error(tp_step *step);

/* Header fields that its owner keeps: rank, attempt, pp_stage, flags, micro_steps, wait_ns,
 * writer_ns. The others are set by the step itself. Not by two threads at once. */
tp_batch *tp_step_header(tp_step *step);

/* The step as one batch with contiguous records, valid until the next view and tp_step_begin. Slots
 * that are still pending are shown as RESERVED (also those of collectives that have been issued)
 * and counted in unfilled (and PARTIAL is set). Only
 * the writer thread, or its owner while it is open. TP_ERR_NOMEM. */
tp_status tp_step_view(tp_step *step, tp_batch *batch);

/* Copies the last record that has been filled by now, or is of a collective that runs (as far as
 * that is published, with the state RESERVED); false: there is none. Any thread, beside those that
 * fill, as long as the step isn't begun again. */
bool tp_step_last(const tp_step *step, tp_record *last);

/* The journal has it: whoever finds its memory after the process has died passes it over. */
void tp_step_set_stored(tp_step *step);

/* Before a stored step is begun again: takes its slots' states back, so that none of them can be
 * taken for one of the next step. Beside training, since all records are touched. */
void tp_step_empty(tp_step *step);

/* The step that a dead process has left in this piece, for tp_step_header and tp_step_view. An open
 * one becomes PARTIAL. It lives as long as the pieces; end it with tp_step_bury. TP_END: the piece
 * is no step, or nothing in it is missed. TP_ERR_VERSION: of another version. */
tp_status tp_step_revive(tp_step **out, const tp_pieces *pieces, const tp_piece *piece);
void tp_step_bury(tp_step *step);

#endif
