/* Statistics of several tensors as if they were one. */
#ifndef TP_STATS_COMBINE_H
#define TP_STATS_COMBINE_H

#include "tensorprobe/stats.h"

/* Makes *into the statistics of its elements with those of *next behind them. */
void tp_stats_append(tp_stats *into, const tp_stats *next);

#endif
