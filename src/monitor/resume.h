/* Going on in the directory of an earlier start of the same run: as another attempt. */
#ifndef TP_MONITOR_RESUME_H
#define TP_MONITOR_RESUME_H

#include "base/file.h"
#include "config/config.h"
#include "tensorprobe/reader.h"

/* Where a rank goes on. */
typedef struct tp_resumption {
    char directory[TP_PATH_MAX]; /* "": this rank has none */
    char run_id[64];             /* "": no rank has one */
    char what[64];               /* how it was named, for messages */
    uint32_t attempt;            /* this one and the next by tp_resume_enter */
    uint64_t next_step;          /* behind the last one that ended */
} tp_resumption;

/* Finds the latest directory of this rank. named: the id of the run, whose directories are below
 * base, or the directory of one of its ranks; where it is NULL or empty, those whose times lie from
 * the first to the last stamp count (as in their names; they have no year: a last one that is
 * earlier is of the next). TP_END: neither is given. TP_ERR_NOTFOUND: the name looks like a path,
 * and no journal is there. */
tp_status tp_resume_choose(tp_resumption *out, const char *base, uint32_t rank, const char *named,
                           const char (*stamps)[TP_STAMP_SIZE], tp_error *error);

/* Puts the directory that was found, or a new one of the same run, and the run with its next
 * attempt in the place of those given. The directory found gets locked (*lock_fd), what its killed
 * process had recorded is brought in, and next_step is set. TP_ERR_STATE: another process is
 * writing there. */
tp_status tp_resume_enter(tp_resumption *found, const char *base, char directory[TP_PATH_MAX],
                          tp_run_info *run, int *lock_fd, tp_error *error);

/* Both for a start, where either is wanted. *step: where it is 0, what it is to begin with. */
tp_status tp_resume_begin(const char *named, const char (*stamps)[TP_STAMP_SIZE], const char *base,
                          char directory[TP_PATH_MAX], tp_run_info *run, int *lock_fd,
                          uint64_t *step, tp_error *error);

#endif
