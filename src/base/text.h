/* Texts that others have to be able to read. */
#ifndef TP_BASE_TEXT_H
#define TP_BASE_TEXT_H

#include "base/buf.h"

/* What a word ends in behind this number: step, steps. */
static inline const char *tp_plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

/* What stands for a byte that belongs to no character. */
#define TP_TEXT_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* Bytes of the character of UTF-8 that begins here (RFC 3629), 0 when none does; 1 at the
 * terminator. */
size_t tp_text_character(const char *text);

/* The length without a character of UTF-8 that was cut apart at the end. */
uint64_t tp_text_whole(const char *text, uint64_t length);

/* As a JSON string, with its quotes; what is no UTF-8 becomes U+FFFD. */
void tp_text_put_json(tp_buf *out, const char *text);

#endif
