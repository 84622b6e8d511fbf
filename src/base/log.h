/* Messages of the monitor itself, one line each, to standard error. Never from a hook. */
#ifndef TP_BASE_LOG_H
#define TP_BASE_LOG_H

#include <stdbool.h>

#define TP_LOG_INFO 1
#define TP_LOG_WARNING 2
#define TP_LOG_ERROR 3

/* Whether messages of this level are written. */
bool tp_log_is_wanted(int level);

/* Writes "tensorprobe: TEXT" (warnings and errors say so) in one write(2). Levels below
 * TENSORPROBE_LOG_LEVEL (1, 2 or 3; default 1) are dropped. Any thread. */
void tp_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
