/* Puts the parts of parameters that the ranks of a run have together, step by step. */
#ifndef TP_ARROW_MERGER_H
#define TP_ARROW_MERGER_H

#include "arrow/columns.h"
#include "journal/select.h"

/* Whether each rank has the same number of this quantity, or a part of the same numbers. */
bool tp_merger_takes(uint32_t quantity);

typedef struct tp_merger tp_merger;

typedef struct tp_merger_options {
    const char *const *directories;
    uint32_t directory_count;
    const uint32_t *ranks; /* 0: all */
    uint32_t rank_count;
    uint64_t first_step;
    uint64_t last_step;
    tp_selection selection;
} tp_merger_options;

/* One step of one run. Valid until the next call. */
typedef struct tp_merged_step {
    tp_row_source source; /* run and batch: those of its first rank */
    const tp_row *rows;
    uint64_t count;
    uint64_t damaged; /* places that have been passed over on the way */
    bool new_run;     /* keys of the run before are gone */
} tp_merged_step;

/* Borrows the options' lists until close. TP_ERR_NOMEM, and what tp_reader_open says. */
tp_status tp_merger_open(tp_merger **out, const tp_merger_options *options, tp_error *error);

/* TP_OK, TP_END, TP_ERR_NOMEM, and what reading says. */
tp_status tp_merger_next(tp_merger *merger, tp_merged_step *out, tp_error *error);

void tp_merger_close(tp_merger *merger); /* NULL is fine */

#endif
