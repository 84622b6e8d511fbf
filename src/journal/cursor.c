#include "journal/cursor.h"

#include <string.h>

#include "base/crc32c.h"
#include "base/file.h"

/* Magic, flags, step, segment, offset, attempt, size of the blob; the blob; a CRC-32C of it all. */
#define HEADER_SIZE 40u
#define FLAG_ANY 1u

static const uint8_t magic[4] = {'T', 'P', 'C', 1};

tp_status tp_cursor_load(const char *path, tp_cursor *cursor, tp_buf *blob, tp_error *error)
{
    tp_buf file = TP_BUF_INIT;
    *cursor = (tp_cursor){0};
    tp_buf_clear(blob);
    tp_status status = tp_file_read(path, &file, error);
    if (status == TP_ERR_NOTFOUND) {
        status = TP_OK;
        goto done;
    }
    if (status != TP_OK) {
        goto done;
    }
    const uint8_t *p = file.data;
    if (file.size < HEADER_SIZE + 4 || memcmp(p, magic, sizeof magic) != 0 ||
        tp_get_u32(p + 36) != file.size - HEADER_SIZE - 4 ||
        tp_crc32c(0, p, file.size - 4) != tp_get_u32(p + file.size - 4)) {
        status = tp_fail(error, TP_ERR_CORRUPT, "damaged cursor: %s", path);
        goto done;
    }
    tp_buf_put(blob, p + HEADER_SIZE, file.size - HEADER_SIZE - 4);
    if (blob->failed) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory to read %s", path);
        goto done;
    }
    cursor->any = (tp_get_u32(p + 4) & FLAG_ANY) != 0;
    cursor->step = tp_get_u64(p + 8);
    cursor->position.segment = tp_get_u64(p + 16);
    cursor->position.offset = tp_get_u64(p + 24);
    cursor->attempt = tp_get_u32(p + 32);
done:
    tp_buf_free(&file);
    return status;
}

tp_status tp_cursor_store(const char *path, const tp_cursor *cursor, const tp_buf *blob,
                          tp_error *error)
{
    tp_status status;
    tp_buf file = TP_BUF_INIT;
    if (blob->size > UINT32_MAX - HEADER_SIZE - 4) {
        return tp_fail(error, TP_ERR_ARGUMENT, "too much for a cursor: %s", path);
    }
    tp_buf_put(&file, magic, sizeof magic);
    tp_buf_put_u32(&file, cursor->any ? FLAG_ANY : 0);
    tp_buf_put_u64(&file, cursor->step);
    tp_buf_put_u64(&file, cursor->position.segment);
    tp_buf_put_u64(&file, cursor->position.offset);
    tp_buf_put_u32(&file, cursor->attempt);
    tp_buf_put_u32(&file, (uint32_t)blob->size);
    tp_buf_put_buf(&file, blob);
    if (!file.failed) {
        tp_buf_put_u32(&file, tp_crc32c(0, file.data, file.size));
    }
    status = file.failed ? tp_fail(error, TP_ERR_NOMEM, "no memory to write %s", path)
                         : tp_file_replace(path, file.data, file.size, error);
    tp_buf_free(&file);
    return status;
}
