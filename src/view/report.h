/* A run in one file: the pages with what they show, for who has no server. */
#ifndef TP_VIEW_REPORT_H
#define TP_VIEW_REPORT_H

#include "view/library.h"

/* Appends the file. The run has been read. TP_ERR_NOMEM, TP_ERR_NOTFOUND (no step), TP_ERR_IO. */
tp_status tp_report_put(tp_buf *out, tp_library *library, const tp_view_run *run, tp_error *error);

#endif
