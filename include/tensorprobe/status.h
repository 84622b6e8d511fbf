/* Results of calls, and errors with a position. */
#ifndef TENSORPROBE_STATUS_H
#define TENSORPROBE_STATUS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TP_API __attribute__((visibility("default")))
#else
#define TP_API
#endif

/* 0 is success, a positive value is a normal outcome that is not success, a negative value is an
 * error. Values are pinned, grouped by topic, and never reused. */
typedef int32_t tp_status;

#define TP_OK 0
#define TP_END 1 /* nothing more to read at present */

#define TP_ERR_ARGUMENT (-1)    /* a NULL, a range, a contradiction in the call's arguments */
#define TP_ERR_NOMEM (-2)       /* memory could not be had */
#define TP_ERR_STATE (-3)       /* the object is closed, or was inherited by a forked child */
#define TP_ERR_UNSUPPORTED (-4) /* a dtype, a layout or an option that this build can't handle */
#define TP_ERR_IO (-10)         /* the operating system refused; the message says why */
#define TP_ERR_NOSPACE (-11)    /* no room on the device: trying again later can succeed */
#define TP_ERR_NOTFOUND (-12)   /* a file or directory that must exist does not */
#define TP_ERR_CORRUPT (-20)    /* stored bytes are not what was written */
#define TP_ERR_VERSION (-21)    /* written by a newer version than this reader understands */
#define TP_ERR_CONFIG (-30)     /* the configuration is wrong; tp_error says where */

/* What went wrong and where. Plain data: nothing to free, valid as long as the caller keeps it.
 * line and column count from 1; 0 means that there is no position. */
typedef struct tp_error {
    tp_status code;
    uint32_t line;
    uint32_t column;
    char file[256];    /* path, or "" */
    char field[128];   /* path of the configuration field, as in targets.fc1.input, or "" */
    char message[512]; /* one sentence, and what to write instead where that helps */
} tp_error;

/* The name of a status, as in "TP_ERR_IO". Never NULL, static. Any thread. */
TP_API const char *tp_status_name(tp_status status);

/* Writes "FILE:LINE:COLUMN: FIELD: MESSAGE" (parts that are absent are left out) to text, always
 * terminated, cut to size. Returns text. */
TP_API char *tp_error_format(const tp_error *error, char *text, uint64_t size);

#ifdef __cplusplus
}
#endif

#endif
