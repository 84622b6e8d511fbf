#include "journal/settings.h"

#include <dirent.h>
#include <fcntl.h>

#include "base/crc32c.h"
#include "journal/frame.h"

#define FRAMES 2 /* it is the first one, or stands behind the mark of a segment without batches */

static bool read_settings(const char *folder, uint64_t segment, ZSTD_DCtx *unpacker, tp_buf *text)
{
    char path[TP_PATH_MAX];
    tp_buf bytes = TP_BUF_INIT;
    tp_run_info run;
    uint32_t header = 0;
    bool found = false;
    const int fd =
        tp_segment_path(path, folder, segment) == TP_OK ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    bool good = fd >= 0 &&
                tp_file_read_at(fd, path, 0, TP_SEGMENT_HEADER_MAX, &bytes, NULL) == TP_OK &&
                tp_segment_header_get(bytes.data, bytes.size, &run, &header) == TP_OK;
    uint64_t offset = header;
    for (int i = 0; good && !found && i < FRAMES; i++) {
        tp_frame frame;
        good = tp_file_read_at(fd, path, offset, TP_FRAME_HEADER_SIZE, &bytes, NULL) == TP_OK &&
               bytes.size == TP_FRAME_HEADER_SIZE && tp_frame_get(bytes.data, offset, &frame);
        if (good && frame.type == TP_FRAME_SETTINGS) {
            found = tp_file_read_at(fd, path, offset + TP_FRAME_HEADER_SIZE, frame.stored_size,
                                    &bytes, NULL) == TP_OK &&
                    bytes.size == frame.stored_size &&
                    tp_crc32c(0, bytes.data, bytes.size) == frame.payload_crc &&
                    tp_frame_unpack(&frame, bytes.data, unpacker, text) == TP_OK;
        }
        offset += good ? TP_FRAME_HEADER_SIZE + frame.stored_size : 0;
    }
    tp_file_close(fd);
    tp_buf_free(&bytes);
    return found;
}

tp_status tp_settings_find(const char *folder, tp_buf *text)
{
    uint64_t next;
    uint64_t last = 0;
    ZSTD_DCtx *unpacker = ZSTD_createDCtx();
    bool found = false;
    tp_buf_clear(text);
    if (unpacker == NULL || tp_segment_find(folder, 0, &next, &last) != TP_OK) {
        ZSTD_freeDCtx(unpacker);
        return unpacker == NULL ? TP_ERR_NOMEM : TP_ERR_NOTFOUND;
    }
    for (uint64_t segment = last + 1; segment-- > next && !found;) {
        found = read_settings(folder, segment, unpacker, text);
    }
    ZSTD_freeDCtx(unpacker);
    return found ? TP_OK : TP_ERR_NOTFOUND;
}
