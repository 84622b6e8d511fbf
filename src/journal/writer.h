/* Appending to a journal: docs/journal.md says what the bytes are. One thread. */
#ifndef TP_JOURNAL_WRITER_H
#define TP_JOURNAL_WRITER_H

#include "base/buf.h"
#include "journal/retention.h"
#include "record/registry.h"
#include "tensorprobe/reader.h"

typedef struct tp_journal tp_journal;

#define TP_JOURNAL_SEGMENT_BYTES (UINT64_C(32) << 20)

/* Segments tell from now on how files are made of them, as JSON; also the present one, if there is
 * nothing in it. What fails is left out. */
void tp_journal_tell(tp_journal *journal, const tp_buf *settings);

/* What is kept from now on; nothing is removed before the next segment ends. */
void tp_journal_keep(tp_journal *journal, const tp_retention *limits);

/* Makes directory/journal (and directory) if need be. When it holds a journal already, appending
 * goes on in a new segment. segment_bytes 0: TP_JOURNAL_SEGMENT_BYTES. The registry is borrowed
 * until close. */
tp_status tp_journal_open(tp_journal **out, const char *directory, const tp_run_info *run,
                          const tp_registry *registry, uint64_t segment_bytes, tp_error *error);

/* What is appended from now on belongs to this attempt: it goes into a new segment. */
void tp_journal_begin_attempt(tp_journal *journal, uint32_t attempt);

/* Appends one step: definitions not yet in this segment, then the batch. When it fails nothing of
 * it counts (the segment is cut back to its last good frame), and the call can be repeated. When it
 * returns TP_OK the bytes survive the death of the process. */
tp_status tp_journal_append_batch(tp_journal *journal, const tp_batch *batch, tp_error *error);

/* Appends alerts (records of kind TP_RECORD_ALERT) of a step whose batch has been appended. */
tp_status tp_journal_append_alerts(tp_journal *journal, uint64_t step, const tp_record *alerts,
                                   uint64_t count, tp_error *error);

/* Behind the last frame: a reader that goes on from here finds the next one. */
tp_position tp_journal_position(const tp_journal *journal);

/* Bytes written since open. */
uint64_t tp_journal_bytes(const tp_journal *journal);

/* Closes without that mark, for a journal of which it isn't known how it ended. Accepts NULL. */
void tp_journal_leave(tp_journal **journal);

/* Appends the mark of a clean end and closes. Accepts NULL; sets *journal to NULL, also when it
 * fails. */
tp_status tp_journal_close(tp_journal **journal, tp_error *error);

#endif
