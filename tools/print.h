/* Arrow streams as text: a table for people, csv or JSON for programs. */
#ifndef TP_TOOLS_PRINT_H
#define TP_TOOLS_PRINT_H

#include <stdint.h>

#include "arrow/abi.h"
#include "tensorprobe/status.h"

#define TP_PRINT_TABLE 1
#define TP_PRINT_CSV 2
#define TP_PRINT_JSON 3 /* one object a line */

/* Prints a stream of ours (texts are dictionaries that only grow) to standard output, array by
 * array. Columns of a table that don't fit into `width` characters (0: any width) are left out, and
 * the head says how many. TP_ERR_IO, TP_ERR_NOMEM, and what the stream says. */
tp_status tp_print_stream(struct ArrowArrayStream *stream, int format, uint64_t width,
                          tp_error *error);

#endif
