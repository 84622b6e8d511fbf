/* `tensorprobe view`: runs as pages for a browser. */
#include "tools/tool.h"

#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "view/library.h"
#include "view/server.h"

#define PORT 8765

static const char help[] =
    "usage: tensorprobe view [OPTION…] DIRECTORY…\n"
    "\n"
    "Shows the runs in the directories, and below them, to a browser on this machine, also while "
    "they\n"
    "go on: is the run healthy, what went wrong first, since when, where, and where do two runs "
    "part.\n"
    "Nothing is written, and nothing is fetched from anywhere.\n"
    "\n"
    "  --port N         port to listen at; without it 8765, or the next that is free; 0: any\n"
    "  --address A      address to listen at, as 0.0.0.0; without it 127.0.0.1. Elsewhere than on\n"
    "                   loopback the pages are for those alone who have the token that is printed\n"
    "  --token          asks for a token on loopback, too: other users of this machine can't look\n"
    "  --help           this text\n"
    "\n"
    "From afar: ssh -L 8765:localhost:8765 MACHINE, then http://localhost:8765/\n";

static int serve(const char *name, const char *const *directories, uint32_t count,
                 const tp_server_options *options)
{
    tp_library *library = NULL;
    tp_server *server = NULL;
    tp_error error = {0};
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGHUP);
    sigprocmask(SIG_BLOCK, &ends, NULL); /* the threads leave them to this one */
    signal(SIGPIPE, SIG_IGN);
#ifdef M_ARENA_MAX /* glibc's: what one thread gives back is for all, and a large run takes less */
    mallopt(M_ARENA_MAX, 1);
#endif
    tp_status status = tp_library_open(&library, directories, count, &error);
    if (status == TP_OK) {
        status = tp_server_open(&server, library, options, &error);
    }
    if (status != TP_OK) {
        tp_library_close(library);
        return tp_tool_failed(name, &error);
    }
    const bool is_six = options->address[0] == '[' || strchr(options->address, ':') != NULL;
    const char *token = tp_server_token(server);
    printf("http://%s%s%s:%u/%s%s\n", is_six ? "[" : "", options->address, is_six ? "]" : "",
           (unsigned)tp_server_port(server), token[0] != '\0' ? "?token=" : "", token);
    fflush(stdout);
    const struct timespec second = {.tv_sec = 1};
    while (sigtimedwait(&ends, NULL, &second) < 0) {
        tp_server_tick(server);
    }
    tp_server_close(server);
    tp_library_close(library);
    return TP_EXIT_OK;
}

int tp_tool_view(int argc, char **argv)
{
    static const struct option options[] = {{"port", required_argument, NULL, 'p'},
                                            {"address", required_argument, NULL, 'a'},
                                            {"token", no_argument, NULL, 't'},
                                            TP_TOOL_HELP,
                                            {NULL, 0, NULL, 0}};
    tp_server_options wanted = {.address = "127.0.0.1", .port = PORT, .search = true};
    int result = TP_EXIT_OK;
    int letter;
    while ((letter = tp_tool_option(argc, argv, options, help, &result)) > 0) {
        if (letter == 'p') {
            char *end;
            const unsigned long port = strtoul(optarg, &end, 10);
            if (*optarg < '0' || *optarg > '9' || *end != '\0' || port > UINT16_MAX) {
                fprintf(stderr, "tensorprobe %s: --port is a number from 0 to 65535, not %.60s\n",
                        argv[0], optarg);
                return TP_EXIT_USAGE;
            }
            wanted.port = (uint16_t)port;
            wanted.search = false;
        } else if (letter == 'a') {
            wanted.address = optarg;
        } else {
            wanted.with_token = true;
        }
    }
    if (letter < 0) {
        return result;
    }
    return argc > optind ? serve(argv[0], (const char *const *)argv + optind,
                                 (uint32_t)(argc - optind), &wanted)
                         : tp_tool_usage(argv[0]);
}
