/* From the configuration of a rule to the rule. */
#ifndef TP_MONITOR_RULE_OPTIONS_H
#define TP_MONITOR_RULE_OPTIONS_H

#include "config/config.h"
#include "rules/rules.h"

/* rule is borrowed as long as the options are used. */
tp_rule_options tp_rule_options_of(const tp_rule_config *rule);

#endif
