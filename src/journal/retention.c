#include "journal/retention.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "journal/cursor.h"
#include "journal/frame.h"
#include "journal/index.h"
#include "journal/overview.h"
#include "journal/records.h"

#define REMOVED_SIZE 24u /* first step, last step, how many */

/* A segment that is being rewritten. */
typedef struct thinning {
    char path[TP_PATH_MAX];
    int fd;
    uint64_t size; /* of the file */
    uint64_t at;   /* the next frame */
    tp_frame frame;
    ZSTD_CCtx *packer;
    ZSTD_DCtx *unpacker;
    tp_buf stored, payload, records, arena;
    tp_buf out;
    tp_index index;
    tp_overviews overviews; /* of a segment that has none: its process was killed */
    uint64_t batches, first_step, last_step;
    bool has_overviews;
    uint32_t end_type;
} thinning;

static tp_status fail(const thinning *t, tp_status status, const char *what, tp_error *error)
{
    return tp_fail(error, status, "%s: %s", t->path, what);
}

/* Reads a frame's header, and its payload unless it is a batch of a segment with overviews. TP_END:
 * there is no more. */
static tp_status read_frame(thinning *t, bool with_batch, tp_error *error)
{
    tp_status status =
        tp_file_read_at(t->fd, t->path, t->at, TP_FRAME_HEADER_SIZE, &t->stored, error);
    if (status != TP_OK) {
        return status;
    }
    if (t->stored.size < TP_FRAME_HEADER_SIZE) {
        return TP_END;
    }
    if (!tp_frame_get(t->stored.data, t->at, &t->frame) ||
        t->frame.stored_size > t->size - t->at - TP_FRAME_HEADER_SIZE) {
        return TP_END; /* a torn tail, or damage: what lies behind it is given up with the rest */
    }
    if (t->frame.type != TP_FRAME_BATCH || with_batch) {
        status = tp_file_read_at(t->fd, t->path, t->at + TP_FRAME_HEADER_SIZE, t->frame.stored_size,
                                 &t->stored, error);
        if (status == TP_OK &&
            (t->stored.size < t->frame.stored_size ||
             tp_crc32c(0, t->stored.data, t->stored.size) != t->frame.payload_crc)) {
            status = fail(t, TP_ERR_CORRUPT, "damaged: it stays as it is", error);
        }
    }
    t->at += TP_FRAME_HEADER_SIZE + t->frame.stored_size;
    return status;
}

static tp_status take_batch(thinning *t, tp_error *error)
{
    tp_batch batch;
    const uint64_t step = t->frame.step;
    t->first_step = t->batches == 0 || step < t->first_step ? step : t->first_step;
    t->last_step = t->batches == 0 || step > t->last_step ? step : t->last_step;
    t->batches++;
    if (t->has_overviews) {
        return TP_OK;
    }
    tp_status status = tp_frame_unpack(&t->frame, t->stored.data, t->unpacker, &t->payload);
    if (status == TP_OK) {
        status = tp_records_get_batch(&t->payload, &batch, &t->records, &t->arena);
    }
    if (status == TP_OK) {
        tp_overviews_add(&t->overviews, &batch);
        status = t->overviews.failed ? TP_ERR_NOMEM : TP_OK;
    }
    return status == TP_OK ? TP_OK : fail(t, status, "its steps can't be summed up", error);
}

/* What is in front of the frames that stay. */
static tp_status put_front(thinning *t, uint32_t header_size, tp_error *error)
{
    tp_status status = tp_file_read_at(t->fd, t->path, 0, header_size, &t->stored, error);
    if (status != TP_OK) {
        return status;
    }
    tp_buf_put_buf(&t->out, &t->stored);
    tp_buf_clear(&t->payload);
    tp_buf_put_u64(&t->payload, t->first_step);
    tp_buf_put_u64(&t->payload, t->last_step);
    tp_buf_put_u64(&t->payload, t->batches);
    tp_index_add(&t->index, TP_FRAME_REMOVED, t->first_step, t->out.size, 0);
    return tp_frame_put(&t->out, TP_FRAME_REMOVED, t->first_step, t->out.size, &t->payload,
                        t->packer);
}

static void keep(thinning *t, const tp_frame *frame, const uint8_t *stored, uint32_t level)
{
    tp_index_add(&t->index, frame->type, frame->step, t->out.size, level);
    tp_frame_move(&t->out, frame, stored, t->out.size);
}

/* The second time through: the frames that stay. */
static tp_status copy_frames(thinning *t, tp_error *error)
{
    tp_status status;
    while ((status = read_frame(t, false, error)) == TP_OK) {
        uint32_t level = 0;
        uint64_t count;
        switch (t->frame.type) {
        case TP_FRAME_OVERVIEW:
            status = tp_frame_unpack(&t->frame, t->stored.data, t->unpacker, &t->payload);
            if (status == TP_OK) {
                status = tp_overviews_get(&t->payload, &level, &t->records, &count);
            }
            if (status != TP_OK) {
                return fail(t, status, "an overview can't be read", error);
            }
            keep(t, &t->frame, t->stored.data, level);
            break;
        case TP_FRAME_SETTINGS:
            tp_frame_move(&t->out, &t->frame, t->stored.data, t->out.size);
            break;
        case TP_FRAME_DEFINITIONS:
        case TP_FRAME_ALERTS:
            keep(t, &t->frame, t->stored.data, 0);
            break;
        default: /* batches, and what is made anew at the end */
            break;
        }
    }
    return status == TP_END ? TP_OK : status;
}

static tp_status put_end(thinning *t)
{
    tp_status status = TP_OK;
    tp_overviews_finish(&t->overviews);
    for (uint32_t level = 0; level <= TP_OVERVIEW_LEVELS && status == TP_OK; level++) {
        if (!t->has_overviews && tp_overviews_keeps(&t->overviews, level)) {
            tp_buf_clear(&t->payload);
            tp_overviews_put(&t->payload, &t->overviews, level);
            tp_index_add(&t->index, TP_FRAME_OVERVIEW, 0, t->out.size, level);
            status =
                tp_frame_put(&t->out, TP_FRAME_OVERVIEW, 0, t->out.size, &t->payload, t->packer);
        }
    }
    t->index.first_step = t->first_step;
    t->index.last_step = t->last_step;
    const uint64_t offset = t->out.size;
    tp_buf_clear(&t->payload);
    tp_index_put(&t->payload, &t->index);
    if (status == TP_OK) {
        status = tp_frame_put(&t->out, TP_FRAME_INDEX, 0, offset, &t->payload, t->packer);
    }
    tp_buf_clear(&t->payload);
    tp_buf_put_u64(&t->payload, offset);
    if (status == TP_OK) {
        status = tp_frame_put(&t->out, t->end_type, 0, t->out.size, &t->payload, t->packer);
    }
    return t->out.failed || t->payload.failed || t->index.entries.failed ? TP_ERR_NOMEM : status;
}

/* The first time through: whether there are overviews, and which steps go. */
static tp_status count_batches(thinning *t, uint32_t header_size, tp_error *error)
{
    tp_status status;
    t->at = header_size;
    t->end_type = TP_FRAME_CONTINUED;
    while ((status = read_frame(t, false, error)) == TP_OK) {
        t->has_overviews |= t->frame.type == TP_FRAME_OVERVIEW;
        t->end_type = t->frame.type == TP_FRAME_CLOSE ? TP_FRAME_CLOSE : t->end_type;
        if (t->frame.type == TP_FRAME_REMOVED) {
            return TP_END;
        }
    }
    t->at = header_size;
    while (status == TP_END && (status = read_frame(t, !t->has_overviews, error)) == TP_OK) {
        status = t->frame.type == TP_FRAME_BATCH ? take_batch(t, error) : TP_OK;
        status = status == TP_OK ? TP_END : status;
    }
    return status != TP_END ? status : t->batches > 0 ? TP_OK : TP_END;
}

static tp_status thin(thinning *t, tp_error *error)
{
    tp_run_info run;
    uint32_t header_size = 0;
    struct stat info;
    if (fstat(t->fd, &info) != 0) {
        return fail(t, TP_ERR_IO, strerror(errno), error);
    }
    t->size = (uint64_t)info.st_size;
    tp_status status = tp_file_read_at(t->fd, t->path, 0, TP_SEGMENT_HEADER_MAX, &t->stored, error);
    if (status == TP_OK &&
        tp_segment_header_get(t->stored.data, t->stored.size, &run, &header_size) != TP_OK) {
        return TP_END; /* nothing that a reader could read */
    }
    if (status == TP_OK) {
        status = count_batches(t, header_size, error);
    }
    if (status == TP_OK) {
        status = put_front(t, header_size, error);
    }
    if (status == TP_OK) {
        t->at = header_size;
        status = copy_frames(t, error);
    }
    if (status == TP_OK) {
        status = put_end(t);
        status = status == TP_OK ? TP_OK : fail(t, status, "no memory to sum it up", error);
    }
    return status == TP_OK ? tp_file_replace(t->path, t->out.data, t->out.size, error) : status;
}

tp_status tp_segment_thin(const char *folder, uint64_t segment, tp_error *error)
{
    thinning t = {.fd = -1};
    if (tp_segment_path(t.path, folder, segment) != TP_OK) {
        return tp_fail(error, TP_ERR_ARGUMENT, "path is too long: %.100s", folder);
    }
    t.fd = open(t.path, O_RDONLY | O_CLOEXEC);
    if (t.fd < 0) {
        return fail(&t, tp_status_from_errno(errno), strerror(errno), error);
    }
    t.packer = ZSTD_createCCtx();
    t.unpacker = ZSTD_createDCtx();
    tp_status status = t.packer != NULL && t.unpacker != NULL
                           ? thin(&t, error)
                           : fail(&t, TP_ERR_NOMEM, "no memory to sum it up", error);
    tp_file_close(t.fd);
    ZSTD_freeCCtx(t.packer);
    ZSTD_freeDCtx(t.unpacker);
    tp_buf_free(&t.stored);
    tp_buf_free(&t.payload);
    tp_buf_free(&t.records);
    tp_buf_free(&t.arena);
    tp_buf_free(&t.out);
    tp_index_free(&t.index);
    tp_overviews_free(&t.overviews);
    return status;
}

tp_status tp_removed_get(const tp_buf *payload, tp_batch *batch, uint64_t *last)
{
    if (payload->size < REMOVED_SIZE) {
        return TP_ERR_CORRUPT;
    }
    batch->step = tp_get_u64(payload->data);
    *last = tp_get_u64(payload->data + 8);
    batch->count = tp_get_u64(payload->data + 16);
    return TP_OK;
}

bool tp_segment_is_thin(const char *folder, uint64_t segment)
{
    char path[TP_PATH_MAX];
    tp_buf bytes = TP_BUF_INIT;
    tp_run_info run;
    tp_frame frame;
    uint32_t size = 0;
    const int fd =
        tp_segment_path(path, folder, segment) == TP_OK ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    const bool is_thin =
        fd >= 0 && tp_file_read_at(fd, path, 0, TP_SEGMENT_HEADER_MAX, &bytes, NULL) == TP_OK &&
        tp_segment_header_get(bytes.data, bytes.size, &run, &size) == TP_OK &&
        tp_file_read_at(fd, path, size, TP_FRAME_HEADER_SIZE, &bytes, NULL) == TP_OK &&
        bytes.size == TP_FRAME_HEADER_SIZE && tp_frame_get(bytes.data, size, &frame) &&
        frame.type == TP_FRAME_REMOVED;
    tp_file_close(fd);
    tp_buf_free(&bytes);
    return is_thin;
}

typedef struct old_segment {
    uint64_t segment;
    uint64_t size;
    int64_t seconds; /* Unix time of the last append */
} old_segment;

static int compare(const void *a, const void *b)
{
    const old_segment *one = a;
    const old_segment *two = b;
    return (one->segment > two->segment) - (one->segment < two->segment);
}

static tp_status list(const char *folder, tp_buf *segments, tp_error *error)
{
    const struct dirent *entry;
    DIR *listing = opendir(folder);
    if (listing == NULL) {
        return tp_fail(error, tp_status_from_errno(errno), "can't list %s: %s", folder,
                       strerror(errno));
    }
    while ((entry = readdir(listing)) != NULL) {
        old_segment one = {0};
        char path[TP_PATH_MAX];
        struct stat info;
        if (tp_segment_number(entry->d_name, &one.segment) &&
            tp_segment_path(path, folder, one.segment) == TP_OK && stat(path, &info) == 0) {
            one.size = (uint64_t)info.st_size;
            one.seconds = info.st_mtime;
            tp_buf_put(segments, &one, sizeof one);
        }
    }
    closedir(listing);
    if (segments->failed) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory to list %s", folder);
    }
    qsort(segments->data, segments->size / sizeof(old_segment), sizeof(old_segment), compare);
    return TP_OK;
}

/* The first segment that a follower has not passed yet. */
static uint64_t find_needed(const char *folder)
{
    char cursors[TP_PATH_MAX];
    char path[TP_PATH_MAX];
    uint64_t needed = UINT64_MAX;
    const struct dirent *entry;
    const char *slash = strrchr(folder, '/');
    const int length = slash != NULL ? (int)(slash - folder) : 0;
    snprintf(cursors, sizeof cursors, "%.*s/followers", length, folder);
    DIR *listing = length > 0 ? opendir(cursors) : NULL;
    while (listing != NULL && (entry = readdir(listing)) != NULL) {
        tp_cursor cursor;
        tp_buf blob = TP_BUF_INIT;
        const size_t size = strlen(entry->d_name);
        if (size > 7 && strcmp(entry->d_name + size - 7, ".cursor") == 0 &&
            tp_path_join(path, cursors, entry->d_name) == TP_OK &&
            tp_cursor_load(path, &cursor, &blob, NULL) == TP_OK &&
            cursor.position.segment < needed) {
            needed = cursor.position.segment;
        }
        tp_buf_free(&blob);
    }
    if (listing != NULL) {
        closedir(listing);
    }
    return needed;
}

tp_status tp_retention_apply(const tp_retention *limits, const char *folder, uint64_t end,
                             tp_error *error)
{
    tp_buf segments = TP_BUF_INIT;
    tp_status status = list(folder, &segments, error);
    const old_segment *all = (const old_segment *)(const void *)segments.data;
    const uint64_t count = status == TP_OK ? segments.size / sizeof *all : 0;
    const uint64_t needed = find_needed(folder);
    const int64_t now = tp_clock_wall() / 1000000000;
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < count; i++) {
        bytes += all[i].size;
    }
    for (uint64_t i = 0; i < count && all[i].segment < end && status == TP_OK; i++) {
        const bool too_old = limits->seconds > 0 && now - all[i].seconds > (int64_t)limits->seconds;
        const bool too_large = limits->bytes > 0 && bytes > limits->bytes;
        const bool waits = all[i].segment >= needed && bytes / 2 <= limits->bytes;
        if ((!too_old && !too_large) || waits || tp_segment_is_thin(folder, all[i].segment)) {
            continue;
        }
        status = tp_segment_thin(folder, all[i].segment, error);
        if (status == TP_OK) {
            char path[TP_PATH_MAX];
            struct stat info;
            const bool there =
                tp_segment_path(path, folder, all[i].segment) == TP_OK && stat(path, &info) == 0;
            bytes -= there && (uint64_t)info.st_size < all[i].size
                         ? all[i].size - (uint64_t)info.st_size
                         : 0;
        }
        status = status == TP_END || status == TP_ERR_CORRUPT ? TP_OK : status;
    }
    tp_buf_free(&segments);
    return status;
}
