/* Records as they are stored in a batch: fields that others nearly tell become small numbers, which
 * pack well. docs/journal.md describes the bytes. */
#ifndef TP_JOURNAL_DIFFERENCES_H
#define TP_JOURNAL_DIFFERENCES_H

#include "tensorprobe/record.h"

/* Copies records of one batch, those of kind TP_RECORD_STATS as differences. *time is that of the
 * record before them, 0 at first, and that of the last one afterwards. */
void tp_differences_make(tp_record *to, const tp_record *from, uint64_t count, uint64_t *time);

/* Undoes it, in place, for all records of a batch. What has not been made so stays. */
void tp_differences_undo(tp_record *records, uint64_t count);

#endif
