#include "journal/frame.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"

#define CODEC_NONE 0
#define CODEC_ZSTD 1
#define SCAN_SIZE 65536u /* bytes looked through at a time for the next frame behind damage */
#define ZSTD_LEVEL 1

static const uint8_t segment_magic[8] = {0x89, 'T', 'P', 'J', '\r', '\n', 0x1a, '\n'};
static const uint8_t frame_magic[4] = {'T', 'P', 'F', TP_JOURNAL_MAJOR};

/* One block of zstd holds at most 128 KiB and takes at least 4 bytes: what claims to unpack to more
 * is damage, and never makes us ask for the memory. */
#define ZSTD_RATIO_MAX (128u * 1024u / 4u)

static void put_crc(tp_buf *out, size_t from)
{
    if (!out->failed) {
        tp_buf_put_u32(out, tp_crc32c(0, out->data + from, out->size - from));
    }
}

void tp_segment_header_put(tp_buf *out, const tp_run_info *run, uint64_t segment)
{
    char run_id[sizeof run->run_id] = {0};
    size_t from = out->size;
    memcpy(run_id, run->run_id, strnlen(run->run_id, sizeof run_id - 1));
    tp_buf_put(out, segment_magic, sizeof segment_magic);
    tp_buf_put_u16(out, TP_JOURNAL_MAJOR);
    tp_buf_put_u16(out, TP_JOURNAL_MINOR);
    tp_buf_put_u32(out, TP_SEGMENT_HEADER_SIZE);
    tp_buf_put_u64(out, segment);
    tp_buf_put_u32(out, run->rank);
    tp_buf_put_u32(out, run->attempt);
    tp_buf_put_u64(out, (uint64_t)run->start_wall_ns);
    tp_buf_put(out, run_id, sizeof run_id);
    tp_buf_put_u32(out, 0);
    put_crc(out, from);
}

tp_status tp_segment_header_get(const uint8_t *bytes, size_t size, tp_run_info *run,
                                uint32_t *header_size)
{
    if (size < 16) {
        return TP_END;
    }
    uint32_t length = tp_get_u32(bytes + 12);
    if (memcmp(bytes, segment_magic, sizeof segment_magic) != 0 || length < 20 ||
        length > TP_SEGMENT_HEADER_MAX) {
        return TP_ERR_CORRUPT;
    }
    if (size < length) {
        return TP_END;
    }
    if (tp_crc32c(0, bytes, length - 4) != tp_get_u32(bytes + length - 4)) {
        return TP_ERR_CORRUPT;
    }
    if (tp_get_u16(bytes + 8) != TP_JOURNAL_MAJOR) {
        return TP_ERR_VERSION;
    }
    if (length < TP_SEGMENT_HEADER_SIZE) {
        return TP_ERR_CORRUPT;
    }
    run->rank = tp_get_u32(bytes + 24);
    run->attempt = tp_get_u32(bytes + 28);
    run->start_wall_ns = (int64_t)tp_get_u64(bytes + 32);
    memcpy(run->run_id, bytes + 40, sizeof run->run_id);
    run->run_id[sizeof run->run_id - 1] = '\0';
    *header_size = length;
    return TP_OK;
}

static void put_header(tp_buf *out, const tp_frame *frame, uint64_t offset)
{
    const size_t from = out->size;
    tp_buf_put(out, frame_magic, sizeof frame_magic);
    tp_buf_put_u16(out, (uint16_t)(frame->type | frame->codec << 8));
    tp_buf_put_u16(out, 0);
    tp_buf_put_u32(out, frame->stored_size);
    tp_buf_put_u32(out, frame->raw_size);
    tp_buf_put_u64(out, frame->step);
    tp_buf_put_u64(out, offset);
    tp_buf_put_u32(out, frame->payload_crc);
    put_crc(out, from);
}

/* Packs all of the payload into less room than it has itself; 0: it can't be done, whatever keeps
 * zstd from it, room or memory. */
static size_t pack(uint8_t *stored, const tp_buf *payload, const tp_frame_cut *cut,
                   ZSTD_CCtx *packer)
{
    const size_t room = payload->size - 1;
    size_t size = 0;
    size_t from = 0;
    for (uint32_t i = 0; from < payload->size; i++) {
        const size_t left = payload->size - from;
        const size_t wanted = i == 0 ? cut->head : i <= cut->count ? cut->piece : left;
        const size_t part = wanted < left ? wanted : left;
        const size_t packed = ZSTD_compressCCtx(packer, stored + size, room - size,
                                                payload->data + from, part, ZSTD_LEVEL);
        if (ZSTD_isError(packed)) {
            return 0;
        }
        size += packed;
        from += part;
    }
    return size;
}

tp_status tp_frame_put_cut(tp_buf *out, uint32_t type, uint64_t step, uint64_t offset,
                           const tp_buf *payload, const tp_frame_cut *cut, ZSTD_CCtx *packer)
{
    const tp_frame_cut whole = {.head = payload->size};
    if (payload->size > TP_FRAME_PAYLOAD_MAX) {
        return TP_ERR_ARGUMENT;
    }
    size_t from = out->size;
    if (tp_buf_extend(out, TP_FRAME_HEADER_SIZE + payload->size) == NULL) {
        return TP_OK;
    }
    uint8_t *stored = out->data + from + TP_FRAME_HEADER_SIZE;
    size_t stored_size = payload->size;
    uint8_t codec = CODEC_NONE;
    if (payload->size > 1) {
        const size_t packed =
            pack(stored, payload, payload->size >= TP_FRAME_CUT_LEAST ? cut : &whole, packer);
        if (packed > 0) {
            stored_size = packed;
            codec = CODEC_ZSTD;
        }
    }
    if (codec == CODEC_NONE && payload->size > 0) {
        memcpy(stored, payload->data, payload->size);
    }
    const tp_frame frame = {.type = type,
                            .codec = codec,
                            .stored_size = (uint32_t)stored_size,
                            .raw_size = (uint32_t)payload->size,
                            .step = step,
                            .payload_crc = tp_crc32c(0, stored, stored_size)};
    out->size = from;
    put_header(out, &frame, offset);
    out->size += stored_size;
    return TP_OK;
}

tp_status tp_frame_put(tp_buf *out, uint32_t type, uint64_t step, uint64_t offset,
                       const tp_buf *payload, ZSTD_CCtx *packer)
{
    const tp_frame_cut whole = {.head = payload->size};
    return tp_frame_put_cut(out, type, step, offset, payload, &whole, packer);
}

void tp_frame_move(tp_buf *out, const tp_frame *frame, const uint8_t *stored, uint64_t offset)
{
    put_header(out, frame, offset);
    tp_buf_put(out, stored, frame->stored_size);
}

bool tp_frame_get(const uint8_t *bytes, uint64_t offset, tp_frame *frame)
{
    const uint32_t crc_at = TP_FRAME_HEADER_SIZE - 4;
    if (memcmp(bytes, frame_magic, sizeof frame_magic) != 0 ||
        tp_crc32c(0, bytes, crc_at) != tp_get_u32(bytes + crc_at) ||
        tp_get_u64(bytes + 24) != offset) {
        return false;
    }
    *frame = (tp_frame){.type = bytes[4],
                        .codec = bytes[5],
                        .stored_size = tp_get_u32(bytes + 8),
                        .raw_size = tp_get_u32(bytes + 12),
                        .step = tp_get_u64(bytes + 16),
                        .offset = offset,
                        .payload_crc = tp_get_u32(bytes + 32)};
    return frame->stored_size <= TP_FRAME_PAYLOAD_MAX && frame->raw_size <= TP_FRAME_PAYLOAD_MAX;
}

tp_status tp_frame_find(int fd, const char *path, uint64_t from, tp_buf *bytes, uint64_t *found,
                        tp_error *error)
{
    for (;;) {
        tp_frame frame;
        tp_status status = tp_file_read_at(fd, path, from, SCAN_SIZE, bytes, error);
        if (status != TP_OK) {
            return status;
        }
        if (bytes->size < TP_FRAME_HEADER_SIZE) {
            return TP_END;
        }
        size_t starts = bytes->size - TP_FRAME_HEADER_SIZE + 1;
        for (size_t i = 0; i < starts; i++) {
            if (tp_frame_get(bytes->data + i, from + i, &frame)) {
                *found = from + i;
                return TP_OK;
            }
        }
        from += starts;
    }
}

static bool wants_all(const void *context, const tp_buf *raw, size_t begin, size_t end)
{
    (void)context;
    (void)raw;
    (void)begin;
    (void)end;
    return true;
}

tp_status tp_frame_unpack_some(const tp_frame *frame, const uint8_t *stored, ZSTD_DCtx *unpacker,
                               bool (*wants)(const void *context, const tp_buf *raw, size_t begin,
                                             size_t end),
                               const void *context, tp_buf *raw)
{
    tp_buf_clear(raw);
    if (frame->codec == CODEC_NONE && frame->raw_size == frame->stored_size) {
        tp_buf_put(raw, stored, frame->stored_size);
        return raw->failed ? TP_ERR_NOMEM : TP_OK;
    }
    if (frame->codec != CODEC_ZSTD ||
        frame->raw_size > (uint64_t)frame->stored_size * ZSTD_RATIO_MAX) {
        return TP_ERR_CORRUPT;
    }
    if (tp_buf_extend(raw, frame->raw_size) == NULL && frame->raw_size > 0) {
        return TP_ERR_NOMEM;
    }
    size_t from = 0;
    size_t to = 0;
    while (from < frame->stored_size) {
        const size_t packed =
            ZSTD_findFrameCompressedSize(stored + from, frame->stored_size - from);
        const unsigned long long size =
            ZSTD_getFrameContentSize(stored + from, frame->stored_size - from);
        if (ZSTD_isError(packed) || size > frame->raw_size - to) { /* also when it is unknown */
            return TP_ERR_CORRUPT;
        }
        if (wants(context, raw, to, to + size) &&
            ZSTD_decompressDCtx(unpacker, raw->data + to, size, stored + from, packed) != size) {
            return TP_ERR_CORRUPT;
        }
        from += packed;
        to += size;
    }
    return to == frame->raw_size ? TP_OK : TP_ERR_CORRUPT;
}

tp_status tp_frame_unpack(const tp_frame *frame, const uint8_t *stored, ZSTD_DCtx *unpacker,
                          tp_buf *raw)
{
    return tp_frame_unpack_some(frame, stored, unpacker, wants_all, NULL, raw);
}

tp_status tp_segment_path(char path[TP_PATH_MAX], const char *folder, uint64_t segment)
{
    char name[32];
    snprintf(name, sizeof name, "%06" PRIu64 ".tpj", segment);
    return tp_path_join(path, folder, name);
}

bool tp_segment_number(const char *name, uint64_t *segment)
{
    char again[32];
    char *end;
    if (name[0] < '0' || name[0] > '9') {
        return false;
    }
    *segment = strtoull(name, &end, 10);
    snprintf(again, sizeof again, "%06" PRIu64 ".tpj", *segment);
    return strcmp(name, again) == 0;
}

tp_status tp_segment_find(const char *folder, uint64_t from, uint64_t *next, uint64_t *last)
{
    bool found = false;
    DIR *listing = opendir(folder);
    if (listing == NULL) {
        return errno == ENOTDIR ? TP_ERR_NOTFOUND : tp_status_from_errno(errno);
    }
    *next = UINT64_MAX;
    *last = 0;
    for (;;) {
        uint64_t segment;
        const struct dirent *entry = readdir(listing);
        if (entry == NULL) {
            break;
        }
        if (!tp_segment_number(entry->d_name, &segment)) {
            continue;
        }
        *last = segment > *last ? segment : *last;
        if (segment >= from) {
            *next = segment < *next ? segment : *next;
            found = true;
        }
    }
    closedir(listing);
    return found ? TP_OK : TP_ERR_NOTFOUND;
}
