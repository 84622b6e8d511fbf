/* What backtest does with the journals of several ranks together. */
#ifndef TP_TOOLS_BACKTEST_RANKS_H
#define TP_TOOLS_BACKTEST_RANKS_H

#include "config/config.h"
#include "journal/find.h"

/* How often a rule between ranks has fired, and in how many steps. */
typedef struct tp_ranks_score {
    uint64_t alerts;
    uint64_t steps;
} tp_ranks_score;

/* Runs the rules that look at several ranks (ReplicaDrift, CommStraggler) over each run that has
 * several among these journals, and prints what they find: for people, or for programs (list). Adds
 * to scores, by TP_RULE_…. */
tp_status tp_backtest_ranks(const tp_config *config, const tp_journals *journals, bool list,
                            tp_ranks_score *scores, tp_error *error);

#endif
