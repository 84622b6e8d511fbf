/* Reading back the csv files of a rank, as far as going back to an earlier step needs it. */
#ifndef TP_SINKS_ROWS_H
#define TP_SINKS_ROWS_H

#include "base/error.h"

/* Takes out of all csv files in the directory the rows of this step and of those behind it; files
 * that begin with such a step are removed. */
tp_status tp_rows_rewind(const char *directory, uint64_t step, tp_error *error);

#endif
