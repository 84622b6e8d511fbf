/* Where in the text a value of the configuration stands. Jansson keeps no positions, so that the
 * text is walked again when a message needs one. */
#ifndef TP_CONFIG_PLACE_H
#define TP_CONFIG_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One step of the path to a value; the root has no parent. They live on the stack of the reader. */
typedef struct tp_place {
    const struct tp_place *parent;
    const char *name; /* of the member; NULL: an element of a list */
    size_t index;     /* which member or element, from 0, in the text's order */
} tp_place;

/* A token of the text: [start, end), empty at the end of the text. */
typedef struct tp_token {
    size_t start;
    size_t end;
} tp_token;

/* Line and column count from 1; columns count characters, not bytes. */
typedef struct tp_position {
    uint32_t line;
    uint32_t column;
} tp_position;

tp_position tp_place_position(const char *text, size_t offset);

/* The first token of the value at place, or the name in front of it. text is valid JSON. */
tp_token tp_place_value(const char *text, size_t size, const tp_place *place);
tp_token tp_place_name(const char *text, size_t size, const tp_place *place);

/* The token that holds the byte in front of offset, in any text. before is the token in front of
 * it (empty: none). */
tp_token tp_place_token(const char *text, size_t size, size_t offset, tp_token *before);

/* Where the innermost bracket stands that nothing closes; false: all are closed. */
bool tp_place_unclosed(const char *text, size_t size, size_t *offset);

/* Writes the path, as in "alert.rules[0].args", cut to size. */
void tp_place_format(const tp_place *place, char *text, size_t size);

#endif
