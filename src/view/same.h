/* What the same value is called in two runs, however these are spread over ranks. */
#ifndef TP_VIEW_SAME_H
#define TP_VIEW_SAME_H

#include "base/buf.h"
#include "tensorprobe/record.h"

/* Counted over pipeline stages. */
const char *tp_same_name(const tp_key *key);

/* Replaces what is in the buffer: by the name without what wrappers have put into it, quantity,
 * side …, rank, and with_part of parameters also by the part of them that it is. The caller checks
 * out->failed. */
void tp_same_put(tp_buf *out, const tp_key *key, const tp_record *record, uint32_t rank,
                 bool with_part);

#endif
