/* Texts as cells of a csv file. */
#ifndef TP_SINKS_FIELD_H
#define TP_SINKS_FIELD_H

#include "base/buf.h"

/* As RFC 4180 has it: quoted when it holds a separator, quotes doubled. An apostrophe comes in
 * front of what a spreadsheet would run as a formula. */
void tp_field_put(tp_buf *out, const char *text);

#endif
