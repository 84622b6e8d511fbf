#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *tp_status_name(tp_status status)
{
    switch (status) {
    case TP_OK:
        return "TP_OK";
    case TP_END:
        return "TP_END";
    case TP_ERR_ARGUMENT:
        return "TP_ERR_ARGUMENT";
    case TP_ERR_NOMEM:
        return "TP_ERR_NOMEM";
    case TP_ERR_STATE:
        return "TP_ERR_STATE";
    case TP_ERR_UNSUPPORTED:
        return "TP_ERR_UNSUPPORTED";
    case TP_ERR_IO:
        return "TP_ERR_IO";
    case TP_ERR_NOSPACE:
        return "TP_ERR_NOSPACE";
    case TP_ERR_NOTFOUND:
        return "TP_ERR_NOTFOUND";
    case TP_ERR_CORRUPT:
        return "TP_ERR_CORRUPT";
    case TP_ERR_VERSION:
        return "TP_ERR_VERSION";
    case TP_ERR_CONFIG:
        return "TP_ERR_CONFIG";
    default:
        return "TP_ERR_UNKNOWN";
    }
}

tp_status tp_status_from_errno(int number)
{
    switch (number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG: /* RLIMIT_FSIZE */
        return TP_ERR_NOSPACE;
    case ENOENT:
        return TP_ERR_NOTFOUND;
    case ENOMEM:
        return TP_ERR_NOMEM;
    default:
        return TP_ERR_IO;
    }
}

tp_status tp_fail(tp_error *error, tp_status code, const char *format, ...)
{
    if (error != NULL) {
        va_list arguments;
        memset(error, 0, sizeof *error);
        error->code = code;
        va_start(arguments, format);
        vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
    }
    return code;
}

char *tp_error_format(const tp_error *error, char *text, uint64_t size)
{
    char place[320] = "";
    if (size == 0) {
        return text;
    }
    if (error->line > 0) {
        snprintf(place, sizeof place,
                 "%s:%u:%u: ", error->file[0] != '\0' ? error->file : "configuration", error->line,
                 error->column);
    } else if (error->file[0] != '\0') {
        snprintf(place, sizeof place, "%s: ", error->file);
    }
    snprintf(text, size, "%s%s%s%s", place, error->field, error->field[0] != '\0' ? ": " : "",
             error->message);
    return text;
}
