/* Reading a large tensor with several threads. The blocks are added up in a binary counter, so that
 * 2^k blocks that begin at a multiple of 2^k are one level of it, whoever adds them up: the result
 * has the bits of one thread's. */
#ifndef TP_STATS_SPLIT_H
#define TP_STATS_SPLIT_H

#include "stats/extras.h"

#define TP_SPLIT_BYTES (UINT64_C(1) << 20) /* what the traversal reads; less is not worth it */

/* How many threads the options, or tp_stats_set_threads, allow: at least 1. */
unsigned tp_stats_threads(const tp_stats_options *options);

/* Is it worth it, and possible? Not for small tensors, nor for histograms of many bins, which every
 * thread would need for itself. */
bool tp_split_is_worth(const tp_pass *pass, const tp_walk *walk, const tp_stats_options *options);

/* Reads the whole traversal. The walk, the pass and the extras have just been opened; pass and
 * extras are then as if they had read it. Returns the position of a piece that holds the first
 * element with the largest |x|. */
uint64_t tp_split_read(unsigned threads, tp_extras *extras, tp_pass *pass, const tp_walk *walk);

#endif
