#include "base/text.h"

size_t tp_text_character(const char *text)
{
    const uint8_t *p = (const uint8_t *)text;
    const uint8_t lead = p[0];
    const size_t size = lead < 0x80                   ? 1
                        : lead >= 0xc2 && lead < 0xe0 ? 2
                        : lead >= 0xe0 && lead < 0xf0 ? 3
                        : lead >= 0xf0 && lead < 0xf5 ? 4
                                                      : 0;
    for (size_t i = 1; i < size; i++) {
        if ((p[i] & 0xc0) != 0x80) { /* also the terminator */
            return 0;
        }
    }
    /* Longer than need be, a surrogate, or above U+10FFFF. */
    if ((lead == 0xe0 && p[1] < 0xa0) || (lead == 0xed && p[1] >= 0xa0) ||
        (lead == 0xf0 && p[1] < 0x90) || (lead == 0xf4 && p[1] >= 0x90)) {
        return 0;
    }
    return size;
}

void tp_text_put_json(tp_buf *out, const char *text)
{
    tp_buf_put(out, "\"", 1);
    while (*text != '\0') {
        const size_t size = tp_text_character(text);
        if (size == 0) {
            tp_buf_put(out, TP_TEXT_REPLACEMENT, sizeof TP_TEXT_REPLACEMENT - 1);
            text++;
            continue;
        }
        if ((uint8_t)*text < 0x20) {
            tp_buf_printf(out, "\\u%04x", (unsigned)*text);
        } else {
            tp_buf_put(out, "\\", *text == '"' || *text == '\\' ? 1 : 0);
            tp_buf_put(out, text, size);
        }
        text += size;
    }
    tp_buf_put(out, "\"", 1);
}

/* Readers of event files refuse a text that ends within a character. */
uint64_t tp_text_whole(const char *text, uint64_t length)
{
    uint64_t lead = length;
    while (lead > 0 && ((uint8_t)text[lead - 1] & 0xc0) == 0x80) {
        lead--;
    }
    if (lead == 0) {
        return length;
    }
    lead--;
    uint8_t first = (uint8_t)text[lead];
    uint64_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
    return lead + size > length ? lead : length;
}
