/* Rewriting segments that have ended: without their batches, and two of those as one. */
#ifndef TP_JOURNAL_THIN_H
#define TP_JOURNAL_THIN_H

#include <stdbool.h>
#include <stdint.h>
#include <zstd.h>

#include "base/file.h"
#include "journal/frame.h"
#include "journal/index.h"
#include "journal/overview.h"

/* What stands in the place of batches. */
typedef struct tp_removed {
    uint64_t first_step;
    uint64_t last_step;
    uint64_t batches;
    uint32_t attempt; /* of the segment; set by tp_segment_is_thin */
} tp_removed;

/* A segment that is being rewritten: read from its file, made in `out`. */
typedef struct tp_thinning {
    char path[TP_PATH_MAX];
    int fd;
    uint64_t size; /* of the file */
    uint64_t at;   /* the next frame */
    tp_run_info run;
    uint32_t header_size;
    tp_frame frame;
    ZSTD_CCtx *packer;
    ZSTD_DCtx *unpacker;
    tp_buf stored, payload, records, arena;
    tp_buf out;
    tp_index index;
    tp_overviews overviews; /* those that are made anew */
    tp_removed removed;
    bool has_overviews; /* they stay as they are */
    uint32_t end_type;
} tp_thinning;

/* Opens a segment; tp_thinning_close in every case. TP_END: nothing that a reader could read. */
tp_status tp_thinning_open(tp_thinning *thinning, const char *folder, uint64_t segment,
                           tp_error *error);
void tp_thinning_close(tp_thinning *thinning);

/* Reads a frame's header into frame and its payload into stored, of a batch only with_batch.
 * TP_END: there is no more. */
tp_status tp_thinning_read(tp_thinning *thinning, bool with_batch, tp_error *error);

/* Unpacks the overview that was read. */
tp_status tp_thinning_overview(tp_thinning *thinning, uint32_t *level, uint64_t *count,
                               tp_error *error);

/* The header and what says which steps are gone. */
tp_status tp_thinning_put_front(tp_thinning *thinning, tp_error *error);

/* A frame as it was, of this thinning or of another one. */
void tp_thinning_keep(tp_thinning *thinning, const tp_frame *frame, const uint8_t *stored,
                      uint32_t level);

/* Those of the overviews that are wanted (bit n: level n), then the end; out becomes the file. */
#define TP_OVERVIEW_ALL ((2u << TP_OVERVIEW_LEVELS) - 1)
tp_status tp_thinning_finish(tp_thinning *thinning, uint32_t levels, tp_error *error);

tp_status tp_thinning_fail(const tp_thinning *thinning, tp_status status, const char *what,
                           tp_error *error);

/* Rewrites a segment, which has ended, without its batches, in one step. TP_END: it has none. */
tp_status tp_segment_thin(const char *folder, uint64_t segment, tp_error *error);

/* Makes one of two segments of one attempt that have lost their batches, the second standing
 * directly behind the first: it takes the second's place, and the first is removed. Spans get
 * wider: of those up to 16^n steps, only so many levels are kept as make at most 32 spans. TP_END:
 * they can't be joined. */
tp_status tp_segment_join(const char *folder, uint64_t first, uint64_t second, tp_error *error);

/* Reads the payload of the frame that stands in the place of batches. TP_ERR_CORRUPT. */
tp_status tp_removed_get(const tp_buf *payload, tp_removed *removed);

/* Whether a segment has lost its batches, and which ones. */
bool tp_segment_is_thin(const char *folder, uint64_t segment, tp_removed *removed);

#endif
