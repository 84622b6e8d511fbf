#include "config/place.h"

#include <stdio.h>
#include <string.h>

typedef struct scanner {
    const char *text;
    size_t size;
    size_t offset;
} scanner;

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_punctuation(char c)
{
    return c != '\0' && strchr("{}[]:,", c) != NULL;
}

static tp_token next_token(scanner *scan)
{
    while (scan->offset < scan->size && is_space(scan->text[scan->offset])) {
        scan->offset++;
    }
    tp_token token = {scan->offset, scan->offset};
    if (scan->offset == scan->size) {
        return token;
    }
    char first = scan->text[scan->offset++];
    if (first == '"') {
        bool escaped = false;
        while (scan->offset < scan->size && scan->text[scan->offset] != '\n') {
            char c = scan->text[scan->offset++];
            if (c == '"' && !escaped) {
                break;
            }
            escaped = c == '\\' && !escaped;
        }
    } else if (!is_punctuation(first)) {
        while (scan->offset < scan->size && scan->text[scan->offset] != '"' &&
               !is_space(scan->text[scan->offset]) && !is_punctuation(scan->text[scan->offset])) {
            scan->offset++;
        }
    }
    token.end = scan->offset;
    return token;
}

/* Goes behind the value that begins with this token. */
static void skip_value(scanner *scan, tp_token token)
{
    size_t depth = 0;
    while (token.end > token.start) {
        char first = scan->text[token.start];
        depth += first == '{' || first == '[';
        depth -= first == '}' || first == ']';
        if (depth == 0) {
            return;
        }
        token = next_token(scan);
    }
}

/* Goes to the value at place; its first token is returned, its name's token is left in *name. */
static tp_token seek(scanner *scan, const tp_place *place, tp_token *name)
{
    if (place->parent == NULL) {
        return *name = next_token(scan);
    }
    seek(scan, place->parent, name); /* stands behind the opening bracket now */
    for (size_t i = 0;; i++) {
        *name = next_token(scan);
        tp_token value = *name;
        if (place->name != NULL) {
            next_token(scan); /* the colon */
            value = next_token(scan);
        }
        if (i == place->index || value.end == value.start) {
            return value;
        }
        skip_value(scan, value);
        next_token(scan); /* the comma */
    }
}

tp_position tp_place_position(const char *text, size_t offset)
{
    tp_position position = {1, 1};
    for (size_t i = 0; i < offset; i++) {
        if (text[i] == '\n') {
            position.line++;
            position.column = 1;
        } else if (((unsigned char)text[i] & 0xc0) != 0x80) { /* not a character's continuation */
            position.column++;
        }
    }
    return position;
}

static scanner begin(const char *text, size_t size)
{
    return (scanner){text, size, 0};
}

tp_token tp_place_value(const char *text, size_t size, const tp_place *place)
{
    scanner scan = begin(text, size);
    tp_token name;
    return seek(&scan, place, &name);
}

tp_token tp_place_name(const char *text, size_t size, const tp_place *place)
{
    scanner scan = begin(text, size);
    tp_token name;
    seek(&scan, place, &name);
    return name;
}

tp_token tp_place_token(const char *text, size_t size, size_t offset, tp_token *before)
{
    scanner scan = begin(text, size);
    *before = (tp_token){0, 0};
    tp_token token = next_token(&scan);
    while (token.end < offset && token.end > token.start) {
        *before = token;
        token = next_token(&scan);
    }
    return token;
}

#define DEPTH_MAX 64 /* deeper brackets are not remembered */

bool tp_place_unclosed(const char *text, size_t size, size_t *offset)
{
    size_t open[DEPTH_MAX];
    size_t depth = 0;
    scanner scan = begin(text, size);
    for (tp_token token = next_token(&scan); token.end > token.start; token = next_token(&scan)) {
        char first = text[token.start];
        if (first == '{' || first == '[') {
            open[depth < DEPTH_MAX ? depth : DEPTH_MAX - 1] = token.start;
            depth++;
        } else if ((first == '}' || first == ']') && depth > 0) {
            depth--;
        }
    }
    if (depth > 0) {
        *offset = open[(depth < DEPTH_MAX ? depth : DEPTH_MAX) - 1];
    }
    return depth > 0;
}

void tp_place_format(const tp_place *place, char *text, size_t size)
{
    if (place->parent == NULL) {
        text[0] = '\0';
        return;
    }
    tp_place_format(place->parent, text, size);
    size_t used = strlen(text);
    if (place->name == NULL) {
        snprintf(text + used, size - used, "[%zu]", place->index);
    } else {
        snprintf(text + used, size - used, "%s%s", used > 0 ? "." : "", place->name);
    }
}
