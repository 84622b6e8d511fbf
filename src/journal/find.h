/* Where journals are. */
#ifndef TP_JOURNAL_FIND_H
#define TP_JOURNAL_FIND_H

#include <stdint.h>

#include "tensorprobe/status.h"

/* The directories that a journal can be read from: the one given, or else those below it, up to
 * three levels deep (links are not followed), in natural order (rank2 before rank10).
 * TP_ERR_NOTFOUND when there is none. End with tp_journals_free. */
typedef struct tp_journals {
    char **directories;
    uint32_t count;
} tp_journals;

tp_status tp_journals_find(tp_journals *out, const char *directory, tp_error *error);

void tp_journals_free(tp_journals *journals);

#endif
