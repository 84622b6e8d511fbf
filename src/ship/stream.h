/* One rank's journal on its way to a server: what is new in it becomes rows. */
#ifndef TP_SHIP_STREAM_H
#define TP_SHIP_STREAM_H

#include "base/map.h"
#include "config/config.h"
#include "ship/backend.h"

typedef struct tp_stream tp_stream;

/* A connection that the streams of a node share, and room for rows on their way. */
typedef struct tp_link {
    const tp_backend *backend;
    void *private;                /* NULL: not connected */
    tp_rows rows[TP_TABLE_COUNT]; /* each with its table; empty between deliveries */
    bool failed;                  /* the last failure was the server's, not the journal's */
    uint32_t server_hash;         /* tp_backend_hash */
} tp_link;

tp_status tp_stream_new(tp_stream **out, const char *directory, const tp_database_config *config,
                        tp_error *error);
void tp_stream_free(tp_stream **stream);

const char *tp_stream_directory(const tp_stream *stream);

/* Delivers what is new, up to some tens of thousands of rows, in one transaction. TP_OK: there may
 * be more; TP_END: nothing more at present. last: nobody writes the journal any more, so that at
 * its end an open span of roll-ups ends, too. Any error: what the stream remembers of the server is
 * forgotten, and the next call begins behind the last transaction. */
tp_status tp_stream_deliver(tp_stream *stream, tp_link *link, bool last, tp_error *error);

/* Closes the journal and forgets what it knows of the server: the connection is another one, or
 * there is nothing to do at present. */
void tp_stream_forget(tp_stream *stream);

/* Steps delivered since it was made. */
uint64_t tp_stream_steps(const tp_stream *stream);

#endif
