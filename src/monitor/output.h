/* Where the writer thread's steps go: the run directory with journal, rules, console and followers.
 * Only that thread uses it. */
#ifndef TP_MONITOR_OUTPUT_H
#define TP_MONITOR_OUTPUT_H

#include "monitor/writer.h"

typedef struct tp_output tp_output;

tp_status tp_output_new(tp_output **out, const tp_writer_options *options);

/* The steps that follow are written as this configuration says: its rules, ops and ndigits, and as
 * long as nothing has been written its files and journal, too. */
void tp_output_configure(tp_output *output, const tp_config *config);

/* Before the first step: the directory, whose lock this is, and the run are others. */
void tp_output_move(tp_output *output, const tp_run_info *run, int lock_fd);

/* Appends the step to the journal, then the alerts that it raises, which the console shows too.
 * Makes the directory first if need be. A failed call can be repeated with the same step. */
tp_status tp_output_journal(tp_output *output, const tp_batch *batch, tp_error *error);

/* No step has ended for so many seconds; last: the last record of the open one, NULL: none yet.
 * Alert and incident go into the journal at once, before the batch of that step. */
void tp_output_tell_stall(tp_output *output, uint64_t step, const tp_record *last, double seconds);

/* Whether it has been said that the disk is full; until everything is written again that is enough.
 */
bool *tp_output_no_room(tp_output *output);

/* The incident that began with the step, a warning or worse; NULL: none did. */
const tp_record *tp_output_begun(const tp_output *output);

/* After it: the followers. */
void tp_output_follow(tp_output *output, const tp_batch *batch);

/* Written so far, to the journal and by all followers. */
uint64_t tp_output_bytes(const tp_output *output);

/* bytes_…, alerts, followed_steps. */
void tp_output_get_counters(const tp_output *output, tp_monitor_counters *counters);

/* Ends everything; counters stay readable. TP_OK: the followers have all that the journal has. */
tp_status tp_output_finish(tp_output *output);

void tp_output_free(tp_output *output); /* accepts NULL; finished before, if it was used */

/* In a forked child. */
void tp_output_abandon(tp_output *output);

#endif
