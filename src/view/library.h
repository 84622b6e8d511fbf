/* The runs in some directories, and the thread that reads those that somebody looks at. */
#ifndef TP_VIEW_LIBRARY_H
#define TP_VIEW_LIBRARY_H

#include "view/run.h"

typedef struct tp_library tp_library;

/* TP_ERR_NOTFOUND when none of them holds a journal. The newest run is read at once. New runs and
 * ranks are found while it is open. */
tp_status tp_library_open(tp_library **out, const char *const *directories, uint32_t count,
                          tp_error *error);
void tp_library_close(tp_library *library); /* accepts NULL */

/* Runs, the newest first. They live as long as the library. Any thread. */
uint32_t tp_library_count(tp_library *library);
tp_view_run *tp_library_at(tp_library *library, uint32_t index); /* NULL: there is none */

/* The run whose id begins like this; NULL: none. "" is the newest. From then on it is read. */
tp_view_run *tp_library_find(tp_library *library, const char *id);

/* Waits until the run has been read up to what is there. */
void tp_library_wait(tp_library *library, tp_view_run *run);

#endif
