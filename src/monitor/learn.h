/* Baselines of rules that have just been made, from what the journal has. */
#ifndef TP_MONITOR_LEARN_H
#define TP_MONITOR_LEARN_H

#include "rules/rules.h"

/* Gives the rules the last steps before this one, as far as they can be read in half a second; what
 * they say of them is not told again. Keys get numbers in the registry of the rules. Without a
 * journal, or without memory, the rules know what they knew before. */
void tp_learn(tp_rules *rules, tp_registry *registry, const char *directory, uint64_t step);

#endif
