/* The pages of a library over HTTP: reading alone. */
#ifndef TP_VIEW_SERVER_H
#define TP_VIEW_SERVER_H

#include "view/library.h"

#define TP_TOKEN_SIZE 33

typedef struct tp_server_options {
    const char *address; /* to listen at: numbers of IPv4 or IPv6; "127.0.0.1" */
    uint16_t port;       /* 0: any that is free */
    bool search;         /* take the next free port if this one is taken */
    bool with_token;     /* also on loopback; elsewhere there is one in any case */
} tp_server_options;

typedef struct tp_server tp_server;

/* Serves from threads of its own until it is closed; the library outlives it. TP_ERR_ARGUMENT: no
 * address. TP_ERR_IO: can't listen there. */
tp_status tp_server_open(tp_server **out, tp_library *library, const tp_server_options *options,
                         tp_error *error);
void tp_server_close(tp_server *server); /* accepts NULL */

uint16_t tp_server_port(const tp_server *server);
const char *tp_server_token(const tp_server *server); /* "": none is needed */

/* Ends connections that have held their place for too long without a whole request. Once a second
 * or so. */
void tp_server_tick(tp_server *server);

#endif
