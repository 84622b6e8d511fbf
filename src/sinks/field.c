#include "sinks/field.h"

#include <stdbool.h>
#include <string.h>

/* A spreadsheet runs what begins with one of these, quoted or not; also in their wide forms. */
static bool is_run(const char *text)
{
    static const char *const wide[] = {"\uff1d", "\uff0b", "\uff0d", "\uff20"};
    if (text[0] != '\0' && strchr("=+-@\t\r", text[0]) != NULL) {
        return true;
    }
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        if (strncmp(text, wide[i], strlen(wide[i])) == 0) {
            return true;
        }
    }
    return false;
}

void tp_field_put(tp_buf *out, const char *text)
{
    const bool run = is_run(text);
    if (!run && strpbrk(text, ",\"\r\n") == NULL) {
        tp_buf_put(out, text, strlen(text));
        return;
    }
    tp_buf_put(out, run ? "\"'" : "\"", run ? 2 : 1);
    for (; *text != '\0'; text++) {
        tp_buf_put(out, text, 1);
        if (*text == '"') {
            tp_buf_put(out, "\"", 1);
        }
    }
    tp_buf_put(out, "\"", 1);
}
