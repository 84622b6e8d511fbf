#include "view/timing.h"

#include <math.h>

/* What NCCL's tests call the size of an operation, of one rank's record. */
static double size_of(const tp_call *call)
{
    const double in = (double)call->call.bytes_in;
    const double out = (double)call->call.bytes_out;
    switch (call->call.op) {
    case TP_COLLECTIVE_OP_ALL_GATHER:
    case TP_COLLECTIVE_OP_RECV:
        return out;
    case TP_COLLECTIVE_OP_GATHER:
        return in * call->call.group_size;
    case TP_COLLECTIVE_OP_SCATTER:
        return out * call->call.group_size;
    case TP_COLLECTIVE_OP_BROADCAST:
        return fmax(in, out);
    default:
        return in;
    }
}

static double bus_factor(const tp_call *call)
{
    const double n = call->call.group_size;
    switch (call->call.op) {
    case TP_COLLECTIVE_OP_ALL_REDUCE:
        return 2 * (n - 1) / n;
    case TP_COLLECTIVE_OP_ALL_GATHER:
    case TP_COLLECTIVE_OP_REDUCE_SCATTER:
    case TP_COLLECTIVE_OP_ALL_TO_ALL:
    case TP_COLLECTIVE_OP_GATHER:
    case TP_COLLECTIVE_OP_SCATTER:
        return (n - 1) / n;
    default:
        return 1;
    }
}

static uint32_t class_of(double size)
{
    uint32_t number = 0;
    for (double bound = 1024; size >= bound && number < 6; bound *= 16) {
        number++;
    }
    return number;
}

static tp_timing *find_row(tp_buf *out, size_t begin, const tp_call *call, uint32_t size_class)
{
    tp_timing *rows = (tp_timing *)(void *)(out->data + begin);
    const size_t count = (out->size - begin) / sizeof *rows;
    for (size_t i = 0; i < count; i++) {
        if (rows[i].name == call->name && rows[i].group == call->group &&
            rows[i].size_class == size_class) {
            return &rows[i];
        }
    }
    tp_timing *row = tp_buf_extend(out, sizeof *row);
    if (row != NULL) {
        *row = (tp_timing){.name = call->name, .group = call->group, .size_class = size_class};
    }
    return row;
}

static void add_times(tp_timing *row, const tp_call *call, double size)
{
    const uint64_t flags = call->call.flags;
    const double seconds = (double)call->call.done_ns * 1e-9;
    row->calls++;
    row->bytes += size;
    if ((flags & TP_COLLECTIVE_DONE) == 0 ||
        (flags & (TP_COLLECTIVE_POLLED | TP_COLLECTIVE_FAILED)) != 0) {
        return;
    }
    row->timed++;
    row->seconds += seconds;
    row->longest = fmax(row->longest, seconds);
    row->waiting += (double)call->call.wait_ns * 1e-9;
    row->algorithm_bandwidth += size; /* of these alone; made a bandwidth at the end */
    row->bus_bandwidth += size * bus_factor(call);
}

tp_status tp_timing_of(const tp_calls *calls, tp_buf *out)
{
    const size_t begin = out->size;
    for (uint64_t i = 0; i < calls->count; i++) {
        const tp_call *call = tp_calls_at(calls, i);
        const double size = size_of(call);
        tp_timing *row = find_row(out, begin, call, class_of(size));
        if (row == NULL) {
            return TP_ERR_NOMEM;
        }
        add_times(row, call, size);
    }
    tp_timing *rows = (tp_timing *)(void *)(out->data + begin);
    for (size_t i = 0; i < (out->size - begin) / sizeof *rows; i++) {
        const bool has_any = rows[i].seconds > 0 && rows[i].bytes > 0;
        rows[i].algorithm_bandwidth =
            has_any ? rows[i].algorithm_bandwidth / rows[i].seconds : (double)NAN;
        rows[i].bus_bandwidth = has_any ? rows[i].bus_bandwidth / rows[i].seconds : (double)NAN;
    }
    return TP_OK;
}

/* Nobody leaves it before all have come. */
static bool is_meeting(const tp_call *call)
{
    switch (call->call.op) {
    case TP_COLLECTIVE_OP_BARRIER:
    case TP_COLLECTIVE_OP_ALL_REDUCE:
    case TP_COLLECTIVE_OP_ALL_GATHER:
    case TP_COLLECTIVE_OP_REDUCE_SCATTER:
    case TP_COLLECTIVE_OP_ALL_TO_ALL:
        return (call->call.flags & TP_COLLECTIVE_DONE) != 0 &&
               (call->call.flags & TP_COLLECTIVE_FAILED) == 0;
    default:
        return false;
    }
}

/* The end of the calls that have the number and group of the one at first. */
static uint64_t end_of_meeting(const tp_calls *calls, uint64_t first)
{
    const tp_call *one = tp_calls_at(calls, first);
    uint64_t end = first + 1;
    for (; end < calls->count; end++) {
        const tp_call *other = tp_calls_at(calls, end);
        if (other->group != one->group || other->call.sequence != one->call.sequence ||
            tp_call_is_pair(other)) {
            break;
        }
    }
    return end;
}

/* A rank's place in the list; there is one of each. */
static tp_straggling *of_rank(tp_straggling *list, uint32_t count, uint32_t rank)
{
    for (uint32_t i = 0; i < count; i++) {
        if (list[i].rank == rank) {
            return &list[i];
        }
    }
    return &list[0];
}

static double between(uint64_t from, uint64_t to)
{
    return (double)(int64_t)(to - from) * 1e-9;
}

/* The bounds of the clock's difference: kept in offset (at least) and uncertainty (at most). */
static void narrow(tp_straggling *one, const tp_call *call, const tp_call *reference)
{
    const tp_collective *a = &reference->call;
    const tp_collective *b = &call->call;
    const double least = between(a->issue_ns + a->done_ns, b->issue_ns);
    const double most = between(a->issue_ns, b->issue_ns + b->done_ns);
    one->offset = one->aligned ? fmax(one->offset, least) : least;
    one->uncertainty = one->aligned ? fmin(one->uncertainty, most) : most;
    one->aligned = true;
}

static void align(const tp_calls *calls, tp_straggling *list, uint32_t count)
{
    for (uint64_t i = 0; i < calls->count;) {
        const uint64_t end = end_of_meeting(calls, i);
        const tp_call *reference = tp_calls_at(calls, i); /* ranks are in order */
        if (reference->rank == list[0].rank && is_meeting(reference)) {
            for (uint64_t k = i + 1; k < end; k++) {
                const tp_call *call = tp_calls_at(calls, k);
                if (is_meeting(call)) {
                    narrow(of_rank(list, count, call->rank), call, reference);
                }
            }
        }
        i = end;
    }
    for (uint32_t i = 0; i < count; i++) {
        const double least = list[i].offset;
        const double most = list[i].uncertainty;
        list[i].offset = (least + most) / 2;
        list[i].uncertainty = (most - least) / 2;
    }
    list[0].aligned = true;
}

static double arrival(const tp_straggling *one, const tp_call *call)
{
    return (double)call->call.issue_ns * 1e-9 - one->offset;
}

/* Its time can be told beside the others'. */
static bool is_in_step(const tp_call *call, const tp_straggling *rank)
{
    return is_meeting(call) && rank->aligned && rank->uncertainty >= 0;
}

/* One meeting: who was last, by how much; the time between first and last is given back. */
static double judge(const tp_calls *calls, uint64_t first, uint64_t end, tp_straggling *list,
                    uint32_t count, tp_buf *arrivals)
{
    tp_straggling *last = NULL;
    const tp_straggling *second = NULL;
    double earliest = INFINITY;
    double latest = -INFINITY;
    double before = -INFINITY;
    for (uint64_t i = first; i < end; i++) {
        const tp_call *call = tp_calls_at(calls, i);
        tp_straggling *one = of_rank(list, count, call->rank);
        if (!is_in_step(call, one)) {
            continue;
        }
        const double at = arrival(one, call);
        one->calls++;
        earliest = fmin(earliest, at);
        if (at > latest) {
            second = last;
            before = latest;
            last = one;
            latest = at;
        } else if (at > before) {
            second = one;
            before = at;
        }
    }
    if (last == NULL || second == NULL) {
        return 0;
    }
    const bool is_sure = latest - before > last->uncertainty + second->uncertainty;
    if (is_sure) {
        last->last++;
        last->delay += latest - before;
    }
    for (uint64_t i = first; arrivals != NULL && i < end; i++) {
        const tp_call *call = tp_calls_at(calls, i);
        const tp_straggling *one = of_rank(list, count, call->rank);
        if (is_in_step(call, one)) {
            const tp_arrival arrived = {.rank = call->rank,
                                        .step = call->step,
                                        .waited = latest - arrival(one, call),
                                        .behind = is_sure && one == last ? latest - before : 0};
            tp_buf_put(arrivals, &arrived, sizeof arrived);
        }
    }
    return latest - earliest;
}

tp_status tp_straggling_of(const tp_calls *calls, tp_buf *out, tp_buf *arrivals)
{
    const uint32_t count = calls->rank_count;
    tp_straggling *list = tp_buf_extend(out, count * sizeof *list);
    double spread = 0;
    if (list == NULL) {
        return TP_ERR_NOMEM;
    }
    for (uint32_t i = 0; i < count; i++) {
        list[i] = (tp_straggling){.rank = tp_calls_rank(calls, i)->rank};
    }
    if (count > 0) {
        align(calls, list, count);
    }
    for (uint64_t i = 0; i < calls->count;) {
        const uint64_t end = end_of_meeting(calls, i);
        spread += judge(calls, i, end, list, count, arrivals);
        i = end;
    }
    for (uint32_t i = 0; i < count; i++) {
        list[i].score = spread > 0 ? list[i].delay / spread : 0;
    }
    return arrivals != NULL && arrivals->failed ? TP_ERR_NOMEM : TP_OK;
}
