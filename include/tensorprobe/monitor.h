/* Watching a training run from inside: open, observe tensors, mark the end of each step, close. */
#ifndef TENSORPROBE_MONITOR_H
#define TENSORPROBE_MONITOR_H

#include <stdint.h>

#include "tensorprobe/record.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tp_monitor tp_monitor;

/* Fill with tp_monitor_defaults, then change what differs. Strings are borrowed during open. */
typedef struct tp_monitor_options {
    uint32_t struct_size; /* set by tp_monitor_defaults */
    uint32_t rank;
    const char *config_path; /* a JSON file, or NULL */
    const char *config_text; /* JSON text; used when config_path is NULL; NULL: all defaults */
    const char *output_dir;  /* NULL: TENSORPROBE_OUTPUT_DIR, MONITOR_OUTPUT_DIR, KJ600_OUTPUT_DIR,
                                else ./monitor_output */
    const char *run_id;      /* NULL: made from the clock and the process */
    int32_t pp_stage;        /* -1: none */
    uint32_t watch_defaults; /* 0: defaults of TrainerMon's configuration, 1: those of watch() */
    uint64_t start_step;     /* number of the first step; 0 with resume: behind the last one */
    const char *resume; /* the id of a run, or the directory of one of its ranks: this rank goes on
                           in its directory, as another attempt; one that has none gets a new one.
                           NULL: as the configuration's append_output says */
} tp_monitor_options;

/* What the monitor knows about itself. Counters since open. */
typedef struct tp_monitor_counters {
    uint64_t steps;         /* boundaries passed */
    uint64_t records;       /* records handed to the writer */
    uint64_t gaps;          /* steps given up: no room for them, or the journal refused them */
    uint64_t alerts;        /* alerts, the ones not shown on the console included */
    uint64_t errors;        /* observations that failed */
    uint64_t hook_ns;       /* own time in hooks */
    uint64_t wait_ns;       /* time that ends of steps waited for the writer */
    uint64_t writer_cpu_ns; /* CPU time of the writer thread */
    uint64_t bytes_journal; /* bytes written, this and the next two */
    uint64_t bytes_csv;
    uint64_t bytes_tensorboard;
    uint64_t journaled_steps; /* steps that are in the journal */
    uint64_t followed_steps;  /* steps that every follower has written */
} tp_monitor_counters;

TP_API void tp_monitor_defaults(tp_monitor_options *options);

/* Reads and validates the configuration; starts the writer thread. The directory is made when the
 * first batch is written. TP_ERR_CONFIG with a position, TP_ERR_NOMEM, TP_ERR_ARGUMENT, TP_ERR_IO
 * when no thread can be started. On success the caller owns *out and ends it with tp_monitor_close.
 * After fork() the child's copy is abandoned: every call on it returns TP_ERR_STATE at once, close
 * only forgets it. */
TP_API tp_status tp_monitor_open(tp_monitor **out, const tp_monitor_options *options,
                                 tp_error *error);

/* The id of a series; the same key gives the same id. Any thread. Allocates: call it before the
 * loop, not in it. */
TP_API tp_status tp_monitor_key(tp_monitor *monitor, const tp_key *key, uint32_t *id);

/* Computes the statistics of *tensor and records them under the key. Any thread; allocates nothing
 * in the steady state and does no I/O. Records nothing on a step or rank that the configuration
 * leaves out (start_step, step_interval, collect_times, module_ranks). */
TP_API tp_status tp_monitor_observe(tp_monitor *monitor, uint32_t key, const tp_tensor *tensor,
                                    uint32_t micro_step);

/* Ends the step: hands its records to the writer. Waits at most wait_ms (configuration, default
 * 1000) until the step before is in the journal and the writer is within its byte budget; a step
 * that finds no room after that becomes a recorded gap; one that is left out leaves no trace. One
 * thread at a time. */
TP_API tp_status tp_monitor_step(tp_monitor *monitor);

/* Copies the counters. Any thread. */
TP_API void tp_monitor_get_counters(const tp_monitor *monitor, tp_monitor_counters *counters);

/* The directory of this rank's run; valid until close. */
TP_API const char *tp_monitor_directory(const tp_monitor *monitor);

/* Writes what is left (an unfinished step as a partial batch) and ends the writer thread. Counters
 * and directory stay readable until close, observing returns TP_ERR_STATE. The status tells whether
 * everything was written; a second call gives the same. */
TP_API tp_status tp_monitor_finish(tp_monitor *monitor);

/* Finishes if need be, and frees. Accepts NULL; sets *monitor to NULL. The status is that of
 * tp_monitor_finish. */
TP_API tp_status tp_monitor_close(tp_monitor **monitor);

#ifdef __cplusplus
}
#endif

#endif
