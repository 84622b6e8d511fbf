/* `tensorprobe diff-ranks`: where the ranks of a run disagree on their collectives. */
#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "base/text.h"
#include "tools/calls.h"
#include "tools/tool.h"
#include "view/agreement.h"

static const char help[] =
    "usage: tensorprobe diff-ranks [OPTION…] DIRECTORY…\n"
    "\n"
    "Compares the collectives that the ranks of a run have recorded (cc_distribution), group by\n"
    "group. Prints the first call at which ranks of a group differ in operation, shape, dtype or\n"
    "root, and of a run that hung who has not arrived at the last call, and where it is. A run "
    "that\n"
    "was killed needs `tensorprobe recover` first, which brings in what its last step had.\n"
    "\n"
    "  --step N         look at step N, N- (from N on), -N (up to N) or N-M alone\n"
    "  --help           this text\n"
    "\n"
    "exit codes: 0 they agree, 1 they don't or can't be compared (as long as ranks have open "
    "steps\n"
    "in black boxes: they still run, or were killed), 2 wrong command line\n";

/* Ranks that run or were killed: a call at which they hang would be in their open steps. */
static uint32_t count_open(const tp_calls *calls)
{
    uint32_t open = 0;
    for (uint32_t i = 0; i < calls->rank_count; i++) {
        open += tp_calls_rank(calls, i)->has_box;
    }
    return open;
}

static int report(const char *name, const tp_calls *calls)
{
    tp_buf text = TP_BUF_INIT;
    bool agree = true;
    uint64_t pairs = 0;
    for (uint64_t i = 0; i < calls->count; i++) {
        pairs += tp_call_is_pair(tp_calls_at(calls, i));
    }
    printf("%" PRIu32 " rank%s, %" PRIu64 " call%s of groups, %" PRIu64 " from one to another\n",
           calls->rank_count, tp_plural(calls->rank_count), calls->count - pairs,
           tp_plural(calls->count - pairs), pairs);
    if (calls->damaged > 0) {
        printf("%" PRIu64 " damaged frame%s left out\n", calls->damaged,
               calls->damaged == 1 ? " is" : "s are");
    }
    tp_agreement_report(calls, &text, &agree);
    if (text.failed) {
        tp_error error = {0};
        tp_fail(&error, TP_ERR_NOMEM, "no memory for the report");
        tp_buf_free(&text);
        return tp_tool_failed(name, &error);
    }
    if (text.size > 0) {
        fwrite(text.data, 1, text.size, stdout);
    }
    tp_buf_free(&text);
    if (calls->count == 0) {
        puts("no collective was recorded: write \"cc_distribution\": {\"enable\": true}");
        return TP_EXIT_FAILED;
    }
    const uint32_t open = count_open(calls);
    if (agree && open > 0) {
        printf("all ranks agree so far, but the open steps of %" PRIu32
               " are in black boxes: when their processes are gone, `tensorprobe recover` brings "
               "them in; then ask again\n",
               open);
        return TP_EXIT_FAILED;
    }
    if (agree) {
        puts("all ranks agree");
    }
    return agree ? TP_EXIT_OK : TP_EXIT_FAILED;
}

int tp_tool_diff_ranks(int argc, char **argv)
{
    tp_calls calls;
    int result = TP_EXIT_OK;
    if (tp_tool_load_calls(argc, argv, help, NULL, &calls, &result)) {
        result = report(argv[0], &calls);
        tp_calls_free(&calls);
    }
    return result;
}
