#include "journal/thin.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/crc32c.h"
#include "journal/records.h"

#define REMOVED_SIZE 24u /* first step, last step, how many */

tp_status tp_thinning_fail(const tp_thinning *t, tp_status status, const char *what,
                           tp_error *error)
{
    return tp_fail(error, status, "%s: %s", t->path, what);
}

tp_status tp_thinning_read(tp_thinning *t, bool with_batch, tp_error *error)
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
            status = tp_thinning_fail(t, TP_ERR_CORRUPT, "damaged: it stays as it is", error);
        }
    }
    t->at += TP_FRAME_HEADER_SIZE + t->frame.stored_size;
    return status;
}

static tp_status take_batch(tp_thinning *t, tp_error *error)
{
    tp_batch batch;
    const uint64_t step = t->frame.step;
    tp_removed *gone = &t->removed;
    gone->first_step = gone->batches == 0 || step < gone->first_step ? step : gone->first_step;
    gone->last_step = gone->batches == 0 || step > gone->last_step ? step : gone->last_step;
    gone->batches++;
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
    return status == TP_OK ? TP_OK
                           : tp_thinning_fail(t, status, "its steps can't be summed up", error);
}

tp_status tp_thinning_put_front(tp_thinning *t, tp_error *error)
{
    const uint64_t first_step = t->removed.first_step;
    tp_status status = tp_file_read_at(t->fd, t->path, 0, t->header_size, &t->stored, error);
    if (status != TP_OK) {
        return status;
    }
    tp_buf_put_buf(&t->out, &t->stored);
    tp_buf_clear(&t->payload);
    tp_buf_put_u64(&t->payload, first_step);
    tp_buf_put_u64(&t->payload, t->removed.last_step);
    tp_buf_put_u64(&t->payload, t->removed.batches);
    tp_index_add(&t->index, TP_FRAME_REMOVED, first_step, t->out.size, 0);
    return tp_frame_put(&t->out, TP_FRAME_REMOVED, first_step, t->out.size, &t->payload, t->packer);
}

void tp_thinning_keep(tp_thinning *t, const tp_frame *frame, const uint8_t *stored, uint32_t level)
{
    if (frame->type != TP_FRAME_SETTINGS) {
        tp_index_add(&t->index, frame->type, frame->step, t->out.size, level);
    }
    tp_frame_move(&t->out, frame, stored, t->out.size);
}

tp_status tp_thinning_overview(tp_thinning *t, uint32_t *level, uint64_t *count, tp_error *error)
{
    tp_status status = tp_frame_unpack(&t->frame, t->stored.data, t->unpacker, &t->payload);
    if (status == TP_OK) {
        status = tp_overviews_get(&t->payload, level, &t->records, count);
    }
    return status == TP_OK ? TP_OK
                           : tp_thinning_fail(t, status, "an overview can't be read", error);
}

/* The second time through: the frames that stay. */
static tp_status copy_frames(tp_thinning *t, tp_error *error)
{
    tp_status status;
    while ((status = tp_thinning_read(t, false, error)) == TP_OK) {
        uint32_t level = 0;
        uint64_t count;
        switch (t->frame.type) {
        case TP_FRAME_OVERVIEW:
            status = tp_thinning_overview(t, &level, &count, error);
            if (status != TP_OK) {
                return status;
            }
            tp_thinning_keep(t, &t->frame, t->stored.data, level);
            break;
        case TP_FRAME_SETTINGS:
        case TP_FRAME_DEFINITIONS:
        case TP_FRAME_ALERTS:
            tp_thinning_keep(t, &t->frame, t->stored.data, 0);
            break;
        default: /* batches, and what is made anew at the end */
            break;
        }
    }
    return status == TP_END ? TP_OK : status;
}

static tp_status put_end(tp_thinning *t, uint32_t levels)
{
    tp_status status = TP_OK;
    tp_overviews_finish(&t->overviews);
    for (uint32_t level = 0; level <= TP_OVERVIEW_LEVELS && status == TP_OK; level++) {
        if ((levels >> level & 1) != 0 && tp_overviews_keeps(&t->overviews, level)) {
            tp_buf_clear(&t->payload);
            tp_overviews_put(&t->payload, &t->overviews, level);
            tp_index_add(&t->index, TP_FRAME_OVERVIEW, 0, t->out.size, level);
            status =
                tp_frame_put(&t->out, TP_FRAME_OVERVIEW, 0, t->out.size, &t->payload, t->packer);
        }
    }
    t->index.first_step = t->removed.first_step;
    t->index.last_step = t->removed.last_step;
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
    return t->out.failed || t->payload.failed || t->index.entries.failed || t->overviews.failed
               ? TP_ERR_NOMEM
               : status;
}

tp_status tp_thinning_finish(tp_thinning *t, uint32_t levels, tp_error *error)
{
    const tp_status status = put_end(t, levels);
    return status == TP_OK ? tp_file_replace(t->path, t->out.data, t->out.size, error)
                           : tp_thinning_fail(t, status, "no memory to sum it up", error);
}

/* The first time through: whether there are overviews, and which steps go. */
static tp_status count_batches(tp_thinning *t, tp_error *error)
{
    tp_status status;
    t->at = t->header_size;
    t->end_type = TP_FRAME_CONTINUED;
    while ((status = tp_thinning_read(t, false, error)) == TP_OK) {
        t->has_overviews |= t->frame.type == TP_FRAME_OVERVIEW;
        t->end_type = t->frame.type == TP_FRAME_CLOSE ? TP_FRAME_CLOSE : t->end_type;
        if (t->frame.type == TP_FRAME_REMOVED) {
            return TP_END;
        }
    }
    t->at = t->header_size;
    while (status == TP_END && (status = tp_thinning_read(t, !t->has_overviews, error)) == TP_OK) {
        status = t->frame.type == TP_FRAME_BATCH ? take_batch(t, error) : TP_OK;
        status = status == TP_OK ? TP_END : status;
    }
    return status != TP_END ? status : t->removed.batches > 0 ? TP_OK : TP_END;
}

tp_status tp_thinning_open(tp_thinning *t, const char *folder, uint64_t segment, tp_error *error)
{
    struct stat info;
    *t = (tp_thinning){.fd = -1, .end_type = TP_FRAME_CONTINUED};
    if (tp_segment_path(t->path, folder, segment) != TP_OK) {
        return tp_fail(error, TP_ERR_ARGUMENT, "path is too long: %.100s", folder);
    }
    t->fd = open(t->path, O_RDONLY | O_CLOEXEC);
    if (t->fd < 0 || fstat(t->fd, &info) != 0) {
        return tp_thinning_fail(t, tp_status_from_errno(errno), strerror(errno), error);
    }
    t->size = (uint64_t)info.st_size;
    t->packer = ZSTD_createCCtx();
    t->unpacker = ZSTD_createDCtx();
    if (t->packer == NULL || t->unpacker == NULL) {
        return tp_thinning_fail(t, TP_ERR_NOMEM, "no memory to sum it up", error);
    }
    const tp_status status =
        tp_file_read_at(t->fd, t->path, 0, TP_SEGMENT_HEADER_MAX, &t->stored, error);
    if (status == TP_OK &&
        tp_segment_header_get(t->stored.data, t->stored.size, &t->run, &t->header_size) != TP_OK) {
        return TP_END; /* nothing that a reader could read */
    }
    t->at = t->header_size;
    return status;
}

void tp_thinning_close(tp_thinning *t)
{
    tp_file_close(t->fd);
    ZSTD_freeCCtx(t->packer);
    ZSTD_freeDCtx(t->unpacker);
    tp_buf_free(&t->stored);
    tp_buf_free(&t->payload);
    tp_buf_free(&t->records);
    tp_buf_free(&t->arena);
    tp_buf_free(&t->out);
    tp_index_free(&t->index);
    tp_overviews_free(&t->overviews);
}

tp_status tp_segment_thin(const char *folder, uint64_t segment, tp_error *error)
{
    tp_thinning t;
    tp_status status = tp_thinning_open(&t, folder, segment, error);
    if (status == TP_OK) {
        status = count_batches(&t, error);
    }
    if (status == TP_OK) {
        status = tp_thinning_put_front(&t, error);
    }
    if (status == TP_OK) {
        t.at = t.header_size;
        status = copy_frames(&t, error);
    }
    if (status == TP_OK) {
        status = tp_thinning_finish(&t, t.has_overviews ? 0 : TP_OVERVIEW_ALL, error);
    }
    tp_thinning_close(&t);
    return status;
}

tp_status tp_removed_get(const tp_buf *payload, tp_removed *removed)
{
    if (payload->size < REMOVED_SIZE) {
        return TP_ERR_CORRUPT;
    }
    removed->first_step = tp_get_u64(payload->data);
    removed->last_step = tp_get_u64(payload->data + 8);
    removed->batches = tp_get_u64(payload->data + 16);
    return TP_OK;
}

bool tp_segment_is_thin(const char *folder, uint64_t segment, tp_removed *removed)
{
    tp_thinning t;
    const bool is_thin =
        tp_thinning_open(&t, folder, segment, NULL) == TP_OK &&
        tp_thinning_read(&t, true, NULL) == TP_OK && t.frame.type == TP_FRAME_REMOVED &&
        tp_frame_unpack(&t.frame, t.stored.data, t.unpacker, &t.payload) == TP_OK &&
        tp_removed_get(&t.payload, removed) == TP_OK;
    removed->attempt = t.run.attempt;
    tp_thinning_close(&t);
    return is_thin;
}
