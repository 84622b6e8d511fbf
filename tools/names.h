/* What somebody types to choose series, held against those that journals have. */
#ifndef TP_TOOLS_NAMES_H
#define TP_TOOLS_NAMES_H

#include "base/buf.h"
#include "base/error.h"
#include "journal/find.h"

/* names: const char *, patterns of names or rows. One that matches none, but is the end of a single
 * name or row behind a dot, is replaced by that, which lies in texts (freed by the caller after the
 * last use). ranks: uint32_t. TP_ERR_NOTFOUND: a name that matches none or the end of several, or a
 * rank that no journal is of; the message says which there are. TP_ERR_NOMEM. */
tp_status tp_names_resolve(const tp_journals *journals, tp_buf *names, const tp_buf *ranks,
                           tp_buf *texts, tp_error *error);

#endif
