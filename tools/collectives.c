/* `tensorprobe collectives`: sizes, times, bandwidths, and who was waited for. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "tools/calls.h"
#include "tools/tool.h"
#include "view/timing.h"

static const char help[] =
    "usage: tensorprobe collectives [OPTION…] DIRECTORY…\n"
    "\n"
    "Sums up the collectives that the ranks of a run have recorded (cc_distribution): calls, "
    "sizes,\n"
    "times and bandwidths of each operation, group and class of sizes, then each rank's clock and\n"
    "how much of the time between the first and the last to come it was waited for.\n"
    "\n"
    "  --step N         look at step N, N- (from N on), -N (up to N) or N-M alone\n"
    "  --json           one object a line, times in seconds, for programs\n"
    "  --help           this text\n"
    "\n"
    "exit codes: 0 fine, 1 nothing was recorded or can be read, 2 wrong command line\n";

static const char *const classes[] = {"< 1 KiB",  "< 16 KiB", "< 256 KiB", "< 4 MiB",
                                      "< 64 MiB", "< 1 GiB",  ">= 1 GiB"};

static void print_timing_json(const tp_calls *calls, const tp_timing *row)
{
    printf("{\"operation\": \"%s\", \"group\": \"%s\", \"size\": \"%s\", \"calls\": %" PRIu64
           ", \"bytes\": %.0f, \"timed\": %" PRIu64
           ", \"seconds\": %.9g, \"longest\": %.9g, \"waiting\": %.9g",
           tp_calls_text(calls, row->name), tp_calls_text(calls, row->group),
           classes[row->size_class], row->calls, row->bytes, row->timed, row->seconds, row->longest,
           row->waiting);
    if (!isnan(row->algorithm_bandwidth)) {
        printf(", \"algorithm_bandwidth\": %.9g, \"bus_bandwidth\": %.9g", row->algorithm_bandwidth,
               row->bus_bandwidth);
    }
    puts("}");
}

static void print_bandwidth(double bytes_per_second)
{
    if (isnan(bytes_per_second)) {
        printf(" %10s", "");
    } else {
        printf(" %10.4g", bytes_per_second * 1e-9);
    }
}

static void print_timings(const tp_calls *calls, const tp_buf *timings, bool json)
{
    const tp_timing *rows = (const tp_timing *)(const void *)timings->data;
    const size_t count = timings->size / sizeof *rows;
    if (!json) {
        printf("%-32s %-12s %-10s %8s %12s %10s %10s %10s %10s %10s\n", "operation", "group",
               "size", "calls", "bytes a call", "mean ms", "longest ms", "waiting ms", "alg GB/s",
               "bus GB/s");
    }
    for (size_t i = 0; i < count; i++) {
        const tp_timing *row = &rows[i];
        if (json) {
            print_timing_json(calls, row);
            continue;
        }
        printf("%-32s %-12s %-10s %8" PRIu64 " %12.0f", tp_calls_text(calls, row->name),
               tp_calls_text(calls, row->group), classes[row->size_class], row->calls,
               row->bytes / (double)row->calls);
        if (row->timed > 0) {
            const double many = 1e3 / (double)row->timed;
            printf(" %10.4g %10.4g %10.4g", row->seconds * many, row->longest * 1e3,
                   row->waiting * many);
        } else {
            printf(" %10s %10s %10s", "", "", "");
        }
        print_bandwidth(row->algorithm_bandwidth);
        print_bandwidth(row->bus_bandwidth);
        putchar('\n');
    }
}

static void print_rank(const tp_straggling *one, bool json)
{
    if (json && one->aligned) {
        printf("{\"rank\": %" PRIu32
               ", \"offset\": %.9f, \"uncertainty\": %.9f, \"calls\": %" PRIu64
               ", \"last\": %" PRIu64 ", \"delay\": %.9g, \"score\": %.9g}\n",
               one->rank, one->offset, one->uncertainty, one->calls, one->last, one->delay,
               one->score);
    } else if (json) {
        printf("{\"rank\": %" PRIu32 "}\n", one->rank);
    } else if (!one->aligned) {
        printf("%4" PRIu32 "  no call in common with the lowest rank\n", one->rank);
    } else if (one->uncertainty < 0) {
        printf("%4" PRIu32 "  its clock drifts: look at fewer steps (--step)\n", one->rank);
    } else {
        printf("%4" PRIu32 " %14.6f %14.6f %8" PRIu64 " %8" PRIu64 " %12.4g %8.3f\n", one->rank,
               one->offset * 1e3, one->uncertainty * 1e3, one->calls, one->last, one->delay * 1e3,
               one->score);
    }
}

static void print_ranks(const tp_buf *ranks, bool json)
{
    const tp_straggling *list = (const tp_straggling *)(const void *)ranks->data;
    if (!json) {
        printf("\n%4s %14s %14s %8s %8s %12s %8s\n", "rank", "clock ms", "+- ms", "calls", "last",
               "delay ms", "score");
    }
    for (size_t i = 0; i < ranks->size / sizeof *list; i++) {
        print_rank(&list[i], json);
    }
}

static int report(const char *name, const tp_calls *calls, bool json)
{
    tp_buf timings = TP_BUF_INIT;
    tp_buf ranks = TP_BUF_INIT;
    tp_error error = {0};
    tp_status status = tp_timing_of(calls, &timings);
    if (status == TP_OK) {
        status = tp_straggling_of(calls, &ranks, NULL);
    }
    if (status != TP_OK) {
        tp_fail(&error, status, "no memory for the report");
    } else if (calls->count == 0) {
        status = tp_fail(&error, TP_ERR_NOTFOUND,
                         "no collective was recorded: write \"cc_distribution\": {\"enable\": "
                         "true}");
    } else {
        print_timings(calls, &timings, json);
        print_ranks(&ranks, json);
    }
    tp_buf_free(&timings);
    tp_buf_free(&ranks);
    return status == TP_OK ? TP_EXIT_OK : tp_tool_failed(name, &error);
}

int tp_tool_collectives(int argc, char **argv)
{
    tp_calls calls;
    bool json = false;
    int result = TP_EXIT_OK;
    if (tp_tool_load_calls(argc, argv, help, &json, &calls, &result)) {
        result = report(argv[0], &calls, json);
        tp_calls_free(&calls);
    }
    return result;
}
