/* Text in rows and columns, each character with the part that it plays: what a terminal shows, or a
 * file holds as plain lines. */
#ifndef TP_VIEW_SCREEN_H
#define TP_VIEW_SCREEN_H

#include "base/buf.h"
#include "tensorprobe/status.h"

/* Parts. */
#define TP_PART_PLAIN 0
#define TP_PART_QUIET 1  /* labels */
#define TP_PART_STRONG 2 /* what is looked at first */
#define TP_PART_GOOD 3
#define TP_PART_BAD 4   /* NaN, ±Inf */
#define TP_PART_ABOVE 5 /* normal */
#define TP_PART_BELOW 6
#define TP_PART_KEY 7 /* a key that can be pressed */
#define TP_PARTS 8

typedef struct tp_glyph {
    uint32_t character; /* of Unicode; 0: the right half of the one before */
    uint32_t part;
} tp_glyph;

typedef struct tp_screen {
    uint32_t width;
    uint32_t height;
    bool is_utf8; /* else nothing but ASCII is put */
    tp_buf glyphs;
} tp_screen;

/* Empties it, with a new size. TP_ERR_NOMEM: it has no rows. */
tp_status tp_screen_clear(tp_screen *screen, uint32_t width, uint32_t height);
void tp_screen_free(tp_screen *screen);

const tp_glyph *tp_screen_at(const tp_screen *screen, uint32_t row, uint32_t column);

/* Puts UTF-8 there and returns the column behind it. What doesn't fit before `end` (0: the screen's
 * edge) is left out; what isn't to be printed becomes a replacement. */
uint32_t tp_screen_put(tp_screen *screen, uint32_t row, uint32_t column, uint32_t end,
                       uint32_t part, const char *text);
uint32_t tp_screen_printf(tp_screen *screen, uint32_t row, uint32_t column, uint32_t part,
                          const char *format, ...) __attribute__((format(printf, 5, 6)));

/* So that it ends before column `end`. */
void tp_screen_put_right(tp_screen *screen, uint32_t row, uint32_t end, uint32_t part,
                         const char *text);

/* Columns that a text takes. */
uint32_t tp_screen_width(const tp_screen *screen, const char *text);

/* A row's text without what is empty at its end, and "\n". */
void tp_screen_put_line(const tp_screen *screen, uint32_t row, tp_buf *out);

/* Four digits at most: "2.071", "6.548e4", "NaN", "+Inf". */
#define TP_NUMBER_TEXT 32
const char *tp_number_text(char text[TP_NUMBER_TEXT], double value);
/* "48,112" */
const char *tp_count_text(char text[TP_NUMBER_TEXT], uint64_t value);

#endif
