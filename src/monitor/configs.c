#include "monitor/configs.h"

#include <string.h>

#include "base/mem.h"

tp_status tp_configs_read(tp_configs **configs, bool watch, const char *path, const char *text,
                          tp_error *error)
{
    tp_configs *entry = tp_calloc(1, sizeof *entry);
    if (entry == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for a configuration");
    }
    tp_config_defaults(&entry->config, watch);
    const char *given = text != NULL ? text : "{}";
    tp_status status = path != NULL ? tp_config_read(&entry->config, path, error)
                                    : tp_config_parse(&entry->config, given, strlen(given),
                                                      "configuration", error);
    if (status != TP_OK) {
        tp_free(entry); /* the configuration has freed itself */
        return status;
    }
    entry->earlier = *configs;
    *configs = entry;
    return TP_OK;
}

tp_status tp_configs_set_ops(tp_configs **configs, const uint32_t *ops, uint32_t count)
{
    tp_configs *entry = tp_alloc(sizeof *entry);
    if (entry == NULL) {
        return TP_ERR_NOMEM;
    }
    *entry = (tp_configs){(*configs)->config, true, *configs};
    memcpy(entry->config.ops, ops, count * sizeof *ops);
    entry->config.op_count = count;
    *configs = entry;
    return TP_OK;
}

bool tp_config_has_rank(const tp_config *config, uint32_t rank)
{
    for (uint32_t i = 0; i < config->module_rank_count; i++) {
        if (config->module_ranks[i] == rank) {
            return true;
        }
    }
    return config->module_rank_count == 0;
}

void tp_configs_free(tp_configs *configs)
{
    while (configs != NULL) {
        tp_configs *entry = configs;
        configs = entry->earlier;
        if (!entry->is_copy) {
            tp_config_free(&entry->config);
        }
        tp_free(entry);
    }
}
