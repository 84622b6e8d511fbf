/* The writer thread: takes closed steps in order, writes each to the journal first, then lets rules
 * and followers see it. It holds no lock while it writes, and never needs the interpreter. */
#ifndef TP_MONITOR_WRITER_H
#define TP_MONITOR_WRITER_H

#include "config/config.h"
#include "monitor/box.h"
#include "record/registry.h"
#include "record/step.h"
#include "tensorprobe/monitor.h"
#include "tensorprobe/reader.h"

typedef struct tp_writer tp_writer;

typedef struct tp_writer_options {
    const char *base;      /* base directory of all runs */
    const char *directory; /* of this rank's run; made when the first step arrives */
    tp_run_info run;
    int32_t pp_stage;
    const tp_config *config; /* borrowed until close, as is everything else here */
    tp_registry *registry;
    tp_box *box; /* may be NULL */
    int lock_fd; /* of the directory, where it is there already; else -1 */

    /* Where training is: the number of the open step, and true with its last record if there is
     * one. From the writer's thread. */
    bool (*peek)(void *context, uint64_t *step, tp_record *last);
    void *context;
} tp_writer_options;

tp_status tp_writer_open(tp_writer **out, const tp_writer_options *options, tp_error *error);

/* Hands over a closed step, or records a gap in its place when the writer can't take it. Before
 * that waits, at most the configured time, until all earlier complete steps are in the journal and
 * what waits is within the budget. *waited_ns: how long. */
void tp_writer_submit(tp_writer *writer, tp_step *step, uint64_t *waited_ns);

/* Steps that are submitted from now on are written as this configuration says, which must live as
 * long as the writer. */
void tp_writer_configure(tp_writer *writer, const tp_config *config);

/* The directory, whose lock this is, and the run are others from now on. TP_ERR_STATE: a step has
 * been handed over. */
tp_status tp_writer_move(tp_writer *writer, const tp_run_info *run, int lock_fd);

/* Ends the recovery of earlier runs, which may have a directory's lock, and begins it anew. */
void tp_writer_stop_recovery(tp_writer *writer);
void tp_writer_start_recovery(tp_writer *writer);

/* A step that has been written and can be begun again; NULL when there is none. */
tp_step *tp_writer_take_spare(tp_writer *writer);

/* The incident that has begun since the last call, a warning or worse, the worst of several. False:
 * none has. From one thread. */
bool tp_writer_take_incident(tp_writer *writer, tp_record *incident);

void tp_writer_get_counters(tp_writer *writer, tp_monitor_counters *counters);

/* Writes what is left and ends the thread; counters stay readable. The status tells whether all was
 * written; a second call gives the same. */
tp_status tp_writer_finish(tp_writer *writer);

void tp_writer_free(tp_writer *writer); /* finished before */

/* In a forked child: lets go of what must not be shared with the parent. Takes no lock. */
void tp_writer_abandon(tp_writer *writer);

#endif
