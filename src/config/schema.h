/* The table of options for editors and for people. */
#ifndef TP_CONFIG_SCHEMA_H
#define TP_CONFIG_SCHEMA_H

#include <stdbool.h>

#include "base/buf.h"

/* A JSON Schema (2020-12) of the configuration. */
void tp_config_write_schema(tp_buf *out);

/* A Markdown table with a row for each option, as in docs/configuration.md. */
void tp_config_write_table(tp_buf *out);

/* Does anything act on this field of the configuration's object? */
bool tp_config_acts_on(const char *name);

#endif
