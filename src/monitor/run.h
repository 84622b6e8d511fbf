/* Where a run's files go, and who owns them at the moment. */
#ifndef TP_MONITOR_RUN_H
#define TP_MONITOR_RUN_H

#include "base/error.h"
#include "base/file.h"
#include "tensorprobe/reader.h"

/* The base directory: given (may be NULL), else TENSORPROBE_OUTPUT_DIR, MONITOR_OUTPUT_DIR,
 * KJ600_OUTPUT_DIR, else "./monitor_output". */
const char *tp_run_base_directory(const char *given);

/* Eight hex digits that no other run has; no random number generator of the program is touched. */
void tp_run_make_id(char id[9]);

/* "<base>/<Mon><DD>_<HH>-<MM>-<SS>-rank<R>-<id>", of the local time now, or of the first second
 * behind it that no directory has. */
tp_status tp_run_directory(char path[TP_PATH_MAX], const char *base, uint32_t rank, const char *id,
                           tp_error *error);

/* Id and start of a run of run->rank, with its base and its directory, from what was asked for;
 * output_dir and run_id may be NULL. */
tp_status tp_run_name(tp_run_info *run, char base[TP_PATH_MAX], char directory[TP_PATH_MAX],
                      const char *output_dir, const char *run_id, tp_error *error);

/* Whether the base directory can be written, or made where it isn't there yet: asks, and makes
 * nothing. The message has the path and the system's reason. */
tp_status tp_run_check_base(const char *base, tp_error *error);

/* Takes the directory's lock file, which says "not closed cleanly yet" as long as it exists, and
 * "its process lives" as long as it is locked. *fd holds the lock. TP_ERR_STATE: somebody has
 * it. */
tp_status tp_run_lock(const char *directory, int *fd, tp_error *error);

/* Gives the lock back; clean: and removes the file. fd may be -1. */
void tp_run_unlock(const char *directory, int fd, int clean);

/* What its lock file says of a directory (one that belongs to a rank; or its journal folder). */
#define TP_RUN_OPEN 1    /* a process has it */
#define TP_RUN_LEFT 2    /* its process is gone, and has not closed it */
#define TP_RUN_NO_LOCK 3 /* closed, recovered, or brought from elsewhere */
#define TP_RUN_NOT_KNOWN 4
uint32_t tp_run_state(const char *directory);

/* Calls visit for every directory of this rank below base that holds a journal or names a black
 * box, was left without a
 * clean end and whose process is gone; it is locked during the call. visit returns TP_OK when all
 * is recovered, and gets *stop, which ends the walk. */
void tp_run_visit_unfinished(const char *base, uint32_t rank, const int *stop,
                             tp_status (*visit)(const char *directory, const int *stop));

#endif
