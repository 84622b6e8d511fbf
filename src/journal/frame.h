/* The bytes of a journal: segment header, frames, and where the files are. docs/journal.md is the
 * description; this is its C. */
#ifndef TP_JOURNAL_FRAME_H
#define TP_JOURNAL_FRAME_H

#include <stdbool.h>
#include <zstd.h>

#include "base/buf.h"
#include "base/file.h"
#include "tensorprobe/reader.h"

#define TP_JOURNAL_MAJOR 1
#define TP_JOURNAL_MINOR 4
#define TP_SEGMENT_HEADER_SIZE 112u
#define TP_SEGMENT_HEADER_MAX 4096u /* a longer one is damage */

#define TP_FRAME_DEFINITIONS 1
#define TP_FRAME_BATCH 2
#define TP_FRAME_ALERTS 3
#define TP_FRAME_CONTINUED 4 /* the journal goes on in the next segment */
#define TP_FRAME_CLOSE 5
#define TP_FRAME_OVERVIEW 6
#define TP_FRAME_INDEX 7
#define TP_FRAME_SETTINGS 9 /* JSON: how files are made of this; the first frame */
#define TP_FRAME_REMOVED 8  /* the batches of the segment are gone: steps from and to, how many */
#define TP_FRAME_DIGEST 10  /* what tp_digest is made of */
#define TP_FRAME_TRAILER_SIZE 8u /* payload of CONTINUED and CLOSE: where the index lies */

#define TP_FRAME_HEADER_SIZE 40u
#define TP_FRAME_PAYLOAD_MAX (UINT32_C(1) << 30)

typedef struct tp_frame {
    uint32_t type; /* TP_FRAME_… */
    uint32_t codec;
    uint32_t stored_size; /* bytes of the payload in the file */
    uint32_t raw_size;    /* bytes that they unpack to */
    uint64_t step;
    uint64_t offset; /* of the frame in its segment */
    uint32_t payload_crc;
} tp_frame;

void tp_segment_header_put(tp_buf *out, const tp_run_info *run, uint64_t segment);

/* Reads the header of a segment from its first size bytes. TP_OK and *header_size; TP_END: the
 * header is not all there yet; TP_ERR_CORRUPT; TP_ERR_VERSION. */
tp_status tp_segment_header_get(const uint8_t *bytes, size_t size, tp_run_info *run,
                                uint32_t *header_size);

/* Appends a frame that will lie at this offset of its segment. The payload is packed by zstd when
 * that makes it smaller. TP_ERR_ARGUMENT: longer than TP_FRAME_PAYLOAD_MAX. A failed allocation
 * shows in out->failed. */
tp_status tp_frame_put(tp_buf *out, uint32_t type, uint64_t step, uint64_t offset,
                       const tp_buf *payload, ZSTD_CCtx *packer);

/* Likewise; a payload of TP_FRAME_CUT_LEAST bytes or more is packed in pieces that can be unpacked
 * alone: `head` bytes, then pieces of `piece` bytes, so many of them, then the rest. */
#define TP_FRAME_CUT_LEAST ((size_t)1 << 20)
typedef struct tp_frame_cut {
    size_t head;
    size_t piece;
    uint32_t count;
} tp_frame_cut;
tp_status tp_frame_put_cut(tp_buf *out, uint32_t type, uint64_t step, uint64_t offset,
                           const tp_buf *payload, const tp_frame_cut *cut, ZSTD_CCtx *packer);

/* Appends a frame as it lies in another place; stored: its payload there. */
void tp_frame_move(tp_buf *out, const tp_frame *frame, const uint8_t *stored, uint64_t offset);

/* Reads a frame header of TP_FRAME_HEADER_SIZE bytes that lies at this offset; false when it does
 * not check. */
bool tp_frame_get(const uint8_t *bytes, uint64_t offset, tp_frame *frame);

/* The offset of the first frame header that checks, from this one on. TP_END: there is none. */
tp_status tp_frame_find(int fd, const char *path, uint64_t from, tp_buf *bytes, uint64_t *found,
                        tp_error *error);

/* Unpacks a frame's payload into raw. TP_ERR_CORRUPT, TP_ERR_NOMEM. */
tp_status tp_frame_unpack(const tp_frame *frame, const uint8_t *stored, ZSTD_DCtx *unpacker,
                          tp_buf *raw);

/* Unpacks only those pieces that `wants` says yes to, which are asked for by their place in raw,
 * from the first one on: it sees what has been unpacked so far. The others' bytes in raw are
 * whatever was there. */
tp_status tp_frame_unpack_some(const tp_frame *frame, const uint8_t *stored, ZSTD_DCtx *unpacker,
                               bool (*wants)(const void *context, const tp_buf *raw, size_t begin,
                                             size_t end),
                               const void *context, tp_buf *raw);

tp_status tp_segment_path(char path[TP_PATH_MAX], const char *folder, uint64_t segment);

/* Whether name is what tp_segment_path makes of some number. */
bool tp_segment_number(const char *name, uint64_t *segment);

/* The lowest number of a segment file in folder that is at least `from`, and the highest of all.
 * TP_ERR_NOTFOUND when there is none (or no such folder); TP_ERR_IO. */
tp_status tp_segment_find(const char *folder, uint64_t from, uint64_t *next, uint64_t *last);

#endif
