/* `tensorprobe diff`: where two runs part. */
#include "tools/tool.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "tensorprobe/reader.h"
#include "view/parting.h"

#define SHOWN 10 /* series of the step in which they part */

static const char help[] =
    "usage: tensorprobe diff [OPTION…] A B\n"
    "\n"
    "Compares what two runs recorded, step by step and value by value, and prints the first step "
    "at\n"
    "which they differ by more than rounding explains, with the tensors that differ there in the "
    "order\n"
    "of execution: what comes first went another way first. Series are found by their names, "
    "counted\n"
    "over pipeline stages and without what wrappers put into them, and by rank; one that is on "
    "another\n"
    "rank in B is found there. Where the runs are spread over ranks differently (plain, DDP, FSDP, "
    "tensor\n"
    "parallel …), parameters, their gradients and moments are put together from their parts, and "
    "what\n"
    "ranks have for themselves isn't compared.\n"
    "A and B are directories of a rank, or of the ranks of one run.\n"
    "\n"
    "  --tolerance X    allowed difference, relative to the size of what is in a tensor; 0: same "
    "values.\n"
    "                   Without it what is usual for the dtype: 1.3e-6 for float32, 1.6e-2 for "
    "bfloat16,\n"
    "                   1e-3 for float16, 1e-7 for float64\n"
    "  --step N         compare step N, N- (from N on), -N (up to N) or N-M alone\n"
    "  --rank N:M       compare rank N of A with rank M of B\n"
    "  --all            print every series that differs in that step, not the first 10\n"
    "  --help           this text\n"
    "\n"
    "exit codes: 0 no difference, 1 they differ or can't be compared, 2 wrong command line\n";

/* A number at *text, which then stands behind it. */
static bool read_number(const char **text, uint64_t *number)
{
    char *end;
    errno = 0;
    if (**text < '0' || **text > '9') {
        return false;
    }
    *number = strtoull(*text, &end, 10);
    *text = end;
    return errno == 0;
}

static bool read_steps(const char *text, tp_parting_options *options)
{
    const bool has_first = read_number(&text, &options->first_step);
    if (*text == '\0') {
        options->last_step = options->first_step;
        return has_first;
    }
    if (*text != '-') {
        return false;
    }
    text++;
    const bool has_last = read_number(&text, &options->last_step);
    return *text == '\0' && (has_first || has_last) && options->first_step <= options->last_step;
}

static bool read_ranks(const char *text, tp_parting_options *options)
{
    uint64_t a = 0;
    uint64_t b = 0;
    if (!read_number(&text, &a) || *text++ != ':' || !read_number(&text, &b) || *text != '\0' ||
        a > UINT32_MAX || b > UINT32_MAX) {
        return false;
    }
    options->rank_a = (int64_t)a;
    options->rank_b = (int64_t)b;
    return true;
}

static bool read_tolerance(const char *text, double *tolerance)
{
    char *end;
    *tolerance = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*tolerance) && *tolerance >= 0;
}

/* Which run the journals are of, and that they are of one. */
static tp_status name_run(const tp_journals *journals, const char *directory, const char *letter,
                          tp_error *error)
{
    char run[64] = "";
    for (uint32_t i = 0; i < journals->count; i++) {
        tp_reader *reader = NULL;
        const tp_status status = tp_reader_open(&reader, journals->directories[i], error);
        if (status != TP_OK) {
            return status;
        }
        const char *id = tp_reader_run(reader)->run_id;
        const bool is_other = i > 0 && strcmp(run, id) != 0;
        if (is_other) {
            tp_fail(error, TP_ERR_ARGUMENT,
                    "%s holds several runs (%.40s, %.40s …); name the directory of one, as %s",
                    directory, run, id, journals->directories[journals->count - 1]);
        }
        snprintf(run, sizeof run, "%s", id);
        tp_reader_close(&reader);
        if (is_other) {
            return TP_ERR_ARGUMENT;
        }
    }
    printf("%s  %s: run %s, %" PRIu32 " %s\n", letter, directory, run, journals->count,
           journals->count == 1 ? "rank" : "ranks");
    return TP_OK;
}

static void print_difference(const tp_difference *one)
{
    const char *quantity = tp_quantity_name(one->quantity);
    char ranks[48];
    char by[64] = "";
    if (one->rank_a == TP_ALL_RANKS) {
        snprintf(ranks, sizeof ranks, "all");
    } else if (one->rank_a == one->rank_b) {
        snprintf(ranks, sizeof ranks, "%" PRIu32, one->rank_a);
    } else {
        snprintf(ranks, sizeof ranks, "%" PRIu32 ":%" PRIu32, one->rank_a, one->rank_b);
    }
    if (!isnan(one->difference)) {
        snprintf(by, sizeof by, "%.2e of %.2g", one->difference, one->tolerance);
    }
    printf("  %4s %5" PRIu32 "  %-14s %-8s %14.8g %14.8g  %-16s %s\n", ranks, one->micro_step,
           quantity != NULL ? quantity : "?", one->statistic, one->a, one->b, by, one->row);
}

static void print_left_out(const tp_parting *found)
{
    if (found->apart > 0) {
        printf("not compared: %" PRIu64 " value%s that depend on how a run is spread over ranks\n",
               found->apart, tp_plural(found->apart));
    }
    if (found->only_a + found->only_b > 0) {
        printf("not compared: %" PRIu64 " value%s that only A has, %" PRIu64 " that only B has\n",
               found->only_a, tp_plural(found->only_a), found->only_b);
    }
    if (found->only_steps_a + found->only_steps_b > 0) {
        printf("not compared: %" PRIu64 " step%s that only A has, %" PRIu64 " that only B has\n",
               found->only_steps_a, tp_plural(found->only_steps_a), found->only_steps_b);
    }
}

static int print_parting(const char *name, const tp_parting *found, bool all)
{
    const tp_difference *rows = (const tp_difference *)(const void *)found->found.data;
    const uint64_t count = found->found.size / sizeof *rows;
    if (found->values == 0) {
        tp_error nothing = {0};
        print_left_out(found);
        tp_fail(&nothing, TP_ERR_NOTFOUND, "the runs have no value in common");
        return tp_tool_failed(name, &nothing);
    }
    if (!found->differs) {
        printf("no difference: %" PRIu64 " value%s in %" PRIu64 " step%s, the last %" PRIu64 "\n",
               found->values, tp_plural(found->values), found->steps, tp_plural(found->steps),
               found->step);
        print_left_out(found);
        return TP_EXIT_OK;
    }
    const char *quantity = tp_quantity_name(rows[0].quantity);
    printf("first difference: step %" PRIu64 ", %s (%s), %s %.8g and %.8g\n", found->step,
           rows[0].row, quantity != NULL ? quantity : "?", rows[0].statistic, rows[0].a, rows[0].b);
    printf("before it: %" PRIu64 " step%s without a difference; in it: %" PRIu64 " of %" PRIu64
           " value%s\n\n",
           found->steps - 1, tp_plural(found->steps - 1), count, found->in_step,
           found->in_step == 1 ? " differs" : "s differ");
    printf("  rank micro  %-14s %-8s %14s %14s  %-16s %s\n", "quantity", "of it", "A", "B",
           "differs by", "series, as the step computes them");
    for (uint64_t i = 0; i < count && (all || i < SHOWN); i++) {
        print_difference(&rows[i]);
    }
    if (!all && count > SHOWN) {
        printf("  … and %" PRIu64 " more; --all prints all of them\n", count - SHOWN);
    }
    print_left_out(found);
    return TP_EXIT_FAILED;
}

static int compare(const char *name, char **directories, const tp_parting_options *options,
                   bool all)
{
    tp_journals journals[2] = {{0}};
    tp_parting found = {0};
    tp_error error = {0};
    tp_status status = TP_OK;
    for (int i = 0; i < 2 && status == TP_OK; i++) {
        status = tp_journals_find(&journals[i], directories[i], &error);
        if (status == TP_OK) {
            status = name_run(&journals[i], directories[i], i == 0 ? "A" : "B", &error);
        }
    }
    if (status == TP_OK) {
        status = tp_parting_find(&found, &journals[0], &journals[1], options, &error);
    }
    const int result =
        status == TP_OK ? print_parting(name, &found, all) : tp_tool_failed(name, &error);
    tp_parting_free(&found);
    tp_journals_free(&journals[0]);
    tp_journals_free(&journals[1]);
    return result;
}

int tp_tool_diff(int argc, char **argv)
{
    static const struct option options[] = {{"tolerance", required_argument, NULL, 't'},
                                            {"step", required_argument, NULL, 'n'},
                                            {"rank", required_argument, NULL, 'r'},
                                            {"all", no_argument, NULL, 'a'},
                                            TP_TOOL_HELP,
                                            {NULL, 0, NULL, 0}};
    tp_parting_options wanted = tp_parting_defaults();
    bool all = false;
    int result = TP_EXIT_OK;
    int letter;
    while ((letter = tp_tool_option(argc, argv, options, help, &result)) > 0) {
        const char *expected = NULL;
        if (letter == 'a') {
            all = true;
        } else if (letter == 't' && !read_tolerance(optarg, &wanted.tolerance)) {
            expected = "--tolerance is a number from 0 on, as in 1e-5";
        } else if (letter == 'n' && !read_steps(optarg, &wanted)) {
            expected = "--step is N, N-, -N or N-M";
        } else if (letter == 'r' && !read_ranks(optarg, &wanted)) {
            expected = "--rank is N:M, a rank of A and one of B";
        }
        if (expected != NULL) {
            fprintf(stderr, "tensorprobe %s: %s, not %.60s\n", argv[0], expected, optarg);
            return TP_EXIT_USAGE;
        }
    }
    if (letter < 0) {
        return result;
    }
    return argc - optind == 2 ? compare(argv[0], argv + optind, &wanted, all)
                              : tp_tool_usage(argv[0]);
}
