/* The configurations that a monitor has had. The latest is in force; the earlier ones stay, as the
 * writer and hooks may still look at them. */
#ifndef TP_MONITOR_CONFIGS_H
#define TP_MONITOR_CONFIGS_H

#include "config/config.h"

/* The latest is the first. NULL: none yet. */
typedef struct tp_configs {
    tp_config config;
    bool is_copy; /* what it points to is the earlier one's */
    struct tp_configs *earlier;
} tp_configs;

/* Puts the configuration in the file at path, or in text, in front of the others. */
tp_status tp_configs_read(tp_configs **configs, bool watch, const char *path, const char *text,
                          tp_error *error);

/* Puts the one in force, with other ops, in front. TP_ERR_NOMEM. */
tp_status tp_configs_set_ops(tp_configs **configs, const uint32_t *ops, uint32_t count);

/* Whether the configuration wants this rank to be watched. */
bool tp_config_has_rank(const tp_config *config, uint32_t rank);

void tp_configs_free(tp_configs *configs);

#endif
