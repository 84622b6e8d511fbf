/* The black box of a monitor: a folder on this machine with the memory of its steps, the names that
 * they use and where its run belongs, so that what a killed process had recorded can be brought
 * into its journal (monitor/recover.h). docs/journal.md says what it survives. */
#ifndef TP_MONITOR_BOX_H
#define TP_MONITOR_BOX_H

#include "base/mapping.h"
#include "monitor/plan.h"
#include "record/registry.h"
#include "tensorprobe/reader.h"

typedef struct tp_box tp_box;

/* Makes the box of a run whose directory this will be; registry is borrowed until close. NULL when
 * there is no place for it, which is said in a warning: all else works without. */
tp_box *tp_box_open(const char *directory, const tp_run_info *run, const tp_plan *plan,
                    tp_registry *registry);

/* For the steps. NULL for a NULL. */
tp_mapping *tp_box_memory(const tp_box *box);

/* The run, and its directory, are others. Accepts NULL. */
void tp_box_move(tp_box *box, const char *directory, const tp_run_info *run);

/* The run's directory is there: writes into it where the box is. Accepts NULL. */
tp_status tp_box_announce(tp_box *box, tp_error *error);

/* Says once when there was no room for something. Not from a hook. Accepts NULL. */
void tp_box_report(tp_box *box);

/* The journal has everything: removes the box, also from the run's directory. Memory in it stays
 * valid. Accepts NULL. */
void tp_box_discard(tp_box *box);

/* Removes what is left. Accepts NULL. */
void tp_box_close(tp_box *box);

/* In a forked child. Accepts NULL. */
void tp_box_abandon(tp_box *box);

/* What the files of a box are called, for its recovery. */
#define TP_BOX_LOCK "lock"   /* held as long as its process lives */
#define TP_BOX_RUN "run"     /* tp_box_run_put */
#define TP_BOX_NAMES "names" /* the journal's entries of definitions, one behind the other */
#define TP_BOX_NAME "box"    /* in the run's directory: host, boot and path, each on its line */

#define TP_BOX_PLACES 3

/* The directories in which boxes may be, best first; returns how many. */
uint32_t tp_box_places(const char *places[TP_BOX_PLACES]);

/* The folder of all boxes of this user in a place. */
tp_status tp_box_folder(char path[TP_PATH_MAX], const char *place);

/* This machine and its present boot: two lines. */
void tp_box_machine(tp_buf *out);

/* Whose box it is. */
typedef struct tp_box_run {
    tp_run_info run;
    tp_plan plan;                /* for files that the directory has not got yet */
    uint32_t announced;          /* the directory has been there */
    char directory[TP_PATH_MAX]; /* absolute */
} tp_box_run;

/* Removes a box of which nothing is missed. It is one no more from the first moment on, so that
 * nobody takes a part of it for the whole. */
void tp_box_remove(const char *box);

/* Reads it from a box. TP_ERR_NOTFOUND, TP_ERR_CORRUPT: it is none, one that never was ready, or
 * one that is being removed. */
tp_status tp_box_run_load(tp_box_run *out, const char *box, tp_error *error);

#endif
