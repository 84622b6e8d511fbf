/* Names that others need as a list. */
#ifndef TP_RECORD_NAMES_H
#define TP_RECORD_NAMES_H

#include <stdbool.h>

#include "tensorprobe/record.h"

/* By TP_RULE_…, of which 0 is none; NULL behind the last. */
extern const char *const tp_rule_names[TP_RULE_COUNT + 2];

/* Whether a scalar of this name is logged by the check over replicas. */
bool tp_is_replica_check(const char *scalar);

/* The parameter of which that scalar says on how many ranks it differs; NULL: of none. */
const char *tp_replica_parameter(const char *scalar);

#endif
