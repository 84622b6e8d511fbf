/* A run as it is looked at: its ranks, their steps, series and alerts, taken from the journals
 * once, and on while it goes. One thread takes in; others read under the lock. */
#ifndef TP_VIEW_RUN_H
#define TP_VIEW_RUN_H

#include <pthread.h>

#include "base/map.h"
#include "journal/definitions.h"
#include "tensorprobe/reader.h"
#include "view/baseline.h"
#include "view/grid.h"

#define TP_VIEW_QUANTITIES 16 /* more than there are */

/* A series, whatever rank it is on. */
typedef struct tp_view_key {
    char *row; /* as tp_row_name has it, with "@N" for a virtual pipeline chunk N */
    char *name;
    char *layer; /* the name up to its first number: "layers.17"; "": none */
    uint32_t quantity;
    uint32_t role;
    uint64_t order; /* of execution, when it came first */
    uint32_t dtype; /* when it came last */
    uint32_t has;   /* TP_RECORD_HISTOGRAM, TP_RECORD_EXPONENTS: some record has it */
    uint64_t elements;
} tp_view_key;

/* A step of a rank. */
typedef struct tp_view_column {
    uint64_t step;
    tp_position position; /* before its batch */
    uint32_t journal;     /* of the rank's */
    uint32_t flags;       /* TP_BATCH_… */
    uint64_t begin_ns;
    uint64_t end_ns;
    int64_t wall_ns;
    uint64_t hook_ns;
    uint64_t writer_ns;
    uint64_t wait_ns;
    uint64_t errors;
    uint64_t records;
    uint64_t bytes;  /* that were written; 0: not known */
    bool leaves_out; /* something, for the sake of the budget */
    double gradient; /* norm of all reduced gradients together (of unreduced ones if there are no
                        others); NaN: there are none */
    bool is_over;    /* a later attempt has come to this step again */
    uint32_t abnormal[TP_VIEW_QUANTITIES]; /* series of each quantity that are far from normal */
    uint32_t series[TP_VIEW_QUANTITIES];   /* that it has at all */
} tp_view_column;

/* A value that the training loop logged, of a step that was taken from a digest. */
typedef struct tp_view_scalar {
    uint64_t column;
    uint32_t row; /* of the grid */
    double value;
} tp_view_scalar;

typedef struct tp_view_rank {
    uint32_t rank;
    tp_buf directories; /* char *: one for each attempt, the first one first */
    uint32_t journal;   /* that is being read */
    tp_reader *reader;
    bool closed;  /* cleanly, at the end of what is there */
    bool damaged; /* somewhere */
    tp_grid *grid;
    tp_buf columns;   /* tp_view_column */
    tp_buf rows;      /* uint32_t: key of each row of the grid */
    tp_buf places;    /* uint32_t: row of each key, + 1 */
    tp_buf baselines; /* tp_baseline [row][statistic], once batches are taken in */
    tp_buf known;     /* uint32_t by the reader's id: row + 1 of call 0 */
    tp_buf touched;   /* of the step that is taken in */
    tp_buf incidents; /* tp_view_incident */
    struct tp_view_older *older;
    uint32_t micro_steps; /* of the last step */
    int32_t pp_stage;
    uint64_t alert_count;
    tp_position position;
    uint64_t bytes;
    tp_buf scalars;                    /* tp_view_scalar, in the order of their columns */
    struct tp_brief *brief;            /* what was taken from digests; NULL: nothing was */
    const tp_definitions *definitions; /* of the segment whose alerts are taken from there */
} tp_view_rank;

typedef struct tp_view_run {
    char id[64];
    char *directory; /* of its first journal */
    int64_t start_wall_ns;
    pthread_rwlock_t lock;
    tp_buf ranks; /* tp_view_rank * */
    tp_buf keys;  /* tp_view_key */
    tp_map by_name;
    bool wanted;      /* somebody looks at it: it is read */
    bool is_read;     /* up to what is there */
    uint64_t version; /* grows with what is there */
    char trouble[256];
    struct tp_wishes *wishes; /* for finer cells than there are */
} tp_view_run;

tp_view_run *tp_view_run_new(const tp_run_info *info, const char *directory);
void tp_view_run_free(tp_view_run *run);

/* A journal more. TP_ERR_NOMEM, TP_ERR_IO. */
tp_status tp_view_run_add(tp_view_run *run, const tp_run_info *info, const char *directory,
                          tp_error *error);

/* Takes in the next step of each rank; *more: there was one. */
tp_status tp_view_run_advance(tp_view_run *run, bool *more);

/* For those who take in: the series of a key and call, which is made if need be. */
tp_status tp_view_series_of(tp_view_run *run, const tp_key *key, uint32_t call, uint64_t order,
                            uint32_t *out);

/* The row of a series in the rank's grid, which is made if need be. */
tp_status tp_view_add_row(tp_view_rank *rank, uint32_t key, uint32_t *row);

/* Behind the last column. A later attempt that begins before the end of the one before it has its
 * steps. */
tp_status tp_view_add_column(tp_view_rank *rank, const tp_view_column *column);

/* A key's name by the number that records have it under now; NULL: it is lost. */
const tp_key *tp_view_reader_key(const tp_view_rank *rank, uint32_t key);

/* The cell of one statistic of a row in a step of which it had so many values, and what that does
 * to its baseline. */
tp_cell tp_view_settle(tp_baseline *baseline, uint32_t stat, float low, float high, uint32_t count);

/* What a scaled value's distance is measured from, and in; false: too few values yet. */
bool tp_view_range(const tp_baseline *baseline, uint32_t stat, float *median, float *mad);

/* Whether a cell is far from normal, as pages count series. */
bool tp_view_is_abnormal(tp_cell cell);

/* With the lock held: */
uint32_t tp_view_rank_count(const tp_view_run *run);
tp_view_rank *tp_view_rank_at(const tp_view_run *run, uint32_t index);
tp_view_rank *tp_view_rank_find(const tp_view_run *run, uint32_t rank); /* NULL: none */
uint32_t tp_view_key_count(const tp_view_run *run);
const tp_view_key *tp_view_key_at(const tp_view_run *run, uint32_t key);
uint32_t tp_view_key_find(const tp_view_run *run, uint32_t quantity, const char *row);
#define TP_VIEW_NO_KEY UINT32_MAX
/* Its row's name: of a chunk N of a virtual pipeline with "@N" behind it. */
void tp_view_row_name(const tp_key *key, uint32_t call, char *text, size_t size);
/* The series of a key and call; TP_VIEW_NO_KEY: there is none. */
uint32_t tp_view_key_of(const tp_view_run *run, const tp_key *key, uint32_t call);

uint64_t tp_view_column_count(const tp_view_rank *rank);
const tp_view_column *tp_view_column_at(const tp_view_rank *rank, uint64_t index);
/* The last column of this step; NULL: it isn't there. */
const tp_view_column *tp_view_column_find(const tp_view_rank *rank, uint64_t step);

/* What was logged in a column; NULL: nothing, or it is in the grid. */
const tp_view_scalar *tp_view_scalar_at(const tp_view_rank *rank, uint32_t row, uint64_t column);

/* Row of the rank's grid; UINT32_MAX: it has no such series. */
uint32_t tp_view_row_of(const tp_view_rank *rank, uint32_t key);

/* Smallest and largest step of all ranks; false: there is none. */
bool tp_view_run_steps(const tp_view_run *run, uint64_t *first, uint64_t *last);

/* What distances are measured of: the logarithm of what can't be negative. */
float tp_view_scale(float value, uint32_t stat);

#endif
