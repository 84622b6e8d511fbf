/* The one table of options, and reading by it. */
#ifndef TP_CONFIG_FIELDS_H
#define TP_CONFIG_FIELDS_H

#include "config/config.h"
#include "config/values.h"

/* Reads every field of root over what *config holds. On failure *config is half read and to be
 * freed. */
tp_status tp_config_read_fields(tp_config *config, json_t *root, const tp_config_text *text);

/* Every option. */
extern const tp_config_members tp_config_root_members;

/* The one target "", which needs no memory: targets of a configuration that names none. */
extern tp_target tp_config_everything[1];

#endif
