/* Spans of keys as Python values: None, or (kind, ranges, copies, copy): kind "whole", "flat" or
 * "box", and (start, length, full) for each range. */
#ifndef TP_EXT_SPANS_H
#define TP_EXT_SPANS_H

#include "core.h"
#include "tensorprobe/record.h"

/* A copy in one piece of memory (tp_free), NULL for None. False: an error is set. */
bool span_from_python(PyObject *value, tp_span **out);

/* A new reference; NULL: an error is set. */
PyObject *span_to_python(const tp_span *span);

#endif
