/* Records as they lie in the payload of a frame: byte p of every record, for p = 0 … 191. Bytes
 * that mean the same stand together, which zstd packs a sixth smaller than whole words, and twice
 * as fast. */
#ifndef TP_JOURNAL_RECORDS_H
#define TP_JOURNAL_RECORDS_H

#include "journal/frame.h"

/* Appends `count` items of this many bytes (a multiple of 8), dealt out by bytes. */
void tp_planes_put(tp_buf *out, const void *items, uint32_t size, uint64_t count);

/* Reads such into items (emptied first). `available` bytes are there; stored_size may exceed size:
 * a later version's further fields are left out. TP_ERR_CORRUPT, TP_ERR_NOMEM. */
tp_status tp_planes_get(const uint8_t *planes, uint64_t available, uint32_t stored_size,
                        uint32_t size, uint64_t count, tp_buf *items);

void tp_records_put_batch(tp_buf *out, const tp_batch *batch);
void tp_records_put_alerts(tp_buf *out, const tp_record *alerts, uint64_t count);

/* Fill batch from a payload; the records go to `records` and what they have beside to `arena`:
 * batch points into both. TP_ERR_CORRUPT, TP_ERR_NOMEM. get_alerts sets count and records only. */
tp_status tp_records_get_batch(const tp_buf *payload, tp_batch *batch, tp_buf *records,
                               tp_buf *arena);
tp_status tp_records_get_alerts(const tp_buf *payload, tp_batch *batch, tp_buf *records);

/* As tp_segment_read_words, of a batch's frame and its stored payload. */
tp_status tp_records_get_words(const tp_frame *frame, const uint8_t *stored, ZSTD_DCtx *unpacker,
                               uint32_t words, tp_buf *payload, tp_buf *records, uint64_t *count);

/* How the payload of a batch is cut for that. */
tp_frame_cut tp_records_cut(const tp_batch *batch);

#endif
