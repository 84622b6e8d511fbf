/* Rows of the table of exponents. */
#ifndef TP_ARROW_EXPONENTS_H
#define TP_ARROW_EXPONENTS_H

#include <stdbool.h>

#include "arrow/columns.h"

/* rows[*count] becomes as many rows as the record has exponents that occur, from its bin with the
 * number *bin on, but no more than `most` are in rows then. False: there is no room for the next
 * one, which has the number *bin; else that is 0 again. exponents: what rows point to. */
bool tp_exponent_rows(const tp_batch *batch, const tp_record *record, uint32_t *bin, uint64_t most,
                      tp_row *rows, tp_exponent *exponents, uint64_t *count);

#endif
