#include "view/agreement.h"

#include <inttypes.h>
#include <string.h>

#include "tensorprobe/tensor.h"

static void put_call(const tp_calls *calls, const tp_call *call, tp_buf *text)
{
    tp_buf_printf(text, "%s", tp_calls_text(calls, call->name));
    if (call->dtype != 0) {
        tp_buf_printf(text, " %s[", tp_dtype_name(call->dtype));
        for (uint32_t i = 0; i < call->ndim && i < TP_CALL_DIMS; i++) {
            tp_buf_printf(text, "%s%" PRId64, i > 0 ? ", " : "", call->dims[i]);
        }
        tp_buf_printf(text, "%s]", call->ndim > TP_CALL_DIMS ? ", …" : "");
    }
    if (call->call.peer >= 0 && !tp_call_is_pair(call)) {
        tp_buf_printf(text, ", root %" PRId32, call->call.peer);
    }
    tp_buf_printf(text, ", step %" PRIu64, call->step);
    if (call->has_location) {
        tp_buf_printf(text, ", at %s", tp_calls_text(calls, call->location));
    }
}

static void put_rank_line(const tp_calls *calls, const tp_call *call, tp_buf *text)
{
    tp_buf_printf(text, "  rank %" PRIu32 ": ", call->rank);
    put_call(calls, call, text);
    tp_buf_printf(text, "\n");
}

/* Where a rank is that should be somewhere else. */
static void put_place(const tp_calls *calls, const tp_call_rank *rank, tp_buf *text)
{
    if (rank->has_last) {
        tp_buf_printf(text, "its last record is %s, step %" PRIu64 ", micro step %" PRIu32 "%s",
                      tp_calls_text(calls, rank->last), rank->last_step, rank->micro_step,
                      rank->partial ? "" : " (that step has ended)");
    } else {
        tp_buf_printf(text, "it has recorded nothing");
    }
    tp_buf_printf(text, "%s", rank->closed ? "; its monitor was closed" : "");
    tp_buf_printf(text, "%s\n",
                  rank->has_box ? "; its open step is still in its black box: `tensorprobe recover`"
                                : "");
}

/* The calls [first, end) of one group: the first number at which two ranks have called different
 * things. What ranks lack is passed over: the hash of all before tells whether they differed there.
 */
static bool find_difference(const tp_calls *calls, uint64_t first, uint64_t end, tp_buf *text)
{
    for (uint64_t i = first; i < end;) {
        const tp_call *one = tp_calls_at(calls, i);
        uint64_t behind = i + 1;
        bool same = true;
        bool same_before = true;
        for (; behind < end; behind++) {
            const tp_call *other = tp_calls_at(calls, behind);
            if (other->call.sequence != one->call.sequence) {
                break;
            }
            same = same && other->call.signature == one->call.signature;
            same_before = same_before && other->call.running == one->call.running;
        }
        if (!same || !same_before) {
            tp_buf_printf(text, "group %s: ranks differ %s call %" PRIu64 "\n",
                          tp_calls_text(calls, one->group), same ? "before" : "at",
                          one->call.sequence);
            for (uint64_t k = i; k < behind; k++) {
                put_rank_line(calls, tp_calls_at(calls, k), text);
            }
            return true;
        }
        i = behind;
    }
    return false;
}

/* The rank's last call of the group; NULL: it has none. */
static const tp_call *last_of(const tp_calls *calls, uint64_t first, uint64_t end, uint32_t rank)
{
    for (uint64_t i = end; i-- > first;) {
        const tp_call *call = tp_calls_at(calls, i);
        if (call->rank == rank) {
            return call;
        }
    }
    return NULL;
}

/* Says who has not come as far as the others of the group, and who waits for it. */
static bool find_missing(const tp_calls *calls, uint64_t first, uint64_t end, tp_buf *text)
{
    const tp_call *furthest = tp_calls_at(calls, end - 1);
    const char *group = tp_calls_text(calls, furthest->group);
    const uint64_t sequence = furthest->call.sequence;
    uint32_t behind = 0;
    uint32_t open = 0;
    for (uint32_t i = 0; i < calls->rank_count; i++) {
        const uint32_t rank = tp_calls_rank(calls, i)->rank;
        const tp_call *last = last_of(calls, first, end, rank);
        behind += tp_group_has(group, rank) && (last == NULL || last->call.sequence < sequence);
        open += last != NULL && last->call.sequence == sequence &&
                (last->call.flags & TP_COLLECTIVE_DONE) == 0;
    }
    if (behind == 0 && open == 0) {
        return false;
    }
    tp_buf_printf(text, "group %s: call %" PRIu64 ", ", group, sequence);
    put_call(calls, furthest, text);
    tp_buf_printf(text, behind > 0 ? ", was not reached by all\n"
                                   : ", was reached by all and has not ended\n");
    for (uint32_t i = 0; i < calls->rank_count; i++) {
        const tp_call_rank *rank = tp_calls_rank(calls, i);
        const tp_call *last = last_of(calls, first, end, rank->rank);
        if (!tp_group_has(group, rank->rank)) {
            continue;
        }
        if (last == NULL) {
            tp_buf_printf(text, "  rank %" PRIu32 " has not arrived: no call of this group; ",
                          rank->rank);
            put_place(calls, rank, text);
        } else if (last->call.sequence < sequence) {
            tp_buf_printf(text,
                          "  rank %" PRIu32 " has not arrived: its last call is %" PRIu64 ", ",
                          rank->rank, last->call.sequence);
            put_call(calls, last, text);
            tp_buf_printf(text, "; ");
            put_place(calls, rank, text);
        } else {
            tp_buf_printf(text, "  rank %" PRIu32 " %s\n", rank->rank,
                          (last->call.flags & TP_COLLECTIVE_DONE) != 0 ? "has passed it"
                                                                       : "waits in it");
        }
    }
    return true;
}

static uint32_t from(const tp_call *call)
{
    return call->call.op == TP_COLLECTIVE_OP_SEND ? call->rank : (uint32_t)call->call.peer;
}

static uint32_t to(const tp_call *call)
{
    return call->call.op == TP_COLLECTIVE_OP_SEND ? (uint32_t)call->call.peer : call->rank;
}

static bool has_rank(const tp_calls *calls, uint32_t rank)
{
    for (uint32_t i = 0; i < calls->rank_count; i++) {
        if (tp_calls_rank(calls, i)->rank == rank) {
            return true;
        }
    }
    return false;
}

/* What one side has called and the other hasn't; of each way between two ranks the first. The calls
 * of one number stand together, in [first, end). */
static void find_odd_pairs(const tp_calls *calls, uint64_t first, uint64_t end, tp_buf *text,
                           bool *agree)
{
    for (uint64_t i = first; i < end; i++) {
        const tp_call *one = tp_calls_at(calls, i);
        const tp_call *other = NULL;
        if (one->call.peer < 0 || !has_rank(calls, (uint32_t)one->call.peer)) {
            continue; /* from anybody, or a journal that isn't there */
        }
        for (uint64_t k = first; k < end && other == NULL; k++) {
            const tp_call *candidate = tp_calls_at(calls, k);
            if (candidate->call.op != one->call.op && candidate->call.tag == one->call.tag &&
                from(candidate) == from(one) && to(candidate) == to(one)) {
                other = candidate;
            }
        }
        const bool is_send = one->call.op == TP_COLLECTIVE_OP_SEND;
        if (other != NULL && (other->call.signature == one->call.signature || !is_send)) {
            continue;
        }
        if (other == NULL && (one->call.flags & TP_COLLECTIVE_DONE) != 0) {
            continue; /* it has arrived: the other side's record is lost, or was not wanted */
        }
        *agree = false;
        tp_buf_printf(text,
                      "group %s: call %" PRIu64 " from rank %" PRIu32 " to rank %" PRIu32
                      ", tag %" PRIu32 ": %s\n",
                      tp_calls_text(calls, one->group), one->call.sequence, from(one), to(one),
                      one->call.tag,
                      other != NULL ? "the sides differ"
                      : is_send     ? "nobody receives it"
                                    : "nobody sends it");
        put_rank_line(calls, one, text);
        if (other != NULL) {
            put_rank_line(calls, other, text);
        }
    }
}

void tp_agreement_report(const tp_calls *calls, tp_buf *text, bool *agree)
{
    *agree = true;
    for (uint64_t first = 0; first < calls->count;) {
        const tp_call *one = tp_calls_at(calls, first);
        const bool is_pair = tp_call_is_pair(one);
        uint64_t end = first + 1;
        for (; end < calls->count; end++) {
            const tp_call *other = tp_calls_at(calls, end);
            if (other->group != one->group || tp_call_is_pair(other) != is_pair ||
                (is_pair && other->call.sequence != one->call.sequence)) {
                break;
            }
        }
        if (is_pair) {
            find_odd_pairs(calls, first, end, text, agree);
        } else if (find_difference(calls, first, end, text) ||
                   find_missing(calls, first, end, text)) {
            *agree = false;
        }
        first = end;
    }
}
