#include "sinks/field.h"

#include <string.h>

void tp_field_put(tp_buf *out, const char *text)
{
    if (strpbrk(text, ",\"\r\n") == NULL) {
        tp_buf_put(out, text, strlen(text));
        return;
    }
    tp_buf_put(out, "\"", 1);
    for (; *text != '\0'; text++) {
        tp_buf_put(out, text, 1);
        if (*text == '"') {
            tp_buf_put(out, "\"", 1);
        }
    }
    tp_buf_put(out, "\"", 1);
}
