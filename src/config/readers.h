/* Readers of the fields that are no plain number, word or text. */
#ifndef TP_CONFIG_READERS_H
#define TP_CONFIG_READERS_H

#include "config/config.h"
#include "config/values.h"

/* Into tp_side_spec, and uint32_t of formats, bool of input_grad, char[2][TP_STAMP_SIZE]. */
tp_config_reader tp_config_read_side;
tp_config_reader tp_config_read_format;
tp_config_reader tp_config_read_input_grad;
tp_config_reader tp_config_read_stamps;

/* Into the whole tp_config. */
tp_config_reader tp_config_read_targets;
tp_config_reader tp_config_read_ops;
tp_config_reader tp_config_read_ranks;
tp_config_reader tp_config_read_rules;
tp_config_reader tp_config_read_inform;
tp_config_reader tp_config_read_database;

/* Into tp_selection. */
tp_config_reader tp_config_read_selection;

/* Into tp_budget_config; into uint64_t. */
tp_config_reader tp_config_read_budget;
tp_config_reader tp_config_read_bytes;

/* Into char *: a URL of any kind, or a text that stands for one. */
tp_config_reader tp_config_read_url;

/* The rules that watch() has, and the same as JSON. */
void tp_config_default_rules(tp_config *config);
extern const char tp_config_default_rules_text[];

/* Into nothing: accepted, and not acted on. */
tp_config_reader tp_config_read_any;
tp_config_reader tp_config_read_unused_bool;

/* The members of one rule of alert.rules, of alert.inform, and of database. */
extern const tp_config_members tp_config_rule_members;
extern const tp_config_members tp_config_inform_members;
extern const tp_config_members tp_config_database_members;

#endif
