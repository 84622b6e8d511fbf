/* Collectives: how long they took, who was waited for, whether ranks agree. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/text.h"
#include "view/agreement.h"
#include "view/ask.h"
#include "view/timing.h"

#define RECORDS_MAX 3000000 /* that are read unless steps are asked for */
#define LANES_MAX 4000
#define AROUND 20 /* steps by which the clocks of one step are compared */

/* Where the ranks' last journals are, and which steps are looked at. */
typedef struct window {
    tp_buf directories; /* char *; the texts are the run's */
    uint64_t first;     /* of the run */
    uint64_t last;
    uint64_t from;
    uint64_t to;
} window;

/* The earliest step from which on no more records than that are to be read. */
static uint64_t earliest_of(const tp_view_rank *rank, uint64_t to, uint64_t most)
{
    uint64_t records = 0;
    uint64_t first = to;
    for (uint64_t i = tp_view_column_count(rank); i-- > 0;) {
        const tp_view_column *column = tp_view_column_at(rank, i);
        if (column->step > to) {
            continue;
        }
        records += column->records;
        if (records > most && first < to) {
            break;
        }
        first = column->step < first ? column->step : first;
    }
    return first;
}

/* As far as all ranks have come, unless a step was left open: then that is what is looked for. */
static uint64_t last_of(const tp_view_run *run)
{
    uint64_t last = UINT64_MAX;
    for (uint32_t i = 0; i < tp_view_rank_count(run); i++) {
        const tp_view_rank *rank = tp_view_rank_at(run, i);
        const uint64_t count = tp_view_column_count(rank);
        const tp_view_column *column = count > 0 ? tp_view_column_at(rank, count - 1) : NULL;
        if (column == NULL) {
            continue;
        }
        if ((column->flags & TP_BATCH_PARTIAL) != 0) {
            return UINT64_MAX;
        }
        last = column->step < last ? column->step : last;
    }
    return last;
}

static tp_status choose(tp_view_run *run, const tp_ask *ask, window *out)
{
    pthread_rwlock_rdlock(&run->lock);
    const uint32_t ranks = tp_view_rank_count(run);
    const bool has = tp_view_run_steps(run, &out->first, &out->last);
    const uint64_t end = last_of(run);
    tp_ask_steps(ask, run, &out->from, &out->to);
    out->to = end < out->to && tp_ask_text(ask, "to", "")[0] == '\0' ? end : out->to;
    if (tp_ask_text(ask, "from", "")[0] == '\0') {
        for (uint32_t i = 0; i < ranks; i++) {
            const uint64_t first =
                earliest_of(tp_view_rank_at(run, i), out->to, RECORDS_MAX / ranks);
            out->from = first > out->from ? first : out->from;
        }
    }
    for (uint32_t i = 0; i < ranks; i++) {
        const tp_buf *all = &tp_view_rank_at(run, i)->directories;
        tp_buf_put(&out->directories, all->data + all->size - sizeof(char *), sizeof(char *));
    }
    pthread_rwlock_unlock(&run->lock);
    return out->directories.failed ? TP_ERR_NOMEM : has ? TP_OK : TP_ERR_NOTFOUND;
}

static void put_text(tp_buf *out, const char *name, const char *text)
{
    tp_buf_printf(out, ",\"%s\":", name);
    tp_text_put_json(out, text);
}

static void put_rows(tp_buf *out, const tp_calls *calls, const tp_buf *timings)
{
    const tp_timing *rows = (const tp_timing *)(const void *)timings->data;
    tp_buf_printf(out, ",\"rows\":[");
    for (size_t i = 0; i < timings->size / sizeof *rows; i++) {
        const tp_timing *row = &rows[i];
        tp_buf_printf(out, "%s{\"size\":%" PRIu32 ",\"calls\":%" PRIu64 ",\"bytes\":%.17g",
                      i > 0 ? "," : "", row->size_class, row->calls, row->bytes);
        put_text(out, "op", tp_calls_text(calls, row->name));
        put_text(out, "group", tp_calls_text(calls, row->group));
        tp_buf_printf(out,
                      ",\"timed\":%" PRIu64 ",\"seconds\":%.9g,\"longest\":%.9g,\"waiting\":%.9g"
                      ",\"alg\":",
                      row->timed, row->seconds, row->longest, row->waiting);
        tp_json_number(out, row->algorithm_bandwidth);
        tp_buf_printf(out, ",\"bus\":");
        tp_json_number(out, row->bus_bandwidth);
        tp_buf_printf(out, "}");
    }
    tp_buf_printf(out, "]");
}

/* Seconds of a rank, by columns of steps. */
static void put_columns(tp_buf *out, const char *name, const tp_buf *arrivals, uint32_t rank,
                        const window *of, uint64_t per, uint32_t width, bool behind)
{
    const tp_arrival *all = (const tp_arrival *)(const void *)arrivals->data;
    tp_buf memory = TP_BUF_INIT;
    double *columns = tp_buf_extend(&memory, width * sizeof *columns);
    if (columns == NULL) {
        out->failed = true;
        return;
    }
    memset(columns, 0, width * sizeof *columns);
    for (size_t i = 0; i < arrivals->size / sizeof *all; i++) {
        if (all[i].rank == rank && all[i].step >= of->from && all[i].step <= of->to) {
            columns[(all[i].step - of->from) / per] += behind ? all[i].behind : all[i].waited;
        }
    }
    tp_buf_printf(out, ",\"%s\":[", name);
    for (uint32_t i = 0; i < width; i++) {
        tp_buf_printf(out, i > 0 ? ",%.4g" : "%.4g", columns[i]);
    }
    tp_buf_printf(out, "]");
    tp_buf_free(&memory);
}

static void put_ranks(tp_buf *out, const tp_buf *ranks, const tp_buf *arrivals, const window *of,
                      uint64_t pixels)
{
    const tp_straggling *list = (const tp_straggling *)(const void *)ranks->data;
    const uint64_t span = of->to - of->from + 1;
    const uint64_t per = span / pixels + (span % pixels != 0);
    const uint32_t width = (uint32_t)(span / per + (span % per != 0));
    tp_buf_printf(out, ",\"per\":%" PRIu64 ",\"w\":%" PRIu32 ",\"ranks\":[", per, width);
    for (size_t i = 0; i < ranks->size / sizeof *list; i++) {
        const tp_straggling *one = &list[i];
        tp_buf_printf(out,
                      "%s{\"rank\":%" PRIu32 ",\"aligned\":%s,\"offset\":%.9f"
                      ",\"uncertainty\":%.9f,\"calls\":%" PRIu64 ",\"last\":%" PRIu64
                      ",\"delay\":%.9g,\"score\":%.9g",
                      i > 0 ? "," : "", one->rank, one->aligned ? "true" : "false", one->offset,
                      one->uncertainty, one->calls, one->last, one->delay, one->score);
        put_columns(out, "waited", arrivals, one->rank, of, per, width, false);
        put_columns(out, "behind", arrivals, one->rank, of, per, width, true);
        tp_buf_printf(out, "}");
    }
    tp_buf_printf(out, "]");
}

static void put_agreement(tp_buf *out, const tp_calls *calls)
{
    tp_buf text = TP_BUF_INIT;
    bool agree = true;
    uint32_t boxes = 0;
    tp_agreement_report(calls, &text, &agree);
    tp_buf_put(&text, "", 1);
    for (uint32_t i = 0; i < calls->rank_count; i++) {
        boxes += tp_calls_rank(calls, i)->has_box;
    }
    tp_buf_printf(out, ",\"agree\":%s,\"boxes\":%" PRIu32, agree ? "true" : "false", boxes);
    put_text(out, "disagreement", text.failed ? "" : (const char *)text.data);
    out->failed |= text.failed;
    tp_buf_free(&text);
}

/* What the clock of a rank shows more than that of the lowest one. */
static double offset_of(const tp_buf *ranks, uint32_t rank)
{
    const tp_straggling *list = (const tp_straggling *)(const void *)ranks->data;
    for (size_t i = 0; i < ranks->size / sizeof *list; i++) {
        if (list[i].rank == rank) {
            return list[i].aligned && list[i].uncertainty >= 0 ? list[i].offset : 0;
        }
    }
    return 0;
}

/* The calls of a step, in the time of the lowest rank's clock since the first of them. */
static void put_lanes(tp_buf *out, const tp_calls *calls, const tp_buf *ranks, uint64_t step)
{
    double base = INFINITY;
    uint64_t count = 0;
    for (uint64_t i = 0; i < calls->count; i++) {
        const tp_call *call = tp_calls_at(calls, i);
        const double at = (double)call->call.issue_ns * 1e-9 - offset_of(ranks, call->rank);
        base = call->step == step && at < base ? at : base;
    }
    tp_buf_printf(out, ",\"step\":%" PRIu64 ",\"lanes\":[", step);
    for (uint64_t i = 0; i < calls->count && count < LANES_MAX; i++) {
        const tp_call *call = tp_calls_at(calls, i);
        const tp_collective *one = &call->call;
        if (call->step != step) {
            continue;
        }
        tp_buf_printf(out, "%s{\"rank\":%" PRIu32 ",\"n\":%" PRIu64 ",\"at\":%.9f",
                      count++ > 0 ? "," : "", call->rank, one->sequence,
                      (double)one->issue_ns * 1e-9 - offset_of(ranks, call->rank) - base);
        put_text(out, "op", tp_calls_text(calls, call->name));
        put_text(out, "group", tp_calls_text(calls, call->group));
        if (call->has_location) {
            put_text(out, "location", tp_calls_text(calls, call->location));
        }
        tp_buf_printf(out, ",\"bytes\":%" PRIu64 ",\"took\":",
                      one->bytes_in > one->bytes_out ? one->bytes_in : one->bytes_out);
        tp_json_number(out, (one->flags & TP_COLLECTIVE_DONE) != 0 ? (double)one->done_ns * 1e-9
                                                                   : (double)NAN);
        tp_buf_printf(out, ",\"waiting\":%.9f,\"polled\":%s,\"failed\":%s}",
                      (double)one->wait_ns * 1e-9,
                      (one->flags & TP_COLLECTIVE_POLLED) != 0 ? "true" : "false",
                      (one->flags & TP_COLLECTIVE_FAILED) != 0 ? "true" : "false");
    }
    tp_buf_printf(out, "]");
}

static tp_status put_all(tp_buf *out, const tp_calls *calls, const tp_ask *ask, const window *of)
{
    tp_buf timings = TP_BUF_INIT;
    tp_buf ranks = TP_BUF_INIT;
    tp_buf arrivals = TP_BUF_INIT;
    const uint64_t step = tp_ask_number(ask, "step", UINT64_MAX);
    const uint64_t pixels = tp_ask_number(ask, "w", 300);
    tp_status status = tp_timing_of(calls, &timings);
    if (status == TP_OK) {
        status = tp_straggling_of(calls, &ranks, &arrivals);
    }
    if (status == TP_OK) {
        tp_buf_printf(out,
                      "{\"first\":%" PRIu64 ",\"last\":%" PRIu64 ",\"from\":%" PRIu64
                      ",\"to\":%" PRIu64 ",\"calls\":%" PRIu64 ",\"damaged\":%" PRIu64,
                      of->first, of->last, of->from, of->to, calls->count, calls->damaged);
        if (step != UINT64_MAX) {
            put_lanes(out, calls, &ranks, step);
        } else {
            put_rows(out, calls, &timings);
            put_ranks(out, &ranks, &arrivals, of, pixels < 1 || pixels > 2000 ? 300 : pixels);
            put_agreement(out, calls);
        }
        tp_buf_printf(out, "}");
    }
    tp_buf_free(&timings);
    tp_buf_free(&ranks);
    tp_buf_free(&arrivals);
    return status;
}

/* A step's calls if one is asked for, else all that there is to tell. */
void tp_answer_communication(tp_library *library, const tp_ask *ask, tp_answer *answer)
{
    tp_view_run *run = tp_library_find(library, tp_ask_text(ask, "r", ""));
    const uint64_t step = tp_ask_number(ask, "step", UINT64_MAX);
    window of = {.directories = TP_BUF_INIT};
    tp_calls calls = {0};
    tp_error error = {0};
    if (run == NULL) {
        tp_answer_wrong(answer, 404, "no such run");
        return;
    }
    tp_status status = choose(run, ask, &of);
    if (status == TP_OK && step != UINT64_MAX) {
        of.from = step > AROUND ? step - AROUND : 0;
        of.to = step < UINT64_MAX - AROUND ? step + AROUND : step;
    }
    const tp_journals journals = {(char **)(void *)of.directories.data,
                                  (uint32_t)(of.directories.size / sizeof(char *))};
    if (status == TP_OK) {
        status = tp_calls_load(&calls, &journals, of.from, of.to, &error);
    }
    if (status == TP_OK) {
        status = put_all(&answer->body, &calls, ask, &of);
    }
    if (status == TP_ERR_NOMEM) {
        tp_answer_wrong(answer, 503, "no memory");
    } else if (status != TP_OK) {
        tp_answer_wrong(answer, 404,
                        status == TP_ERR_NOTFOUND ? "no step has been finished yet"
                                                  : error.message);
    }
    tp_calls_free(&calls);
    tp_buf_free(&of.directories);
}
