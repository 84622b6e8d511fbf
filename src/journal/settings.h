/* How the files of a run are made, as text in its journal: for who makes them anew. */
#ifndef TP_JOURNAL_SETTINGS_H
#define TP_JOURNAL_SETTINGS_H

#include "base/buf.h"
#include "tensorprobe/status.h"

/* Reads the settings of the latest segment in a folder that has some. TP_ERR_NOTFOUND. */
tp_status tp_settings_find(const char *folder, tp_buf *text);

#endif
