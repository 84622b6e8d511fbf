/* The texts of one column, each once: a dictionary that only grows, so that a text has the same
 * number in every batch of a stream. */
#ifndef TP_ARROW_STRINGS_H
#define TP_ARROW_STRINGS_H

#include "arrow/array.h"
#include "base/map.h"

typedef struct tp_identity {
    const void *address; /* NULL: free */
    int32_t number;
} tp_identity;

/* Zeroed is empty. */
typedef struct tp_strings {
    tp_map texts;      /* text -> number */
    tp_buf identities; /* tp_identity, found by their addresses: once for each row */
    uint32_t identity_count;
    tp_buf offsets; /* int32_t: where each ends */
    tp_buf bytes;
    uint32_t count;
    uint32_t shared_count; /* texts in what was handed out last */
    tp_shared *shared_offsets;
    tp_shared *shared_bytes;
} tp_strings;

/* The number of a text. What isn't UTF-8 in it becomes U+FFFD. identity, if not NULL, is an address
 * that has this text until tp_strings_forget: it finds the number again without reading the text.
 * TP_ERR_NOMEM; TP_ERR_UNSUPPORTED: more than 2^31 bytes. */
tp_status tp_strings_add(tp_strings *strings, const char *text, const void *identity,
                         int32_t *number);

/* The number of an identity, or TP_ERR_NOTFOUND. */
tp_status tp_strings_find(const tp_strings *strings, const void *identity, int32_t *number);

/* The addresses mean nothing any more; the texts stay. */
void tp_strings_forget(tp_strings *strings);

/* An array of all texts so far; it shares its memory with the one before it, when there are no new
 * ones. TP_ERR_NOMEM. */
tp_status tp_strings_array(tp_strings *strings, struct ArrowArray *out);

void tp_strings_free(tp_strings *strings);

#endif
