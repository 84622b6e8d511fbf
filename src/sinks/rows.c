#include "sinks/rows.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

#define PART (UINT32_C(1) << 20)

/* Whether it is the name of a csv file, the first and last step that it is for, and the number of
 * the column that has a row's step: vpp_stage,name,step or op,group,slot,step. */
static bool read_name(const char *name, uint64_t *first, uint64_t *last, uint32_t *step_column)
{
    char kind[64];
    char rest[64];
    *step_column = strncmp(name, "comm_", 5) == 0 ? 3 : 2;
    /* Kinds hold underscores and no digits. */
    return sscanf(name, "%63[a-z_]%" SCNu64 "-%" SCNu64 "%63s", kind, first, last, rest) == 4 &&
           kind[strlen(kind) - 1] == '_' &&
           (strcmp(rest, ".csv") == 0 ||
            (strncmp(rest, "_part_", 6) == 0 && strcmp(rest + strlen(rest) - 4, ".csv") == 0));
}

/* Where a reader of rows stands. */
typedef struct row_state {
    uint64_t row;    /* offset at which it begins */
    uint64_t number; /* what the step's cell says so far */
    uint32_t column;
    uint32_t step_column;
    bool quoted; /* inside of quotes: separators don't count */
    bool header;
} row_state;

/* Takes a byte at an offset. True: the row is one of this step or of a later one. */
static bool take_byte(row_state *state, uint8_t byte, uint64_t offset, uint64_t step)
{
    if (byte == '"') {
        state->quoted = !state->quoted; /* a doubled one ends and begins anew */
    } else if (!state->quoted && (byte == ',' || byte == '\n')) {
        if (!state->header && state->column == state->step_column && state->number >= step) {
            return true;
        }
        state->column++;
        if (byte == '\n') {
            *state = (row_state){.row = offset + 1, .step_column = state->step_column};
        }
    } else if (state->column == state->step_column && byte >= '0' && byte <= '9') {
        state->number = state->number * 10 + (byte - '0');
    }
    return false;
}

/* Rows are in the order of their steps. */
static tp_status cut(const char *path, uint32_t step_column, uint64_t step, tp_error *error)
{
    row_state state = {.step_column = step_column, .header = true};
    tp_buf bytes = TP_BUF_INIT;
    uint64_t offset = 0;
    bool found = false;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return tp_fail(error, tp_status_from_errno(errno), "can't open %s: %s", path,
                       strerror(errno));
    }
    tp_status status = tp_file_read_at(fd, path, offset, PART, &bytes, error);
    while (status == TP_OK && !found && bytes.size > 0) {
        for (size_t i = 0; !found && i < bytes.size; i++) {
            found = take_byte(&state, bytes.data[i], offset + i, step);
        }
        offset += bytes.size;
        status = tp_file_read_at(fd, path, offset, PART, &bytes, error);
    }
    tp_file_close(fd);
    if (status == TP_OK && found) {
        int writable = -1;
        status = tp_file_append(path, &writable, &offset, error);
        if (status == TP_OK) {
            status = tp_file_truncate(writable, path, state.row, error);
            tp_file_close(writable);
        }
    }
    tp_buf_free(&bytes);
    return status;
}

tp_status tp_rows_rewind(const char *directory, uint64_t step, tp_error *error)
{
    tp_status status = TP_OK;
    const struct dirent *entry;
    DIR *listing = opendir(directory);
    if (listing == NULL) {
        return tp_fail(error, tp_status_from_errno(errno), "can't read %s: %s", directory,
                       strerror(errno));
    }
    while (status == TP_OK && (entry = readdir(listing)) != NULL) {
        char path[TP_PATH_MAX];
        uint64_t first;
        uint64_t last;
        uint32_t column;
        if (!read_name(entry->d_name, &first, &last, &column) || last < step ||
            tp_path_join(path, directory, entry->d_name) != TP_OK) {
            continue;
        }
        if (first < step) {
            status = cut(path, column, step, error);
        } else if (unlink(path) != 0 && errno != ENOENT) {
            status = tp_fail(error, tp_status_from_errno(errno), "can't remove %s: %s", path,
                             strerror(errno));
        }
    }
    closedir(listing);
    return status;
}
