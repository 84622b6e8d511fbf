#include "journal/attempts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "journal/frame.h"

typedef struct attempt_start {
    uint64_t segment; /* the first one */
    uint64_t step;    /* the first one; TP_ATTEMPTS_NO_STEP: none yet */
    uint32_t attempt;
    uint32_t reserved;
} attempt_start;

static uint64_t count_of(const tp_attempts *attempts)
{
    return attempts->items.size / sizeof(attempt_start);
}

static attempt_start *at(const tp_attempts *attempts, uint64_t place)
{
    return (attempt_start *)(void *)attempts->items.data + place;
}

/* The attempt that a segment belongs to, and the first of its steps. False when its header isn't
 * good. */
static bool look_into(const char *folder, attempt_start *start, tp_buf *bytes)
{
    char path[TP_PATH_MAX];
    tp_run_info run;
    struct stat info;
    uint32_t header = 0;
    if (tp_segment_path(path, folder, start->segment) != TP_OK) {
        return false;
    }
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    bool good = fstat(fd, &info) == 0 &&
                tp_file_read_at(fd, path, 0, TP_SEGMENT_HEADER_MAX, bytes, NULL) == TP_OK &&
                tp_segment_header_get(bytes->data, bytes->size, &run, &header) == TP_OK;
    if (good) {
        start->attempt = run.attempt;
        start->step = TP_ATTEMPTS_NO_STEP;
    }
    uint64_t offset = header;
    tp_frame frame;
    while (good && start->step == TP_ATTEMPTS_NO_STEP &&
           tp_file_read_at(fd, path, offset, TP_FRAME_HEADER_SIZE, bytes, NULL) == TP_OK &&
           bytes->size == TP_FRAME_HEADER_SIZE && tp_frame_get(bytes->data, offset, &frame)) {
        offset += TP_FRAME_HEADER_SIZE + frame.stored_size;
        if ((frame.type == TP_FRAME_BATCH || frame.type == TP_FRAME_REMOVED) &&
            offset <= (uint64_t)info.st_size) {
            start->step = frame.step;
        }
    }
    tp_file_close(fd);
    return good;
}

/* An attempt begins in the segment with the lowest number that has a step of it: what a black box
 * brings in later stands behind. */
static void take(tp_attempts *attempts, const attempt_start *found)
{
    for (uint64_t i = 0; i < count_of(attempts); i++) {
        attempt_start *known = at(attempts, i);
        if (known->attempt != found->attempt) {
            continue;
        }
        if (found->step != TP_ATTEMPTS_NO_STEP &&
            (known->step == TP_ATTEMPTS_NO_STEP || found->segment < known->segment)) {
            *known = *found;
        }
        return;
    }
    tp_buf_put(&attempts->items, found, sizeof *found);
}

tp_status tp_attempts_load(tp_attempts *attempts, const char *folder)
{
    tp_buf bytes = TP_BUF_INIT;
    const struct dirent *entry;
    DIR *listing = opendir(folder);
    tp_buf_clear(&attempts->items);
    if (listing == NULL) {
        return errno == ENOMEM ? TP_ERR_NOMEM : TP_OK;
    }
    while ((entry = readdir(listing)) != NULL) {
        attempt_start found = {0};
        if (tp_segment_number(entry->d_name, &found.segment) && look_into(folder, &found, &bytes)) {
            take(attempts, &found);
        }
    }
    closedir(listing);
    const bool failed = bytes.failed || attempts->items.failed;
    tp_buf_free(&bytes);
    return failed ? TP_ERR_NOMEM : TP_OK;
}

uint64_t tp_attempts_end(const tp_attempts *attempts, uint32_t attempt)
{
    uint64_t end = TP_ATTEMPTS_NO_STEP;
    for (uint64_t i = 0; i < count_of(attempts); i++) {
        const attempt_start *other = at(attempts, i);
        if (other->attempt > attempt && other->step < end) {
            end = other->step;
        }
    }
    return end;
}

uint32_t tp_attempts_count(const tp_attempts *attempts)
{
    uint32_t count = 0;
    for (uint64_t i = 0; i < count_of(attempts); i++) {
        const uint32_t attempt = at(attempts, i)->attempt;
        count = attempt >= count && attempt < UINT32_MAX ? attempt + 1 : count;
    }
    return count;
}

void tp_attempts_free(tp_attempts *attempts)
{
    tp_buf_free(&attempts->items);
}
