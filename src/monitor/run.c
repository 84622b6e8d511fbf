#include "monitor/run.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "monitor/box.h"

#define LOCK_NAME "lock"
#define JOURNAL_NAME "journal"

const char *tp_run_base_directory(const char *given)
{
    static const char *const variables[] = {"TENSORPROBE_OUTPUT_DIR", "MONITOR_OUTPUT_DIR",
                                            "KJ600_OUTPUT_DIR"};
    if (given != NULL && given[0] != '\0') {
        return given;
    }
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *value = getenv(variables[i]);
        if (value != NULL && value[0] != '\0') {
            return value;
        }
    }
    return "./monitor_output";
}

void tp_run_make_id(char id[9])
{
    uint32_t number;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) != (ssize_t)sizeof number) {
        number = (uint32_t)tp_clock_wall() ^ ((uint32_t)getpid() << 16);
    }
    snprintf(id, 9, "%08x", number);
}

tp_status tp_run_directory(char path[TP_PATH_MAX], const char *base, uint32_t rank, const char *id,
                           tp_error *error)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    time_t now = (time_t)(tp_clock_wall() / 1000000000);
    struct stat info;
    do { /* an earlier run with this id may have the second */
        struct tm local = {0};
        localtime_r(&now, &local);
        /* The month by hand: strftime would translate it into the user's language. */
        int length = snprintf(path, TP_PATH_MAX, "%s/%.3s%02d_%02d-%02d-%02d-rank%u-%s", base,
                              months + 3 * local.tm_mon, local.tm_mday, local.tm_hour, local.tm_min,
                              local.tm_sec, rank, id);
        if (length < 0 || length >= TP_PATH_MAX) {
            return tp_fail(error, TP_ERR_ARGUMENT, "output directory name is too long: %.100s",
                           base);
        }
        now++;
    } while (lstat(path, &info) == 0);
    return TP_OK;
}

tp_status tp_run_name(tp_run_info *run, char base[TP_PATH_MAX], char directory[TP_PATH_MAX],
                      const char *output_dir, const char *run_id, tp_error *error)
{
    char id[9];
    const char *folder = tp_run_base_directory(output_dir);
    tp_run_make_id(id);
    const char *name = run_id != NULL ? run_id : id;
    if (strlen(name) >= sizeof run->run_id || strchr(name, '/') != NULL ||
        strlen(folder) >= TP_PATH_MAX) {
        return tp_fail(error, TP_ERR_ARGUMENT,
                       "run id is longer than %zu characters or holds a slash, or the output "
                       "directory's name is too long",
                       sizeof run->run_id - 1);
    }
    strcpy(run->run_id, name);
    strcpy(base, folder);
    run->start_wall_ns = tp_clock_wall();
    return tp_run_directory(directory, base, run->rank, name, error);
}

tp_status tp_run_check_base(const char *base, tp_error *error)
{
    char part[TP_PATH_MAX];
    size_t length = strlen(base);
    for (;;) {
        /* The slash at the end: a file that lies there is no directory. */
        const int written = length > 0
                                ? snprintf(part, sizeof part, "%.*s/", (int)length, base)
                                : snprintf(part, sizeof part, "%s", *base == '/' ? "/" : ".");
        if (written < 0 || written >= (int)sizeof part) {
            return tp_fail(error, TP_ERR_ARGUMENT, "path is too long: %.100s", base);
        }
        if (access(part, W_OK | X_OK) == 0) {
            return TP_OK;
        }
        if (errno != ENOENT || length == 0) {
            return tp_fail(error, TP_ERR_IO, "can't write to the output directory %s: %s", base,
                           strerror(errno));
        }
        while (length > 0 && base[length - 1] == '/') {
            length--;
        }
        while (length > 0 && base[length - 1] != '/') {
            length--;
        }
    }
}

/* A lock of the open file, not of the process: it keeps out a second monitor of the same process
 * too. A forked child has a part in it as long as it has the descriptor. */
static int lock_file(int fd, short type)
{
    struct flock whole = {.l_type = type, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_SETLK, &whole);
}

tp_status tp_run_lock(const char *directory, int *fd, tp_error *error)
{
    char path[TP_PATH_MAX];
    if (tp_path_join(path, directory, LOCK_NAME) != TP_OK) {
        return tp_fail(error, TP_ERR_ARGUMENT, "path is too long: %.100s", directory);
    }
    for (;;) {
        int opened = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
        if (opened < 0) {
            return tp_fail(error, tp_status_from_errno(errno), "can't open %s: %s", path,
                           strerror(errno));
        }
        /* A file system without locks (ENOLCK, EINVAL) is not a reason to refuse work. */
        if (lock_file(opened, F_WRLCK) != 0 && (errno == EAGAIN || errno == EACCES)) {
            close(opened);
            return tp_fail(error, TP_ERR_STATE, "%s is in use by a running process", directory);
        }
        if (!tp_file_is_removed(opened)) {
            *fd = opened;
            return TP_OK;
        }
        close(opened); /* its owner has removed it since it was opened: it locks nothing */
    }
}

void tp_run_unlock(const char *directory, int fd, int clean)
{
    char path[TP_PATH_MAX];
    if (fd < 0) {
        return;
    }
    if (clean && tp_path_join(path, directory, LOCK_NAME) == TP_OK) {
        unlink(path);
    }
    lock_file(fd, F_UNLCK); /* closing is not enough where a forked child has a copy */
    close(fd);
}

uint32_t tp_run_state(const char *directory)
{
    static const char *const below[] = {LOCK_NAME, "../" LOCK_NAME};
    struct flock whole = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    char path[TP_PATH_MAX];
    const char *name = strrchr(directory, '/');
    const bool is_journal = strcmp(name != NULL ? name + 1 : directory, JOURNAL_NAME) == 0;
    if (tp_path_join(path, directory, below[is_journal]) != TP_OK) {
        return TP_RUN_NOT_KNOWN;
    }
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return errno == ENOENT ? TP_RUN_NO_LOCK : TP_RUN_NOT_KNOWN;
    }
    const int asked = fcntl(fd, F_OFD_GETLK, &whole);
    close(fd);
    return asked != 0 ? TP_RUN_NOT_KNOWN : whole.l_type == F_UNLCK ? TP_RUN_LEFT : TP_RUN_OPEN;
}

void tp_run_visit_unfinished(const char *base, uint32_t rank, const int *stop,
                             tp_status (*visit)(const char *directory, const int *stop))
{
    char mark[32];
    DIR *directory = opendir(base);
    if (directory == NULL) {
        return;
    }
    snprintf(mark, sizeof mark, "-rank%u-", rank);
    for (const struct dirent *entry = readdir(directory);
         entry != NULL && !__atomic_load_n(stop, __ATOMIC_ACQUIRE); entry = readdir(directory)) {
        char path[TP_PATH_MAX];
        char lock[TP_PATH_MAX];
        char journal[TP_PATH_MAX];
        char box[TP_PATH_MAX];
        int fd;
        if (strstr(entry->d_name, mark) == NULL ||
            tp_path_join(path, base, entry->d_name) != TP_OK ||
            tp_path_join(lock, path, LOCK_NAME) != TP_OK || access(lock, F_OK) != 0 ||
            tp_path_join(journal, path, JOURNAL_NAME) != TP_OK ||
            tp_path_join(box, path, TP_BOX_NAME) != TP_OK ||
            (access(journal, F_OK) != 0 && access(box, F_OK) != 0) ||
            tp_run_lock(path, &fd, NULL) != TP_OK) {
            continue;
        }
        tp_run_unlock(path, fd, visit(path, stop) == TP_OK);
    }
    closedir(directory);
}
