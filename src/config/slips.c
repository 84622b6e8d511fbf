#include "config/slips.h"

#include <stdbool.h>
#include <string.h>

#define NOWHERE SIZE_MAX

/* The text on its way. previous is the character before, but 'v' behind a value and 0 at first;
 * comma is where a comma stands that follows a value and that nothing has followed yet. */
typedef struct cleaner {
    char *text;
    size_t size;
    size_t offset;
    char previous;
    size_t comma;
    tp_slips slips;
} cleaner;

static const struct lookalike {
    const char *written;
    char meant;
    const char *what;
} lookalikes[] = {
    {"，", ',', "read the full-width ， as ,"},
    {"：", ':', "read the full-width ： as :"},
    {"｛", '{', "read the full-width ｛ as {"},
    {"｝", '}', "read the full-width ｝ as }"},
    {"［", '[', "read the full-width ［ as ["},
    {"］", ']', "read the full-width ］ as ]"},
    {"\xe3\x80\x80", ' ', "read a full-width space as a space"},
    {"\xc2\xa0", ' ', "read a no-break space as a space"},
};

static bool stands(const cleaner *clean, size_t offset, const char *word)
{
    size_t length = strlen(word);
    return clean->size - offset >= length && memcmp(clean->text + offset, word, length) == 0;
}

static void note(cleaner *clean, size_t offset, const char *what)
{
    if (clean->slips.count++ == 0 || offset < clean->slips.first) {
        clean->slips.first = offset;
        clean->slips.what = what;
    }
}

static void blank(cleaner *clean, size_t start, size_t end)
{
    for (size_t i = start; i < end; i++) {
        if (clean->text[i] != '\n') {
            clean->text[i] = ' ';
        }
    }
}

/* Behind the comment that begins here; the offset itself when none does, or none that ends. */
static size_t end_of_comment(const cleaner *clean)
{
    size_t end = clean->offset;
    if (stands(clean, end, "/*")) {
        for (end += 2; end < clean->size; end++) {
            if (stands(clean, end, "*/")) {
                return end + 2;
            }
        }
        return clean->offset;
    }
    if (stands(clean, end, "//") || stands(clean, end, "#")) {
        while (end < clean->size && clean->text[end] != '\n') {
            end++;
        }
    }
    return end;
}

static bool is_full_width_quote(const cleaner *clean, size_t offset)
{
    return stands(clean, offset, "“") || stands(clean, offset, "”");
}

/* Goes behind the string that begins here. One in full-width quotes ends with any quote, one in
 * ASCII quotes may hold the others. */
static void pass_string(cleaner *clean)
{
    size_t end = clean->offset + 1;
    bool full_width = is_full_width_quote(clean, clean->offset);
    if (full_width) {
        note(clean, clean->offset, "read the quotes “ and ” as \"");
        end = clean->offset + 3;
        blank(clean, clean->offset, end);
        clean->text[end - 1] = '"'; /* the spaces stay outside */
    }
    while (end < clean->size && clean->text[end] != '\n' && clean->text[end] != '"') {
        if (full_width && is_full_width_quote(clean, end)) {
            blank(clean, end, end + 3);
            clean->text[end] = '"';
            break;
        }
        end += clean->text[end] == '\\' && end + 1 < clean->size ? 2 : 1;
    }
    clean->offset = end < clean->size && clean->text[end] == '"' ? end + 1 : end;
    clean->previous = 'v';
    clean->comma = NOWHERE;
}

static void pass_character(cleaner *clean)
{
    char c = clean->text[clean->offset];
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        clean->offset++;
        return;
    }
    bool closes = c == '}' || c == ']';
    if (closes && clean->comma != NOWHERE) {
        note(clean, clean->comma, "skipped a comma in front of } or ], which JSON has not");
        clean->text[clean->comma] = ' ';
    }
    clean->comma = c == ',' && clean->previous == 'v' ? clean->offset : NOWHERE;
    clean->previous = c != '\0' && strchr(",:{[", c) != NULL ? c : 'v';
    clean->offset++;
}

static void pass_lookalike(cleaner *clean)
{
    for (size_t i = 0; i < sizeof lookalikes / sizeof lookalikes[0]; i++) {
        const struct lookalike *one = &lookalikes[i];
        if (stands(clean, clean->offset, one->written)) {
            note(clean, clean->offset, one->what);
            blank(clean, clean->offset, clean->offset + strlen(one->written));
            clean->text[clean->offset] = one->meant;
        }
    }
}

tp_slips tp_slips_blank(char *text, size_t size)
{
    cleaner clean = {text, size, 0, '\0', NOWHERE, {0, 0, NULL}};
    while (clean.offset < size) {
        size_t end = end_of_comment(&clean);
        if (end > clean.offset) {
            note(&clean, clean.offset, "skipped a comment, which JSON has not");
            blank(&clean, clean.offset, end);
            clean.offset = end;
        } else if (text[clean.offset] == '"' || is_full_width_quote(&clean, clean.offset)) {
            pass_string(&clean);
        } else {
            pass_lookalike(&clean);
            pass_character(&clean);
        }
    }
    return clean.slips;
}
