/* `tensorprobe ship`: journals to a database, alerts to people. */
#include "tools/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "ship/ship.h"

#define PATIENCE_SECONDS 30
#define PATIENCE_SECONDS_DETACHED 3600
#define NICENESS 10

static const char help[] =
    "usage: tensorprobe ship (--to URL | --config FILE) [OPTION…] DIRECTORY\n"
    "\n"
    "Carries the journals below DIRECTORY to a database server or a collector of metrics, and "
    "alerts "
    "to\n"
    "people, each once: running it again, or after it was killed, goes on where it ended. A "
    "training\n"
    "whose configuration says so starts it by itself.\n"
    "\n"
    "  --to URL         postgresql://USER:PASSWORD@HOST:PORT/DATABASE, mysql+pymysql://…, or\n"
    "                   http://HOST:PORT/PATH for line protocol. Better than a password that "
    "others\n"
    "                   can see in the list of processes: '$NAME' is the environment variable "
    "NAME,\n"
    "                   file:PATH the first line of a file\n"
    "  --config FILE    what to deliver where, from `database` and `alert.inform` of a "
    "configuration;\n"
    "                   -: from standard input\n"
    "  --follow         goes on until nobody writes the journals any more\n"
    "  --run ID         the journals of this run alone\n"
    "  --ranks A-B      those of these ranks alone\n"
    "  --expect N       with --detach: so many journals will be there\n"
    "  --patience S     gives up when a server is away for S seconds (30; with --detach 3600) and "
    "nothing\n"
    "                   new comes any more\n"
    "  --detach LOG     runs in the background, says what there is to say in the file LOG, and "
    "waits for\n"
    "                   journals as long as the process lives that has started it\n"
    "  --help           this text\n";

typedef struct arguments {
    tp_ship_options options;
    const char *to;
    const char *config;
    const char *log; /* NULL: not detached */
    int64_t patience;
} arguments;

static int stop;

static void on_signal(int number)
{
    (void)number;
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
}

/* The first signal ends it in order, the second at once. */
static void watch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static bool read_number(const char *text, uint32_t *number)
{
    char *end;
    const unsigned long value = strtoul(text, &end, 10);
    *number = (uint32_t)value;
    return *text >= '0' && *text <= '9' && *end == '\0' && value < UINT32_MAX;
}

static bool read_ranks(const char *text, tp_ship_scope *scope)
{
    char first[16];
    const char *dash = strchr(text, '-');
    if (dash == NULL || (size_t)(dash - text) >= sizeof first) {
        return false;
    }
    memcpy(first, text, (size_t)(dash - text));
    first[dash - text] = '\0';
    return read_number(first, &scope->first_rank) && read_number(dash + 1, &scope->last_rank) &&
           scope->first_rank <= scope->last_rank;
}

/* One option; false: its value is wrong. */
static bool read_option(arguments *args, int letter)
{
    tp_ship_scope *scope = &args->options.scope;
    uint32_t number = 0;
    switch (letter) {
    case 't':
        args->to = optarg;
        return true;
    case 'c':
        args->config = optarg;
        return true;
    case 'f':
        scope->follow = true;
        return true;
    case 'i':
        scope->run_id = optarg;
        return true;
    case 'r':
        return read_ranks(optarg, scope);
    case 'e':
        return read_number(optarg, &scope->expected);
    case 'p':
        if (!read_number(optarg, &number)) {
            return false;
        }
        args->patience = number;
        return true;
    default:
        args->log = optarg;
        return true;
    }
}

/* Where to, from a configuration or the command line. */
static tp_status read_config(const arguments *args, tp_config *config, tp_error *error)
{
    tp_buf text = TP_BUF_INIT;
    tp_status status = TP_OK;
    tp_config_defaults(config, true);
    if (args->config != NULL && strcmp(args->config, "-") != 0) {
        status = tp_config_read(config, args->config, error);
    } else if (args->config != NULL) {
        status = tp_file_read_at_most("/dev/stdin", (size_t)1 << 24, &text, error);
        if (status == TP_OK) {
            status = tp_config_parse(config, (const char *)text.data, text.size, "standard input",
                                     error);
        }
    }
    tp_buf_free(&text);
    if (status == TP_OK && args->to != NULL) {
        tp_free(config->database.url);
        config->database.url = tp_strdup(args->to);
        if (config->database.url == NULL) {
            tp_config_free(config);
            status = tp_fail(error, TP_ERR_NOMEM, "no memory for a URL");
        }
    }
    return status;
}

/* Of two processes for the same run and ranks (a training that goes on from a checkpoint starts
 * another) the later one waits until the earlier one has ended. Each has a byte of the log to lock,
 * far behind its end. Where there are no locks both deliver, which does no more than cost. */
static void take_turn(int log, const tp_ship_scope *scope)
{
    uint32_t hash = 2166136261u ^ scope->first_rank;
    for (const char *c = scope->run_id != NULL ? scope->run_id : ""; *c != '\0'; c++) {
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    }
    struct flock mine = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = (off_t)hash + ((off_t)1 << 40),
                         .l_len = 1};
    while (fcntl(log, F_OFD_SETLK, &mine) != 0 && (errno == EAGAIN || errno == EACCES) &&
           __atomic_load_n(&stop, __ATOMIC_ACQUIRE) == 0) {
        sleep(1);
    }
}

/* Into the background: nothing of the process that started this one is held or shared. *trainer
 * tells when that ends. */
static tp_status detach(const char *log, int *trainer, tp_error *error)
{
    uint64_t size;
    int fd = -1;
    *trainer = (int)syscall(SYS_pidfd_open, getppid(), 0);
    tp_status status = tp_file_append(log, &fd, &size, error);
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (status != TP_OK || nothing < 0) {
        tp_file_close(fd);
        return status != TP_OK ? status : tp_fail(error, TP_ERR_IO, "can't open /dev/null");
    }
    const pid_t child = fork();
    if (child != 0) {
        if (child < 0) {
            return tp_fail(error, TP_ERR_IO, "can't start a process");
        }
        _exit(0);
    }
    setsid();
    if (nice(NICENESS) == -1) {
        /* as it was: no harm */
    }
    dup2(nothing, STDIN_FILENO);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    close(nothing);
    tp_file_close(fd);
    return TP_OK;
}

static int ship(const char *name, arguments *args)
{
    tp_config config;
    tp_error error = {0};
    tp_ship_report report;
    tp_ship_scope *scope = &args->options.scope;
    if (read_config(args, &config, &error) != TP_OK) {
        return tp_tool_failed(name, &error);
    }
    tp_status status = tp_ship_check(&config, &error);
    if (status == TP_OK && args->log != NULL) {
        status = detach(args->log, &scope->trainer, &error);
    }
    if (status == TP_OK) {
        watch_signals();
        if (args->log != NULL) {
            take_turn(STDERR_FILENO, scope);
        }
        args->options.config = &config;
        status = tp_ship_run(&args->options, &stop, &report, &error);
    }
    tp_config_free(&config);
    if (status != TP_OK && status != TP_END) {
        return tp_tool_failed(name, &error);
    }
    printf("%s: %" PRIu64 " step%s of %" PRIu64 " journal%s delivered", scope->directory,
           report.steps, tp_plural(report.steps), report.journals, tp_plural(report.journals));
    if (report.messages > 0) {
        printf(", %" PRIu64 " message%s sent", report.messages, tp_plural(report.messages));
    }
    puts(status == TP_END ? "; stopped" : "");
    return TP_EXIT_OK;
}

int tp_tool_ship(int argc, char **argv)
{
    static const struct option options[] = {{"to", required_argument, NULL, 't'},
                                            {"config", required_argument, NULL, 'c'},
                                            {"follow", no_argument, NULL, 'f'},
                                            {"run", required_argument, NULL, 'i'},
                                            {"ranks", required_argument, NULL, 'r'},
                                            {"expect", required_argument, NULL, 'e'},
                                            {"patience", required_argument, NULL, 'p'},
                                            {"detach", required_argument, NULL, 'd'},
                                            TP_TOOL_HELP,
                                            {NULL, 0, NULL, 0}};
    arguments args = {.options.scope = {.last_rank = UINT32_MAX, .trainer = -1}, .patience = -1};
    int result = TP_EXIT_OK;
    int letter;
    while ((letter = tp_tool_option(argc, argv, options, help, &result)) > 0) {
        if (!read_option(&args, letter)) {
            fprintf(stderr, "tensorprobe %s: a wrong number: %.60s\n", argv[0], optarg);
            return TP_EXIT_USAGE;
        }
    }
    if (letter < 0) {
        return result;
    }
    if (optind != argc - 1 || (args.to == NULL && args.config == NULL)) {
        fprintf(stderr, "tensorprobe %s: %s\n", argv[0],
                optind == argc      ? "which directory?"
                : optind < argc - 1 ? "one directory at a time: all journals below it are delivered"
                                    : "where to? --to URL or --config FILE says so");
        return tp_tool_usage(argv[0]);
    }
    args.options.scope.directory = argv[optind];
    if (args.log != NULL) {
        args.options.scope.follow = true;
        close_range(3, ~0u, 0);
    }
    if (args.patience < 0) {
        args.patience = args.log != NULL ? PATIENCE_SECONDS_DETACHED : PATIENCE_SECONDS;
    }
    args.options.patience_ns = (uint64_t)args.patience * 1000000000u;
    return ship(argv[0], &args);
}
