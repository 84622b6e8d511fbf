/* Tables of one or several journals, as streams of Arrow arrays. */
#ifndef TP_ARROW_QUERY_H
#define TP_ARROW_QUERY_H

#include "arrow/columns.h"
#include "journal/select.h"

typedef struct tp_query_options {
    uint32_t table; /* TP_TABLE_… */
    const char *const *directories;
    uint32_t directory_count;
    const char *const *columns; /* 0: all of the table */
    uint32_t column_count;
    const uint32_t *ranks; /* 0: all */
    uint32_t rank_count;
    uint64_t first_step; /* of all but runs and keys: the others are passed over unread */
    uint64_t last_step;
    tp_selection selection; /* of keys, series and alerts */
    uint64_t width;         /* of overview: steps in a span at most; 0: as many as there are */
    uint64_t batch_rows;    /* of an array at most; 0: 65536 */
} tp_query_options;

/* Every step of everything in a table. */
tp_query_options tp_query_options_defaults(uint32_t table);

/* What is asked for. It doesn't change, so any thread may use it. */
typedef struct tp_query tp_query;

/* Copies the options. TP_ERR_ARGUMENT (a column that isn't there), TP_ERR_NOMEM. */
tp_status tp_query_new(tp_query **out, const tp_query_options *options, tp_error *error);

tp_query *tp_query_hold(tp_query *query);
void tp_query_drop(tp_query *query); /* NULL is fine */

/* The table's columns. TP_ERR_NOMEM. */
tp_status tp_query_schema(const tp_query *query, struct ArrowSchema *out);

/* A stream that reads the journals from their beginning up to what is there when it gets there. It
 * holds the query, no more than one array at a time, and belongs to one thread at a time. A damaged
 * place is passed over and counted; so is a record whose name was lost to one. */
tp_status tp_query_stream(tp_query *query, struct ArrowArrayStream *out);

/* Damaged places that the stream begun last has met so far. */
uint64_t tp_query_damaged(const tp_query *query);

#endif
