/* The `tensorprobe` command: finds the subcommand and hands over. */
#include "tools/tool.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "tensorprobe/version.h"

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    {"show", tp_tool_show, "print what the journal of a run holds"},
    {"recover", tp_tool_recover,
     "bring csv, TensorBoard, SQLite and alert files up to the journal's end"},
    {"view", tp_tool_view, "show runs in a browser, also while they go on"},
    {"tail", tp_tool_tail, "show a run in the terminal, also while it goes on"},
    {"report", tp_tool_report, "write a run as one HTML file, for who has no server"},
    {"diff", tp_tool_diff, "find the step and tensor at which two runs part"},
    {"diff-ranks", tp_tool_diff_ranks,
     "find where ranks disagree on collectives, and who is missing"},
    {"collectives", tp_tool_collectives,
     "sum up sizes and times of collectives, and who was waited for"},
    {"export", tp_tool_export, "write what was recorded as parquet, csv, trend.db …"},
    {"ship", tp_tool_ship, "carry journals to a database, and alerts to people"},
    {"init", tp_tool_init, "print a configuration to begin with"},
    {"analyse", tp_tool_analyse, "say what went wrong first, over all ranks, and why"},
    {"backtest", tp_tool_backtest, "run alert rules over what was recorded"},
    {"check", tp_tool_check, "validate a configuration file, and say what it will do"},
    {"selftest", tp_tool_selftest, "prove that everything holds on this machine"},
};

static void print_help(FILE *out)
{
    fputs("usage: tensorprobe COMMAND [OPTION…] …\n\ncommands:\n", out);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        fprintf(out, "  %-11s %s\n", commands[i].name, commands[i].summary);
    }
    fputs("\noptions:\n"
          "  --help    this text; `tensorprobe COMMAND --help` says more\n"
          "  --version print the version\n"
          "\n"
          "exit codes: 0 fine, 1 something is wrong or failed, 2 wrong command line\n",
          out);
}

int tp_tool_option(int argc, char **argv, const struct option *options, const char *help,
                   int *result)
{
    const int letter = getopt_long(argc, argv, "h", options, NULL);
    if (letter == -1) {
        return 0;
    }
    if (letter == 'h') {
        fputs(help, stdout);
        *result = TP_EXIT_OK;
        return -1;
    }
    if (letter == '?') { /* getopt has said what is wrong */
        *result = tp_tool_usage(argv[0]);
        return -1;
    }
    return letter;
}

int tp_tool_failed(const char *name, const tp_error *error)
{
    char text[1024];
    fprintf(stderr, "tensorprobe %s: %s\n", name, tp_error_format(error, text, sizeof text));
    return TP_EXIT_FAILED;
}

int tp_tool_usage(const char *name)
{
    fprintf(stderr, "try `tensorprobe %s --help`\n", name);
    return TP_EXIT_USAGE;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return TP_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return TP_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("tensorprobe " TP_VERSION_STRING);
        return TP_EXIT_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "tensorprobe: there is no command %s\n\n", argv[1]);
    print_help(stderr);
    return TP_EXIT_USAGE;
}
