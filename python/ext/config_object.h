/* The configuration as the Python side sees it. */
#ifndef TP_EXT_CONFIG_OBJECT_H
#define TP_EXT_CONFIG_OBJECT_H

#include "config/config.h"
#include "core.h"

PyObject *config_to_dict(const tp_config *config);

#endif
