/* Files. The only place that writes to them, so that tests can make any write fail. */
#ifndef TP_BASE_FILE_H
#define TP_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

#define TP_PATH_MAX 4096

/* All messages name the path and the operating system's reason. error may be NULL. */

/* Makes the directory and its missing parents (mode 0750). */
tp_status tp_dir_make(const char *path, tp_error *error);

/* Likewise; but a symbolic link in its place (not in that of its parents) is TP_ERR_IO. */
tp_status tp_dir_make_in(const char *path, tp_error *error);

/* Makes a directory that nobody else can look into. One that is there must be like that, and no
 * symbolic link: TP_ERR_IO; *made tells which. Its parent exists. */
tp_status tp_dir_make_private(const char *path, bool *made, tp_error *error);

/* Removes the directory and the files in it, `last` (a name) after all others. What can't be
 * removed stays. */
void tp_dir_remove(const char *path, const char *last);

/* Accepts that there is none. */
void tp_file_remove(const char *path);

/* Opens for appending, making the file (mode 0640) if need be; a symbolic link in its place is an
 * error. *size is its length. Close with tp_file_close.
 */
tp_status tp_file_append(const char *path, int *fd, uint64_t *size, tp_error *error);

/* Writes all of it or fails; a failure may leave a part behind: the caller cuts the file back. */
tp_status tp_file_write(int fd, const char *path, const void *bytes, size_t size, tp_error *error);

tp_status tp_file_truncate(int fd, const char *path, uint64_t size, tp_error *error);

/* Whether the open file has no name any more: what is written to it is lost when it is closed. */
bool tp_file_is_removed(int fd);

bool tp_file_is_link(const char *path);

/* Whether there is a file at path of at least so many bytes. */
bool tp_file_has(const char *path, uint64_t size);

void tp_file_close(int fd); /* accepts -1 */

/* Reads a whole file into buf (emptied first). */
tp_status tp_file_read(const char *path, tp_buf *buf, tp_error *error);

/* Reads no more than so many bytes. */
tp_status tp_file_read_at_most(const char *path, size_t most, tp_buf *buf, tp_error *error);

/* Reads up to size bytes of an open file into buf (emptied first): as many as are there. */
tp_status tp_file_read_at(int fd, const char *path, uint64_t offset, size_t size, tp_buf *buf,
                          tp_error *error);

/* Replaces the file in one step: writes path.tmp, renames it. A reader sees the old or the new
 * content, never a part. */
tp_status tp_file_replace(const char *path, const void *bytes, size_t size, tp_error *error);

/* Makes path a symbolic link to target, in place of what is there. */
tp_status tp_file_link(const char *path, const char *target, tp_error *error);

/* Writes "a/b" to path; TP_ERR_ARGUMENT when it is too long. */
tp_status tp_path_join(char path[TP_PATH_MAX], const char *a, const char *b);

/* The path as it is called from anywhere. TP_ERR_ARGUMENT: too long. TP_ERR_IO: there is no current
 * directory any more. */
tp_status tp_path_absolute(char absolute[TP_PATH_MAX], const char *path);

/* Tests only: the n-th call of tp_file_write from now on (1 is the next) fails with this errno
 * after writing half of its bytes, and so does every one after it; 0 ends that. */
void tp_file_fail_after(unsigned long n, int error_number);

/* Likewise of all calls that change files: of writes, and of those that make directories, open for
 * appending, truncate and rename. once: the others after it succeed. */
void tp_file_fail_calls_after(unsigned long n, int error_number, bool once);

/* Whether a call has failed so since the last n. */
bool tp_file_has_failed(void);

#endif
