/* `tensorprobe report`: a run as one file for a browser. */
#include "tools/tool.h"

#include <getopt.h>
#include <stdio.h>

#include "base/error.h"
#include "base/file.h"
#include "view/report.h"

static const char help[] =
    "usage: tensorprobe report [OPTION…] DIRECTORY\n"
    "\n"
    "Writes what `tensorprobe view` shows of a run into one HTML file that needs no server and no\n"
    "network: what is wrong, the last incidents in full, the time line, maps of the whole run, and "
    "the\n"
    "series that were farthest from normal. Of several runs in the directory the last one counts.\n"
    "\n"
    "  -o, --output FILE  where to; without it report.html\n"
    "  --run ID           the run whose id begins like this\n"
    "  --help             this text\n";

static tp_status write_report(const char *directory, const char *id, const char *file,
                              tp_error *error)
{
    tp_library *library = NULL;
    tp_buf out = TP_BUF_INIT;
    tp_status status = tp_library_open(&library, &directory, 1, error);
    tp_view_run *run = status == TP_OK ? tp_library_find(library, id) : NULL;
    if (status == TP_OK && run == NULL) {
        status = tp_fail(error, TP_ERR_NOTFOUND, "%s has no run %s", directory, id);
    }
    if (status == TP_OK) {
        tp_library_wait(library, run);
        status = tp_report_put(&out, library, run, error);
    }
    if (status == TP_OK) {
        status = tp_file_replace(file, out.data, out.size, error);
    }
    tp_buf_free(&out);
    tp_library_close(library);
    return status;
}

int tp_tool_report(int argc, char **argv)
{
    static const struct option options[] = {{"output", required_argument, NULL, 'o'},
                                            {"run", required_argument, NULL, 'r'},
                                            TP_TOOL_HELP,
                                            {NULL, 0, NULL, 0}};
    const char *file = "report.html";
    const char *id = "";
    tp_error error = {0};
    int letter;
    while ((letter = getopt_long(argc, argv, "ho:", options, NULL)) != -1) {
        if (letter == 'h') {
            fputs(help, stdout);
            return TP_EXIT_OK;
        }
        if (letter == '?') { /* getopt has said what is wrong */
            return tp_tool_usage(argv[0]);
        }
        *(letter == 'o' ? &file : &id) = optarg;
    }
    if (argc - optind != 1) {
        return tp_tool_usage(argv[0]);
    }
    if (write_report(argv[optind], id, file, &error) != TP_OK) {
        return tp_tool_failed(argv[0], &error);
    }
    printf("%s\n", file);
    return TP_EXIT_OK;
}
