#include "journal/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/crc32c.h"
#include "journal/records.h"

tp_status tp_segment_open(tp_segment *segment, const char *folder, uint64_t number)
{
    struct stat info;
    tp_file_close(segment->fd);
    segment->fd = -1;
    if (tp_segment_path(segment->path, folder, number) != TP_OK) {
        return TP_ERR_ARGUMENT;
    }
    if (segment->unpacker == NULL && (segment->unpacker = ZSTD_createDCtx()) == NULL) {
        return TP_ERR_NOMEM;
    }
    segment->fd = open(segment->path, O_RDONLY | O_CLOEXEC);
    if (segment->fd < 0 || fstat(segment->fd, &info) != 0) {
        return tp_status_from_errno(errno);
    }
    segment->size = (uint64_t)info.st_size;
    return TP_OK;
}

/* Reads the stored payload of the frame at an offset. */
static bool read_stored(tp_segment *from, uint64_t offset, uint32_t type, tp_frame *frame)
{
    return tp_file_read_at(from->fd, from->path, offset, TP_FRAME_HEADER_SIZE, &from->stored,
                           NULL) == TP_OK &&
           from->stored.size == TP_FRAME_HEADER_SIZE &&
           tp_frame_get(from->stored.data, offset, frame) && frame->type == type &&
           frame->stored_size <= from->size - offset &&
           tp_file_read_at(from->fd, from->path, offset + TP_FRAME_HEADER_SIZE, frame->stored_size,
                           &from->stored, NULL) == TP_OK &&
           from->stored.size == frame->stored_size &&
           tp_crc32c(0, from->stored.data, from->stored.size) == frame->payload_crc;
}

bool tp_segment_read(tp_segment *segment, uint64_t offset, uint32_t type)
{
    tp_frame frame;
    return read_stored(segment, offset, type, &frame) &&
           tp_frame_unpack(&frame, segment->stored.data, segment->unpacker, &segment->payload) ==
               TP_OK;
}

bool tp_segment_read_words(tp_segment *segment, uint64_t offset, uint32_t words, tp_buf *records,
                           uint64_t *count)
{
    tp_frame frame;
    return read_stored(segment, offset, TP_FRAME_BATCH, &frame) &&
           tp_records_get_words(&frame, segment->stored.data, segment->unpacker, words,
                                &segment->payload, records, count) == TP_OK;
}

bool tp_segment_find_batch(tp_segment *segment, uint64_t from, uint64_t *offset)
{
    tp_run_info run;
    tp_frame frame;
    uint32_t header = 0;
    if (from == 0) {
        if (tp_file_read_at(segment->fd, segment->path, 0, TP_SEGMENT_HEADER_MAX, &segment->stored,
                            NULL) != TP_OK ||
            tp_segment_header_get(segment->stored.data, segment->stored.size, &run, &header) !=
                TP_OK) {
            return false;
        }
        from = header;
    }
    while (tp_file_read_at(segment->fd, segment->path, from, TP_FRAME_HEADER_SIZE, &segment->stored,
                           NULL) == TP_OK &&
           segment->stored.size == TP_FRAME_HEADER_SIZE &&
           tp_frame_get(segment->stored.data, from, &frame)) {
        if (frame.type == TP_FRAME_BATCH) {
            *offset = from;
            return true;
        }
        from += TP_FRAME_HEADER_SIZE + frame.stored_size;
    }
    return false;
}

void tp_segment_close(tp_segment *segment)
{
    tp_file_close(segment->fd);
    segment->fd = -1;
    ZSTD_freeDCtx(segment->unpacker);
    segment->unpacker = NULL;
    tp_buf_free(&segment->stored);
    tp_buf_free(&segment->payload);
}
