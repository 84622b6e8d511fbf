#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/countdown.h"

/* What a model's weights look like is nobody else's business. */
#define FILE_MODE 0640
#define DIRECTORY_MODE 0750

static tp_countdown countdown; /* of writes */
static atomic_int fail_errno;

void tp_file_fail_after(unsigned long n, int error_number)
{
    atomic_store(&fail_errno, error_number);
    tp_countdown_start(&countdown, n);
}

static tp_countdown calls; /* of everything that changes files */
static atomic_int call_errno;
static atomic_bool fails_once;
static atomic_bool has_failed;

void tp_file_fail_calls_after(unsigned long n, int error_number, bool once)
{
    if (n > 0) {
        atomic_store(&has_failed, false);
    }
    atomic_store(&call_errno, error_number);
    atomic_store(&fails_once, once);
    tp_countdown_start(&calls, n);
}

bool tp_file_has_failed(void)
{
    return atomic_load(&has_failed);
}

/* Counts a call; the error that it has to fail with, or 0. */
static int count_call(void)
{
    if (!tp_countdown_is_over(&calls)) {
        return 0;
    }
    const int number = atomic_load(&call_errno);
    atomic_store(&has_failed, true);
    if (atomic_load(&fails_once)) {
        tp_countdown_start(&calls, 0);
    }
    return number;
}

static tp_status fail_errno_on(tp_error *error, const char *verb, const char *path, int number)
{
    return tp_fail(error, tp_status_from_errno(number), "can't %s %s: %s", verb, path,
                   strerror(number));
}

tp_status tp_path_join(char path[TP_PATH_MAX], const char *a, const char *b)
{
    int length = snprintf(path, TP_PATH_MAX, "%s/%s", a, b);
    return length < 0 || length >= TP_PATH_MAX ? TP_ERR_ARGUMENT : TP_OK;
}

tp_status tp_path_absolute(char absolute[TP_PATH_MAX], const char *path)
{
    char here[TP_PATH_MAX] = "";
    if (path[0] == '/') {
        return tp_path_join(absolute, "", path + 1);
    }
    return getcwd(here, sizeof here) != NULL ? tp_path_join(absolute, here, path) : TP_ERR_IO;
}

tp_status tp_dir_make(const char *path, tp_error *error)
{
    char part[TP_PATH_MAX];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof part) {
        return tp_fail(error, TP_ERR_ARGUMENT, "directory name is empty or too long: %.100s", path);
    }
    const int failed = count_call();
    if (failed != 0) {
        return fail_errno_on(error, "make directory", path, failed);
    }
    memcpy(part, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (part[i] != '/' && part[i] != '\0') {
            continue;
        }
        part[i] = '\0';
        struct stat info;
        if (mkdir(part, DIRECTORY_MODE) != 0 && (errno != EEXIST || stat(part, &info) != 0)) {
            return fail_errno_on(error, "make directory", part, errno);
        }
        if (stat(part, &info) == 0 && !S_ISDIR(info.st_mode)) {
            return fail_errno_on(error, "make directory", part, ENOTDIR);
        }
        part[i] = path[i];
    }
    return TP_OK;
}

tp_status tp_dir_make_in(const char *path, tp_error *error)
{
    tp_status status = tp_dir_make(path, error);
    if (status == TP_OK && tp_file_is_link(path)) {
        status =
            tp_fail(error, TP_ERR_IO,
                    "%s is a symbolic link, which is not followed: nothing is written there", path);
    }
    return status;
}

tp_status tp_dir_make_private(const char *path, bool *made, tp_error *error)
{
    struct stat info;
    *made = mkdir(path, 0700) == 0;
    if (*made) {
        return TP_OK;
    }
    if (errno != EEXIST || lstat(path, &info) != 0) {
        return fail_errno_on(error, "make directory", path, errno);
    }
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
        return tp_fail(error, TP_ERR_IO, "%s is not a directory of this user alone", path);
    }
    return TP_OK;
}

void tp_dir_remove(const char *path, const char *last)
{
    char name[TP_PATH_MAX];
    const struct dirent *entry;
    DIR *listing = opendir(path);
    if (listing == NULL) {
        return;
    }
    while ((entry = readdir(listing)) != NULL) {
        if (strcmp(entry->d_name, last) != 0 && tp_path_join(name, path, entry->d_name) == TP_OK) {
            unlink(name);
        }
    }
    closedir(listing);
    if (tp_path_join(name, path, last) == TP_OK) {
        unlink(name);
    }
    rmdir(path);
}

void tp_file_remove(const char *path)
{
    unlink(path);
}

tp_status tp_file_append(const char *path, int *fd, uint64_t *size, tp_error *error)
{
    const int failed = count_call();
    int opened = failed == 0
                     ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, FILE_MODE)
                     : -1;
    if (opened < 0) {
        return fail_errno_on(error, "open", path, failed != 0 ? failed : errno);
    }
    struct stat info;
    if (fstat(opened, &info) != 0) {
        int number = errno;
        close(opened);
        return fail_errno_on(error, "look at", path, number);
    }
    *fd = opened;
    *size = (uint64_t)info.st_size;
    return TP_OK;
}

static tp_status write_all(int fd, const char *path, const uint8_t *bytes, size_t size,
                           tp_error *error)
{
    while (size > 0) {
        ssize_t written = write(fd, bytes, size);
        if (written < 0) {
            if (errno == EINTR) {
                continue;
            }
            return fail_errno_on(error, "write to", path, errno);
        }
        bytes += written;
        size -= (size_t)written;
    }
    return TP_OK;
}

tp_status tp_file_write(int fd, const char *path, const void *bytes, size_t size, tp_error *error)
{
    int failed = tp_countdown_is_over(&countdown) ? atomic_load(&fail_errno) : count_call();
    if (failed != 0) {
        write_all(fd, path, bytes, size / 2, NULL);
        return fail_errno_on(error, "write to", path, failed);
    }
    return write_all(fd, path, bytes, size, error);
}

tp_status tp_file_truncate(int fd, const char *path, uint64_t size, tp_error *error)
{
    const int failed = count_call();
    if (failed != 0 || ftruncate(fd, (off_t)size) != 0) {
        return fail_errno_on(error, "truncate", path, failed != 0 ? failed : errno);
    }
    return TP_OK;
}

bool tp_file_is_removed(int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 && info.st_nlink == 0;
}

bool tp_file_is_link(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

bool tp_file_has(const char *path, uint64_t size)
{
    struct stat info;
    return stat(path, &info) == 0 && (uint64_t)info.st_size >= size;
}

void tp_file_close(int fd)
{
    if (fd >= 0) {
        close(fd);
    }
}

tp_status tp_file_read(const char *path, tp_buf *buf, tp_error *error)
{
    return tp_file_read_at_most(path, SIZE_MAX, buf, error);
}

tp_status tp_file_read_at_most(const char *path, size_t most, tp_buf *buf, tp_error *error)
{
    tp_buf_clear(buf);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return fail_errno_on(error, "open", path, errno);
    }
    struct stat info;
    if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
        close(fd);
        return fail_errno_on(error, "read", path, EISDIR);
    }
    tp_status status = TP_OK;
    while (buf->size < most) {
        uint8_t part[16384];
        size_t wanted = most - buf->size < sizeof part ? most - buf->size : sizeof part;
        ssize_t got = read(fd, part, wanted);
        if (got == 0) {
            break;
        }
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            status = fail_errno_on(error, "read", path, errno);
            break;
        }
        tp_buf_put(buf, part, (size_t)got);
    }
    close(fd);
    if (status == TP_OK && buf->failed) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory to read %s", path);
    }
    return status;
}

/* Where the new content is made ready. */
static tp_status temporary_path(const char *path, char temporary[TP_PATH_MAX], tp_error *error)
{
    int length = snprintf(temporary, TP_PATH_MAX, "%s.tmp", path);
    if (length < 0 || length >= TP_PATH_MAX) {
        return tp_fail(error, TP_ERR_ARGUMENT, "path is too long: %.100s", path);
    }
    return TP_OK;
}

tp_status tp_file_read_at(int fd, const char *path, uint64_t offset, size_t size, tp_buf *buf,
                          tp_error *error)
{
    tp_buf_clear(buf);
    uint8_t *bytes = tp_buf_extend(buf, size);
    if (buf->failed) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory to read %s", path);
    }
    size_t got = 0;
    while (got < size) {
        ssize_t part = pread(fd, bytes + got, size - got, (off_t)(offset + got));
        if (part < 0 && errno == EINTR) {
            continue;
        }
        if (part < 0) {
            return tp_fail(error, tp_status_from_errno(errno), "can't read %s: %s", path,
                           strerror(errno));
        }
        if (part == 0) {
            break;
        }
        got += (size_t)part;
    }
    buf->size = got;
    return TP_OK;
}

tp_status tp_file_replace(const char *path, const void *bytes, size_t size, tp_error *error)
{
    char temporary[TP_PATH_MAX];
    tp_status status = temporary_path(path, temporary, error);
    if (status != TP_OK) {
        return status;
    }
    int failed = count_call();
    int fd = failed == 0
                 ? open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, FILE_MODE)
                 : -1;
    if (fd < 0) {
        return fail_errno_on(error, "open", temporary, failed != 0 ? failed : errno);
    }
    status = tp_file_write(fd, temporary, bytes, size, error);
    /* Some network file systems refuse the bytes only here. */
    if (close(fd) != 0 && status == TP_OK && errno != EINTR) {
        status = fail_errno_on(error, "write to", temporary, errno);
    }
    failed = status == TP_OK ? count_call() : 0;
    if (status == TP_OK && (failed != 0 || rename(temporary, path) != 0)) {
        status = fail_errno_on(error, "rename to", path, failed != 0 ? failed : errno);
    }
    if (status != TP_OK) {
        unlink(temporary);
    }
    return status;
}

tp_status tp_file_link(const char *path, const char *target, tp_error *error)
{
    char temporary[TP_PATH_MAX];
    tp_status status = temporary_path(path, temporary, error);
    if (status != TP_OK) {
        return status;
    }
    unlink(temporary);
    if (symlink(target, temporary) != 0) {
        return fail_errno_on(error, "make the link", path, errno);
    }
    if (rename(temporary, path) != 0) {
        status = fail_errno_on(error, "rename to", path, errno);
        unlink(temporary);
    }
    return status;
}
