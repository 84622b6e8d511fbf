#include "monitor/carrier.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"

#define LOG_NAME "ship.log"

extern char **environ;

static const char marker; /* whose address tells in which file this code lies */

/* The ranks of this node. */
typedef struct node {
    uint32_t first;
    uint32_t last;
    uint32_t watched; /* of them; 0: it isn't known how many there are */
    bool is_mine;     /* this rank is the first that is watched */
} node;

/* The first of these variables that holds a number. */
static bool read_variable(const char *const *names, uint32_t *number)
{
    for (; *names != NULL; names++) {
        const char *text = getenv(*names);
        if (text != NULL && text[0] >= '0' && text[0] <= '9') {
            *number = (uint32_t)strtoul(text, NULL, 10);
            return true;
        }
    }
    return false;
}

static bool is_watched(const tp_config *config, uint32_t rank)
{
    for (uint32_t i = 0; i < config->module_rank_count; i++) {
        if (config->module_ranks[i] == rank) {
            return true;
        }
    }
    return config->module_rank_count == 0;
}

/* As the launcher's environment has it: torchrun, Open MPI, Slurm, MPICH. */
static node find_node(const tp_config *config, uint32_t rank)
{
    static const char *const ranks[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID",
                                        "MPI_LOCALRANKID", NULL};
    static const char *const sizes[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "SLURM_NTASKS_PER_NODE", "MPI_LOCALNRANKS", NULL};
    uint32_t local = 0;
    uint32_t size = 0;
    if (!read_variable(ranks, &local) || !read_variable(sizes, &size) || local > rank ||
        size <= local || size > UINT32_MAX / 2) {
        /* One process for all ranks, which may be those of several nodes: none is left out. */
        uint32_t first = 0;
        while (first < rank && !is_watched(config, first)) {
            first++;
        }
        return (node){0, UINT32_MAX - 1, 0, rank == first};
    }
    node found = {.first = rank - local, .last = rank - local + size - 1, .is_mine = true};
    for (uint32_t i = found.first; i <= found.last; i++) {
        if (is_watched(config, i)) {
            found.watched++;
            found.is_mine &= i >= rank;
        }
    }
    return found;
}

/* The command belongs to the library or extension that this is a part of: as installed, or where it
 * was built. Else the search path has it. */
static void find_command(char path[TP_PATH_MAX])
{
    static const char *const places[] = {"../../../../bin/tensorprobe", "../../tools/tensorprobe",
                                         "../bin/tensorprobe", "../../bin/tensorprobe",
                                         "tensorprobe"};
    const char *given = getenv("TENSORPROBE_COMMAND");
    char folder[TP_PATH_MAX];
    Dl_info info;
    if (given != NULL && given[0] != '\0') {
        snprintf(path, TP_PATH_MAX, "%s", given);
        return;
    }
    if (dladdr(&marker, &info) != 0 && info.dli_fname != NULL &&
        strlen(info.dli_fname) < sizeof folder) {
        strcpy(folder, info.dli_fname);
        char *slash = strrchr(folder, '/');
        for (size_t i = 0; slash != NULL && i < sizeof places / sizeof places[0]; i++) {
            *slash = '\0';
            if (tp_path_join(path, folder, places[i]) == TP_OK && access(path, X_OK) == 0) {
                return;
            }
        }
    }
    strcpy(path, "tensorprobe");
}

/* Reads its configuration, goes into the background, and ends. */
static bool run(char *const *arguments, int input)
{
    pid_t child;
    int result = 0;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none); /* this thread's blocks signals */
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    const int code = posix_spawnp(&child, arguments[0], &actions, &attributes, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (code != 0) {
        tp_log(TP_LOG_WARNING,
               "can't start %s: %s; nothing is delivered: put the command `tensorprobe` into the "
               "search path, or its path into TENSORPROBE_COMMAND",
               arguments[0], strerror(code));
        return false;
    }
    pid_t ended;
    do {
        ended = waitpid(child, &result, 0);
    } while (ended < 0 && errno == EINTR);
    if (ended == child && (!WIFEXITED(result) || WEXITSTATUS(result) != 0)) {
        tp_log(TP_LOG_WARNING, "%s has failed; nothing is delivered", arguments[0]);
        return false;
    }
    return true;
}

static void start(const tp_config *config, const char *base, const tp_run_info *info,
                  const node *ranks)
{
    char command[TP_PATH_MAX];
    char directory[TP_PATH_MAX];
    char log[TP_PATH_MAX];
    char range[32];
    char expected[16];
    char run_id[sizeof info->run_id];
    char words[][12] = {"ship", "--config", "-", "--run", "--ranks", "--expect", "--detach"};
    tp_buf text = TP_BUF_INIT;
    tp_error error = {0};
    find_command(command);
    snprintf(range, sizeof range, "%" PRIu32 "-%" PRIu32, ranks->first, ranks->last);
    snprintf(expected, sizeof expected, "%" PRIu32, ranks->watched);
    memcpy(run_id, info->run_id, sizeof run_id);
    char *const arguments[] = {command, words[0], words[1], words[2], words[3], run_id,    words[4],
                               range,   words[5], expected, words[6], log,      directory, NULL};
    tp_config_put_delivery(config, &text);
    const int input = memfd_create("configuration", MFD_CLOEXEC);
    if (text.failed || input < 0 || tp_path_absolute(directory, base) != TP_OK ||
        tp_path_join(log, directory, LOG_NAME) != TP_OK ||
        tp_file_write(input, "memory", text.data, text.size, &error) != TP_OK) {
        tp_log(TP_LOG_WARNING, "no memory to start %s: nothing is delivered", command);
    } else {
        lseek(input, 0, SEEK_SET);
        if (run(arguments, input)) {
            tp_log(TP_LOG_INFO, "tensorprobe ship delivers beside the training; it writes to %s",
                   log);
        }
    }
    tp_file_close(input);
    tp_buf_free(&text);
}

void tp_carrier_start(const tp_config *config, const char *base, const tp_run_info *info)
{
    if (config->database.url == NULL && config->inform.recipient == TP_INFORM_NOBODY) {
        return;
    }
    const node ranks = find_node(config, info->rank);
    if (ranks.is_mine) {
        start(config, base, info, &ranks);
    }
}
