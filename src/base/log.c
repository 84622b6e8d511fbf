#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int lowest_level(void)
{
    const char *text = getenv("TENSORPROBE_LOG_LEVEL");
    return text != NULL && text[0] >= '1' && text[0] <= '4' ? text[0] - '0' : TP_LOG_INFO;
}

bool tp_log_is_wanted(int level)
{
    return level >= lowest_level();
}

void tp_log(int level, const char *format, ...)
{
    static const char *const prefixes[] = {"", "", "warning: ", "error: "};
    char line[1024];
    if (!tp_log_is_wanted(level)) {
        return;
    }
    int used = snprintf(line, sizeof line, "tensorprobe: %s", prefixes[level & 3]);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    va_end(arguments);
    if (length < 0) {
        return;
    }
    size_t end = (size_t)used + (size_t)length;
    if (end > sizeof line - 2) {
        end = sizeof line - 2;
    }
    line[end++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, end);
    (void)ignored;
}
