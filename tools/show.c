/* `tensorprobe show`: what was recorded? The summary of a journal, or tables of many. */
#include "tools/tool.h"

#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "arrow/query.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/text.h"
#include "journal/find.h"
#include "tools/names.h"
#include "tools/print.h"

#define ROWS_AT_ONCE 4096 /* of a table: its columns get their width from these */

static const char help[] =
    "usage: tensorprobe show [OPTION…] DIRECTORY [NAME…]\n"
    "\n"
    "Prints what was recorded in DIRECTORY: of one rank, of a run, or of many runs. Works while "
    "the\n"
    "run goes on. Of a single journal, without more words: its run, steps, series, cost and "
    "alerts;\n"
    "of several: a table of them. With a NAME, its values step by step. A NAME is a pattern (*, "
    "?,\n"
    "[abc]) of names, or of rows as csv files have them, as in 'blocks.3.*' or fc1.output; or the\n"
    "end of a single name or row behind a dot, as fc1.output of blocks.3.fc1.output. Ends with 1\n"
    "when there is no such name or rank, or a journal is damaged.\n"
    "\n"
    "  --alerts         after the summary every alert, not only the first 10 steps that have some\n"
    "  --series         after the summary every series: its steps, records and last norm\n"
    "\n"
    "  --plot           a line for each series of the newest run (of NAMEs alone, if there are): "
    "its norm\n"
    "                   in the last step, what is normal, and all steps as a small plot; NaN and "
    "Inf are ×\n"
    "\n"
    "  --table TABLE    runs, keys, series (the values), alerts, exponents (how many elements "
    "have\n"
    "                   which), steps, gaps (steps given up), or overview (smallest and largest\n"
    "                   norms, NaN and Inf, in spans of steps)\n"
    "  --merge          parameters, their gradients and moments whole: what the ranks of a run "
    "have\n"
    "                   of each put together, copies once (as --table merged)\n"
    "  --width N        of overview: steps in a span at most; without it, as many as there are\n"
    "  --step N         of step N alone; N-M and N- are ranges. With this, --quantity or --role\n"
    "                   the values are shown (with --alerts the alerts), as with a NAME\n"
    "  --quantity WORD  actv, actv_grad, grad_reduced …; may be given again\n"
    "  --role WORD      input, output; may be given again\n"
    "  --rank N         of rank N alone; may be given again\n"
    "  --columns A,B,…  these columns, in this order; 'all' is every one\n"
    "  --format FORMAT  table, csv, or json (an object a line; \"NaN\", \"Infinity\" are strings)\n"
    "\n"
    "  --help           this text\n";

/* What people want to see first; csv and JSON have every column. Of a single journal without the
 * first two. */
static const char *const first_columns[] = {
    [TP_TABLE_RUNS] = "run,rank,opened,attempts,steps,first_step,last_step,closed,directory",
    [TP_TABLE_KEYS] = "run,rank,vpp_stage,quantity,row",
    [TP_TABLE_SERIES] = "run,rank,step,micro_step,quantity,row,norm,min,max,mean,nan,pos_inf,"
                        "neg_inf,dtype,shape",
    [TP_TABLE_ALERTS] = "run,rank,step,rule,quantity,row,op,value,baseline,more",
    [TP_TABLE_STEPS] = "run,rank,attempt,step,partial,skipped,gap,count,unfilled,errors,time",
    [TP_TABLE_GAPS] = "run,rank,attempt,step,count,time",
    [TP_TABLE_MERGED] =
        "run,step,quantity,name,parts,missing,norm,min,max,mean,nan,pos_inf,neg_inf,"
        "count",
    [TP_TABLE_EXPONENTS] = "run,rank,step,micro_step,quantity,row,dtype,exponent,elements",
    [TP_TABLE_OVERVIEW] = "run,rank,first_step,last_step,quantity,row,count,nan,inf,norm_min,"
                          "norm_max",
};

/* The command line. Lists are pointers into argv, one behind the other. */
struct request {
    tp_query_options query;
    tp_buf names, ranks, columns;
    tp_buf texts;       /* names that stand for what was given */
    char *column_words; /* as given */
    int format;
    bool alerts, series, steps, keys, width, plot; /* given; keys: --quantity or --role */
};

static bool read_number(const char **text, uint64_t *number)
{
    char *end;
    if (**text < '0' || **text > '9') {
        return false;
    }
    *number = strtoull(*text, &end, 10);
    *text = end;
    return true;
}

static bool read_steps(const char *text, tp_query_options *query)
{
    if (!read_number(&text, &query->first_step)) {
        return false;
    }
    query->last_step = query->first_step;
    if (*text == '-') {
        query->last_step = UINT64_MAX;
        text++;
        if (*text != '\0' && !read_number(&text, &query->last_step)) {
            return false;
        }
    }
    return *text == '\0' && query->first_step <= query->last_step;
}

static tp_status read_word(const char *const *words, size_t count, const char *word, int *number)
{
    for (size_t i = 1; i < count; i++) {
        if (strcmp(words[i], word) == 0) {
            *number = (int)i;
            return TP_OK;
        }
    }
    return TP_ERR_ARGUMENT;
}

static tp_status read_option(struct request *request, int letter, const char *text, tp_error *error)
{
    static const char *const formats[] = {
        [TP_PRINT_TABLE] = "table", [TP_PRINT_CSV] = "csv", [TP_PRINT_JSON] = "json"};
    uint64_t rank = 0;
    switch (letter) {
    case 'a':
        request->alerts = true;
        return TP_OK;
    case 's':
        request->series = true;
        return TP_OK;
    case 'p':
        request->plot = true;
        return TP_OK;
    case 't':
        request->query.table = tp_table_from_name(text);
        if (request->query.table == 0) {
            return tp_fail(error, TP_ERR_ARGUMENT,
                           "no such table: %.60s; write runs, keys, series, alerts, exponents, "
                           "steps, gaps, overview or merged",
                           text);
        }
        return TP_OK;
    case 'm':
        request->query.table = TP_TABLE_MERGED;
        return TP_OK;
    case 'n':
        request->steps = true;
        return read_steps(text, &request->query)
                   ? TP_OK
                   : tp_fail(error, TP_ERR_ARGUMENT, "no step: %.60s; write 7, 7-9 or 7-", text);
    case 'q':
        request->keys = true;
        return tp_selection_add_quantity(&request->query.selection, text, error);
    case 'o':
        request->keys = true;
        return tp_selection_add_role(&request->query.selection, text, error);
    case 'w':
        request->width = true;
        return read_number(&text, &request->query.width) && *text == '\0'
                   ? TP_OK
                   : tp_fail(error, TP_ERR_ARGUMENT, "no width: %.60s; write a number", text);
    case 'r':
        if (!read_number(&text, &rank) || *text != '\0' || rank > UINT32_MAX) {
            return tp_fail(error, TP_ERR_ARGUMENT, "no rank: %.60s; write a number", text);
        }
        tp_buf_put_u32(&request->ranks, (uint32_t)rank);
        return TP_OK;
    case 'f':
        return read_word(formats, sizeof formats / sizeof *formats, text, &request->format) == TP_OK
                   ? TP_OK
                   : tp_fail(error, TP_ERR_ARGUMENT,
                             "no such format: %.60s; write table, csv or json", text);
    default:
        return TP_OK;
    }
}

/* Cuts the words of a list apart at its commas. */
static void add_columns(struct request *request, char *words, bool is_single)
{
    char *rest = NULL;
    for (char *word = strtok_r(words, ",", &rest); word != NULL;
         word = strtok_r(NULL, ",", &rest)) {
        if (!is_single || (strcmp(word, "run") != 0 && strcmp(word, "rank") != 0)) {
            tp_buf_put(&request->columns, &word, sizeof(const char *));
        }
    }
}

static uint64_t terminal_width(void)
{
    struct winsize size;
    return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

static int print_table(const char *name, struct request *request, const tp_journals *journals)
{
    char defaults[256];
    tp_query_options *options = &request->query;
    tp_query *query = NULL;
    tp_error error = {0};
    snprintf(defaults, sizeof defaults, "%s", first_columns[options->table]);
    if (request->column_words != NULL && strcmp(request->column_words, "all") != 0) {
        add_columns(request, request->column_words, false);
    } else if (request->column_words == NULL && request->format == TP_PRINT_TABLE) {
        add_columns(request, defaults, journals->count == 1);
    }
    options->directories = (const char *const *)journals->directories;
    options->directory_count = journals->count;
    options->columns = (const char *const *)(const void *)request->columns.data;
    options->column_count = (uint32_t)(request->columns.size / sizeof(const char *));
    options->ranks = (const uint32_t *)(const void *)request->ranks.data;
    options->rank_count = (uint32_t)(request->ranks.size / sizeof(uint32_t));
    options->selection.names = (const char *const *)(const void *)request->names.data;
    options->selection.name_count = (uint32_t)(request->names.size / sizeof(const char *));
    options->batch_rows = ROWS_AT_ONCE;
    tp_status status = request->columns.failed || request->ranks.failed || request->names.failed
                           ? tp_fail(&error, TP_ERR_NOMEM, "no memory")
                           : tp_query_new(&query, options, &error);
    struct ArrowArrayStream stream;
    if (status == TP_OK) {
        status = tp_query_stream(query, &stream);
        if (status == TP_OK) {
            status = tp_print_stream(&stream, request->format, terminal_width(), &error);
            stream.release(&stream);
        } else {
            tp_fail(&error, status, "no memory");
        }
    }
    const uint64_t damaged = status == TP_OK ? tp_query_damaged(query) : 0;
    if (damaged > 0) {
        status = tp_fail(&error, TP_ERR_CORRUPT, "passed over %llu damaged place%s",
                         (unsigned long long)damaged, tp_plural(damaged));
    }
    tp_query_drop(query);
    return status == TP_OK ? TP_EXIT_OK : tp_tool_failed(name, &error);
}

/* The table that is meant when none is named; 0: the summary. */
static uint32_t choose_table(const struct request *request, const tp_journals *journals)
{
    if (request->query.table != 0) {
        return request->query.table;
    }
    if (request->names.size > 0 || request->steps || request->keys) {
        return request->alerts ? TP_TABLE_ALERTS : TP_TABLE_SERIES;
    }
    return journals->count > 1 || request->format != TP_PRINT_TABLE || request->ranks.size > 0 ||
                   request->column_words != NULL
               ? TP_TABLE_RUNS
               : 0;
}

/* A filter that says nothing about the table would seem to have been heard. */
static tp_status check_filters(const struct request *request, tp_error *error)
{
    const uint32_t table = request->query.table;
    const bool has_keys = table == TP_TABLE_KEYS || table == TP_TABLE_SERIES ||
                          table == TP_TABLE_ALERTS || table == TP_TABLE_OVERVIEW ||
                          table == TP_TABLE_MERGED || table == TP_TABLE_EXPONENTS;
    if (table != 0 && !has_keys && (request->names.size > 0 || request->keys)) {
        return tp_fail(error, TP_ERR_ARGUMENT,
                       "this table has no names, quantities and roles: leave them away, or write "
                       "--table keys, series, alerts or overview");
    }
    if ((table == TP_TABLE_RUNS || table == TP_TABLE_KEYS) && request->steps) {
        return tp_fail(error, TP_ERR_ARGUMENT,
                       "this table is of all steps: leave --step away, or write --table series, "
                       "alerts, steps, gaps or overview");
    }
    if (request->plot &&
        (request->steps || request->keys || request->ranks.size > 0 || request->series ||
         request->alerts || request->column_words != NULL || request->format != TP_PRINT_TABLE)) {
        return tp_fail(error, TP_ERR_ARGUMENT,
                       "--plot is of all steps and ranks of the newest run: it goes with names "
                       "alone");
    }
    if (table != TP_TABLE_OVERVIEW && request->width) {
        return tp_fail(error, TP_ERR_ARGUMENT, "--width is of --table overview");
    }
    if (table != 0 && (request->series || (request->alerts && table != TP_TABLE_ALERTS))) {
        return tp_fail(error, TP_ERR_ARGUMENT,
                       "--series and --alerts add to the summary of a single journal, which has no "
                       "filters; write --table series or --table alerts");
    }
    return TP_OK;
}

static int show(const char *name, const char *directory, struct request *request)
{
    tp_journals journals;
    tp_error error = {0};
    if (tp_journals_find(&journals, directory, &error) != TP_OK) {
        return tp_tool_failed(name, &error);
    }
    int result;
    request->query.table = choose_table(request, &journals);
    if (check_filters(request, &error) != TP_OK) {
        tp_tool_failed(name, &error);
        result = TP_EXIT_USAGE;
    } else if (tp_names_resolve(&journals, &request->names, &request->ranks, &request->texts,
                                &error) != TP_OK) {
        result = tp_tool_failed(name, &error);
    } else if (request->plot) {
        result =
            tp_tool_plot(name, directory, (const char *const *)(const void *)request->names.data,
                         request->names.size / sizeof(const char *));
    } else if (request->query.table != 0) {
        result = print_table(name, request, &journals);
    } else {
        result = tp_tool_summary(name, journals.directories[0], request->alerts, request->series);
    }
    tp_journals_free(&journals);
    return result;
}

int tp_tool_show(int argc, char **argv)
{
    static const struct option options[] = {{"alerts", no_argument, NULL, 'a'},
                                            {"series", no_argument, NULL, 's'},
                                            {"plot", no_argument, NULL, 'p'},
                                            {"table", required_argument, NULL, 't'},
                                            {"merge", no_argument, NULL, 'm'},
                                            {"step", required_argument, NULL, 'n'},
                                            {"quantity", required_argument, NULL, 'q'},
                                            {"role", required_argument, NULL, 'o'},
                                            {"rank", required_argument, NULL, 'r'},
                                            {"width", required_argument, NULL, 'w'},
                                            {"columns", required_argument, NULL, 'c'},
                                            {"format", required_argument, NULL, 'f'},
                                            TP_TOOL_HELP,
                                            {NULL, 0, NULL, 0}};
    struct request request = {.query = tp_query_options_defaults(0), .format = TP_PRINT_TABLE};
    int result = TP_EXIT_OK;
    int letter;
    while ((letter = tp_tool_option(argc, argv, options, help, &result)) > 0) {
        tp_error error = {0};
        if (letter == 'c') {
            request.column_words = optarg;
        } else if (read_option(&request, letter, optarg, &error) != TP_OK) {
            tp_tool_failed(argv[0], &error);
            letter = -1;
            result = TP_EXIT_USAGE;
            break;
        }
    }
    if (letter == 0 && optind == argc) {
        result = tp_tool_usage(argv[0]);
    } else if (letter == 0) {
        for (int i = optind + 1; i < argc; i++) {
            tp_buf_put(&request.names, &argv[i], sizeof(const char *));
        }
        result = show(argv[0], argv[optind], &request);
    }
    tp_buf_free(&request.names);
    tp_buf_free(&request.texts);
    tp_buf_free(&request.ranks);
    tp_buf_free(&request.columns);
    return result;
}
