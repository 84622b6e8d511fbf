/* Where rows go: one file a kind of server, behind one small table. */
#ifndef TP_SHIP_BACKEND_H
#define TP_SHIP_BACKEND_H

#include "base/error.h"
#include "config/url.h"
#include "ship/rows.h"
#include "tensorprobe/reader.h"

/* How far a journal has been delivered; kept at the server, with what it speaks of. */
typedef struct tp_ship_cursor {
    tp_position position; /* all before it is there */
    tp_position span;     /* where the open span of roll-ups began */
    int64_t last_ms;      /* time of the last point of line protocol */
} tp_ship_cursor;

typedef struct tp_shipped_run {
    const char *directory; /* of the rank */
    const char *name;      /* the directory's own name */
    const tp_run_info *info;
} tp_shipped_run;

/* Gets the cells of a row of tp_series that the server has already. */
typedef struct tp_series_sink {
    void *context;
    tp_status (*add)(void *context, const tp_rows *row);
} tp_series_sink;

/* All block, at most a minute or so. TP_ERR_IO: may pass; the connection is closed, opened again
 * later, and everything since the last commit comes again. TP_ERR_STATE: a secret or a right is
 * missing: likewise, but later. TP_ERR_CONFIG: won't pass. Messages hold no secret. One thread. */
typedef struct tp_backend {
    tp_url_kind kind;
    size_t private_size; /* the caller allocates this much, zeroed */

    /* Connects, and makes the tables that are not there. close is called even when this fails. */
    tp_status (*open)(void *private, const tp_url *url, tp_error *error);

    /* Finds or adds the run; *number is its number there. */
    tp_status (*find_run)(void *private, const tp_shipped_run *run, int64_t *number,
                          tp_ship_cursor *cursor, const tp_series_sink *known, tp_error *error);

    /* Begins a delivery of that run, which stands at cursor; TP_ERR_IO: it stands elsewhere, for
     * somebody else delivers it, too. */
    tp_status (*begin)(void *private, int64_t number, const tp_ship_cursor *cursor,
                       tp_error *error);
    tp_status (*insert)(void *private, int64_t number, const tp_rows *rows, tp_error *error);

    /* Ends it: all rows and the cursor are there, or nothing. */
    tp_status (*commit)(void *private, int64_t number, const tp_ship_cursor *cursor,
                        tp_error *error);

    /* A message that is no row of a run: who asked for it, and when. NULL: it takes none. */
    tp_status (*insert_message)(void *private, const char *job, const char *text, const char *rule,
                                uint64_t step, int64_t wall_ns, tp_error *error);

    void (*close)(void *private);
} tp_backend;

/* The backend of a URL. TP_ERR_UNSUPPORTED: built without its library; the message says which. */
tp_status tp_backend_find(const tp_backend **out, const tp_url *url, tp_error *error);

extern const tp_backend tp_backend_postgres;
extern const tp_backend tp_backend_mariadb;
extern const tp_backend tp_backend_line;

/* What tells servers apart in the names of cursors; made without secrets. */
uint32_t tp_backend_hash(const tp_url *url);

/* CREATE TABLE statements of all tables, in the words of a server. */
typedef struct tp_dialect {
    const char *quote;   /* around names */
    const char *integer; /* types */
    const char *real;
    const char *text;
    const char *options; /* behind a table */
    bool index_inside;   /* an index is part of its table */
    bool value_key;      /* tp_value has a primary key: rows lie in its order */
} tp_dialect;

void tp_dialect_put_table(tp_buf *sql, const tp_dialect *dialect, const tp_table *table);

#endif
