/* A run that was started again from a checkpoint has some steps twice: those of the later start
 * count. */
#ifndef TP_JOURNAL_ATTEMPTS_H
#define TP_JOURNAL_ATTEMPTS_H

#include "base/buf.h"
#include "tensorprobe/status.h"

/* Of each attempt that segments speak of, the first step. Zeroed is empty. */
typedef struct tp_attempts {
    tp_buf items;
} tp_attempts;

/* Reads them from the headers of all segments in a folder, and of each attempt as much as leads to
 * its first step. What is damaged is passed over. TP_ERR_NOMEM. */
tp_status tp_attempts_load(tp_attempts *attempts, const char *folder);

#define TP_ATTEMPTS_NO_STEP UINT64_MAX

/* The step from which on later attempts have recorded again what this one had; TP_ATTEMPTS_NO_STEP:
 * there is none. */
uint64_t tp_attempts_end(const tp_attempts *attempts, uint32_t attempt);

/* How many there have been: the next one's number. */
uint32_t tp_attempts_count(const tp_attempts *attempts);

void tp_attempts_free(tp_attempts *attempts);

#endif
