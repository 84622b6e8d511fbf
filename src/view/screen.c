#include "view/screen.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "base/text.h"

tp_status tp_screen_clear(tp_screen *screen, uint32_t width, uint32_t height)
{
    tp_buf_clear(&screen->glyphs);
    screen->width = width;
    screen->height = height;
    if (tp_buf_extend(&screen->glyphs, (size_t)width * height * sizeof(tp_glyph)) == NULL) {
        screen->width = 0;
        screen->height = 0;
        return TP_ERR_NOMEM;
    }
    tp_glyph *all = (tp_glyph *)(void *)screen->glyphs.data;
    for (size_t i = 0; i < (size_t)width * height; i++) {
        all[i] = (tp_glyph){' ', TP_PART_PLAIN};
    }
    return TP_OK;
}

void tp_screen_free(tp_screen *screen)
{
    tp_buf_free(&screen->glyphs);
}

const tp_glyph *tp_screen_at(const tp_screen *screen, uint32_t row, uint32_t column)
{
    return (const tp_glyph *)(const void *)screen->glyphs.data + (size_t)row * screen->width +
           column;
}

/* The next character, and the columns that it takes. */
static uint32_t next_character(const tp_screen *screen, const char **text, uint32_t *columns)
{
    const uint8_t *p = (const uint8_t *)*text;
    const size_t size = tp_text_character(*text);
    const uint32_t replacement = screen->is_utf8 ? 0xfffd : '?';
    *columns = 1;
    *text += size == 0 ? 1 : size;
    if (size == 1 && p[0] >= 0x20 && p[0] < 0x7f) {
        return p[0];
    }
    if (size < 2 || !screen->is_utf8) {
        return replacement;
    }
    uint32_t character = p[0] & (0x7fU >> size);
    for (size_t i = 1; i < size; i++) {
        character = character << 6 | (p[i] & 0x3f);
    }
    const int width = wcwidth((wchar_t)character);
    if (width < 1) { /* control characters, and what combines with the one before */
        return replacement;
    }
    *columns = (uint32_t)width;
    return character;
}

uint32_t tp_screen_put(tp_screen *screen, uint32_t row, uint32_t column, uint32_t end,
                       uint32_t part, const char *text)
{
    const uint32_t limit = end == 0 || end > screen->width ? screen->width : end;
    if (row >= screen->height) {
        return column;
    }
    tp_glyph *line = (tp_glyph *)(void *)screen->glyphs.data + (size_t)row * screen->width;
    while (*text != '\0') {
        uint32_t columns;
        const uint32_t character = next_character(screen, &text, &columns);
        if (column + columns > limit) {
            break;
        }
        line[column++] = (tp_glyph){character, part};
        for (; columns > 1; columns--) {
            line[column++] = (tp_glyph){0, part};
        }
    }
    return column;
}

uint32_t tp_screen_printf(tp_screen *screen, uint32_t row, uint32_t column, uint32_t part,
                          const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return tp_screen_put(screen, row, column, 0, part, text);
}

uint32_t tp_screen_width(const tp_screen *screen, const char *text)
{
    uint32_t width = 0;
    while (*text != '\0') {
        uint32_t columns;
        next_character(screen, &text, &columns);
        width += columns;
    }
    return width;
}

void tp_screen_put_right(tp_screen *screen, uint32_t row, uint32_t end, uint32_t part,
                         const char *text)
{
    const uint32_t width = tp_screen_width(screen, text);
    tp_screen_put(screen, row, width < end ? end - width : 0, end, part, text);
}

static void put_utf8(tp_buf *out, uint32_t c)
{
    uint8_t bytes[4] = {(uint8_t)c};
    size_t size = 1;
    if (c >= 0x80) {
        size = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        for (size_t i = size - 1; i > 0; i--, c >>= 6) {
            bytes[i] = (uint8_t)(0x80 | (c & 0x3f));
        }
        bytes[0] = (uint8_t)((0xf00U >> size) | c);
    }
    tp_buf_put(out, bytes, size);
}

void tp_screen_put_line(const tp_screen *screen, uint32_t row, tp_buf *out)
{
    uint32_t end = screen->width;
    while (end > 0 && tp_screen_at(screen, row, end - 1)->character == ' ') {
        end--;
    }
    for (uint32_t i = 0; i < end; i++) {
        const uint32_t character = tp_screen_at(screen, row, i)->character;
        if (character != 0) {
            put_utf8(out, character);
        }
    }
    tp_buf_put(out, "\n", 1);
}

const char *tp_number_text(char text[TP_NUMBER_TEXT], double value)
{
    const double size = fabs(value);
    if (isnan(value)) {
        return strcpy(text, "NaN");
    }
    if (isinf(value)) {
        return strcpy(text, value > 0 ? "+Inf" : "-Inf");
    }
    if (value == 0 || (size >= 0.01 && size < 999.95)) {
        snprintf(text, TP_NUMBER_TEXT, "%.4g", value);
        return text;
    }
    snprintf(text, TP_NUMBER_TEXT, "%.3e", value);
    char *mantissa = strchr(text, 'e');
    const long exponent = strtol(mantissa + 1, NULL, 10);
    while (mantissa[-1] == '0') {
        mantissa--;
    }
    mantissa -= mantissa[-1] == '.';
    snprintf(mantissa, TP_NUMBER_TEXT - (size_t)(mantissa - text), "e%ld", exponent);
    return text;
}

const char *tp_count_text(char text[TP_NUMBER_TEXT], uint64_t value)
{
    char digits[TP_NUMBER_TEXT];
    const int length = snprintf(digits, sizeof digits, "%" PRIu64, value);
    char *to = text;
    for (int i = 0; i < length; i++) {
        *to++ = digits[i];
        if (i + 1 < length && (length - i - 1) % 3 == 0) {
            *to++ = ',';
        }
    }
    *to = '\0';
    return text;
}
