/* HTTP and SMTP, by libcurl. */
#ifndef TP_SHIP_WEB_H
#define TP_SHIP_WEB_H

#include "base/buf.h"
#include "config/config.h"
#include "config/url.h"

typedef struct tp_web tp_web;

/* A connection that is kept between calls. */
tp_status tp_web_open(tp_web **out, tp_error *error);
void tp_web_close(tp_web **web);

/* Posts the body to the URL's path, or to path where the URL has none. User and password go as
 * basic authentication, or with path /api/… the password as a token. TP_ERR_STATE: refused (401,
 * 403); TP_ERR_IO: anything else that is no success, with the beginning of what the server says.
 * Certificates are checked; $SSL_CERT_FILE names others than the system's. */
tp_status tp_web_post(tp_web *web, const tp_url *url, const char *path, const char *type,
                      const tp_buf *body, tp_error *error);

/* Sends a whole mail (headers, empty line, text; lines end with CR LF), only through TLS: from the
 * beginning on port 465, else by STARTTLS. user may be NULL. */
tp_status tp_web_mail(tp_web *web, const tp_inform_config *to, const char *user,
                      const char *password, const tp_buf *mail, tp_error *error);

#endif
