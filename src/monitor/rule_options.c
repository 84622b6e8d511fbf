#include "monitor/rule_options.h"

static bool applies(const void *context, const tp_key *key)
{
    return tp_selection_has(context, key->name);
}

static const uint32_t modes[] = {[TP_MODE_RELATIVE] = TP_TURBULENCE_RELATIVE,
                                 [TP_MODE_FACTOR] = TP_TURBULENCE_FACTOR,
                                 [TP_MODE_COMPAT] = TP_TURBULENCE_COMPAT};

tp_rule_options tp_rule_options_of(const tp_rule_config *rule)
{
    return (tp_rule_options){
        .rule = rule->rule,
        .mode = modes[rule->mode],
        .threshold = rule->threshold,
        .min_samples = rule->min_samples,
        .window = rule->window,
        .dtype = rule->dtype,
        .ops = rule->ops,
        .applies = rule->selection.targets.count > 0 ? applies : NULL,
        .context = &rule->selection,
    };
}
