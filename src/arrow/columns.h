/* The columns of each table: how they are called, and where their values come from. */
#ifndef TP_ARROW_COLUMNS_H
#define TP_ARROW_COLUMNS_H

#include "arrow/strings.h"
#include "tensorprobe/reader.h"

/* One row for each … */
#define TP_TABLE_RUNS 1      /* journal */
#define TP_TABLE_KEYS 2      /* key of a journal */
#define TP_TABLE_SERIES 3    /* record that was filled */
#define TP_TABLE_ALERTS 4    /* alert */
#define TP_TABLE_STEPS 5     /* step */
#define TP_TABLE_GAPS 6      /* step whose records were given up */
#define TP_TABLE_OVERVIEW 7  /* key in a span of steps */
#define TP_TABLE_MERGED 8    /* parameter, as its parts on all ranks together are, in a step */
#define TP_TABLE_EXPONENTS 9 /* exponent that elements of a value have */
#define TP_TABLE_COUNT 9     /* the largest of them */

/* How far a journal goes. */
typedef struct tp_extent {
    uint64_t steps;
    int64_t first_step; /* -1: there is none */
    int64_t last_step;
    uint64_t removed; /* steps of which only alerts and overviews are left */
    uint32_t attempts;
    bool closed;
} tp_extent;

/* The journal goes on with this item. */
void tp_extent_take(tp_extent *extent, const tp_item *item);

/* What rows have in common. */
typedef struct tp_row_source {
    const char *directory;
    const tp_run_info *run;
    const tp_reader *reader;
    const tp_batch *batch;   /* NULL in runs and keys */
    const tp_extent *extent; /* of runs */
} tp_row_source;

/* What a row of a parameter has been put together from. */
typedef struct tp_merged {
    uint32_t parts;
    uint32_t records;   /* copies of parts included */
    int64_t missing;    /* elements of which no part is there */
    uint32_t different; /* copies whose statistics aren't those of the first one of their part */
    uint32_t other;     /* the rank of the first of these */
    uint32_t first;     /* and of the copy that it differs from */
} tp_merged;

/* Elements of a value that have one exponent. */
typedef struct tp_exponent {
    int32_t exponent;
    uint64_t elements;
} tp_exponent;

typedef struct tp_row {
    const tp_key *key;           /* of keys, series, alerts, overview, merged and exponents */
    const tp_record *record;     /* of series, alerts, merged and exponents */
    const tp_exponent *exponent; /* of exponents */
    const tp_merged *merged;     /* of merged */
    const tp_overview *overview; /* of overview */
} tp_row;

typedef struct tp_column tp_column;

/* The values of one column in the batch that is being made. */
typedef struct tp_cells {
    const tp_column *column;
    tp_buf values;
    tp_buf offsets;     /* of a list */
    tp_buf valid;       /* bits of a list */
    uint64_t nulls;     /* likewise */
    tp_strings strings; /* of a text */
} tp_cells;

/* "runs" …; NULL for an unknown table. Static. */
const char *tp_table_name(uint32_t table);

/* The inverse; 0 when there is no such table. */
uint32_t tp_table_from_name(const char *name);

/* The column of a table at this place, or of this name; NULL when there is none. */
const tp_column *tp_column_at(uint32_t table, uint32_t place);
const tp_column *tp_column_find(uint32_t table, const char *name);

const char *tp_column_name(const tp_column *column);

/* A schema of this column. TP_ERR_NOMEM. */
tp_status tp_column_schema(const tp_column *column, struct ArrowSchema *out);

/* Adds the values of these rows behind `length` that are there. TP_ERR_NOMEM, and what
 * tp_strings_add says. */
tp_status tp_cells_add(tp_cells *cells, uint64_t length, const tp_row_source *source,
                       const tp_row *rows, uint64_t count);

/* Moves the values into an array; the texts stay. TP_ERR_NOMEM. */
tp_status tp_cells_take(tp_cells *cells, uint64_t length, struct ArrowArray *out);

void tp_cells_free(tp_cells *cells);

#endif
