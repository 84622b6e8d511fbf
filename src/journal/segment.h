/* A segment file that has ended, read here and there: frames whose offsets are known. */
#ifndef TP_JOURNAL_SEGMENT_H
#define TP_JOURNAL_SEGMENT_H

#include "journal/frame.h"
#include "journal/index.h"

/* What tp_segment_open makes; stored and payload are the last frame's. */
typedef struct tp_segment {
    int fd;
    char path[TP_PATH_MAX];
    uint64_t size; /* of the file */
    ZSTD_DCtx *unpacker;
    tp_buf stored;
    tp_buf payload;
} tp_segment;

/* Zeroed, with fd -1, is closed; opening again keeps the memory. folder: that of the segments.
 * TP_ERR_NOTFOUND, TP_ERR_IO, TP_ERR_NOMEM. */
tp_status tp_segment_open(tp_segment *segment, const char *folder, uint64_t number);

/* Reads the frame at an offset into payload, if it is whole and of this type. */
bool tp_segment_read(tp_segment *segment, uint64_t offset, uint32_t type);

/* The records of a batch at this offset, but only these of their 24 words of 8 bytes (bit w: bytes
 * 8 w to 8 w + 7 of each record); others are as they were in `records`, zero at first. What is
 * stored as differences is told from the words that are there. Of a large batch no other words are
 * unpacked. */
bool tp_segment_read_words(tp_segment *segment, uint64_t offset, uint32_t words, tp_buf *records,
                           uint64_t *count);

/* The offset of the first batch from this frame on (0: from the first one); false: there is none in
 * front of the first frame that isn't good. */
bool tp_segment_find_batch(tp_segment *segment, uint64_t from, uint64_t *offset);

void tp_segment_close(tp_segment *segment); /* accepts a closed one */

#endif
