/* Where a database, a collector of metrics or a receiver of messages is. */
#ifndef TP_CONFIG_URL_H
#define TP_CONFIG_URL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef enum tp_url_kind {
    TP_URL_POSTGRES = 1, /* postgresql://, postgres://; +DRIVER may follow, as SQLAlchemy has it */
    TP_URL_MARIADB,      /* mysql://, mariadb:// */
    TP_URL_SQLITE,       /* sqlite:///relative, sqlite:////absolute */
    TP_URL_HTTP,         /* http://, https:// */
} tp_url_kind;

/* The parts, percent escapes resolved, but those of HTTP's path and query. NULL: not given. */
typedef struct tp_url {
    tp_url_kind kind;
    bool tls; /* https */
    char *user;
    char *password;
    char *host; /* an IPv6 address without its brackets */
    uint32_t port;
    char *path;  /* database; file; of HTTP with its "/" */
    char *query; /* as written, without "?" */
} tp_url;

/* TP_ERR_CONFIG: what is wrong and what to write instead; the message never quotes what may be a
 * secret. A password that is written as "$NAME" is the value of that environment variable.
 * *out needs tp_url_free only after TP_OK. */
tp_status tp_url_parse(tp_url *out, const char *text, tp_error *error);

/* Value of an option in the query, into text (cut never: TP_ERR_ARGUMENT when it is too long);
 * TP_ERR_NOTFOUND. */
tp_status tp_url_option(const tp_url *url, const char *name, char *text, size_t size);

/* "postgresql://host:5432/db": what may be shown. */
void tp_url_describe(const tp_url *url, char *text, size_t size);

void tp_url_free(tp_url *url);

/* A text that may hold a secret: "$NAME" stands for an environment variable, "file:PATH" for the
 * first line of a file, anything else for itself. The caller frees *out. */
tp_status tp_secret_read(const char *text, char **out, tp_error *error);

/* Whether the text stands for another one. */
bool tp_secret_is_elsewhere(const char *text);

#endif
