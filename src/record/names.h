/* Names that others need as a list. */
#ifndef TP_RECORD_NAMES_H
#define TP_RECORD_NAMES_H

#include "tensorprobe/record.h"

/* By TP_RULE_…, of which 0 is none; NULL behind the last. */
extern const char *const tp_rule_names[TP_RULE_COUNT + 2];

#endif
