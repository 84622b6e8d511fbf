/* Numbers as text. */
#ifndef TP_SINKS_DECIMAL_H
#define TP_SINKS_DECIMAL_H

#include <stddef.h>
#include <stdint.h>

#define TP_DECIMAL_MAX 48

/* All write less than TP_DECIMAL_MAX bytes and return how many; a terminator may follow them. */

size_t tp_decimal_write_integer(uint64_t value, char text[TP_DECIMAL_MAX]);

/* Reads back to the same double; "nan", "inf" and "-inf" for what is no number, 0 for both
 * zeros. */
size_t tp_decimal_write(double value, char text[TP_DECIMAL_MAX]);

/* Rounded to that many decimals (1 … 20), without zeros at the end: reads back to what Python's
 * round gives. */
size_t tp_decimal_write_rounded(double value, uint32_t digits, char text[TP_DECIMAL_MAX]);

#endif
