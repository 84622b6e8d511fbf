/* Building errors. Internal twin of tensorprobe/status.h. */
#ifndef TP_BASE_ERROR_H
#define TP_BASE_ERROR_H

#include "tensorprobe/status.h"

/* Fills *error (may be NULL) without a position and returns code, so that a failing call is
 * `return tp_fail(error, TP_ERR_IO, "can't open %s: %s", path, strerror(errno));`. */
tp_status tp_fail(tp_error *error, tp_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Status that fits an errno: ENOSPC, EDQUOT and EFBIG are TP_ERR_NOSPACE, ENOENT is
 * TP_ERR_NOTFOUND, ENOMEM is TP_ERR_NOMEM, anything else TP_ERR_IO. */
tp_status tp_status_from_errno(int number);

#endif
