/* What is collected on request beside the statistics, from the same read. */
#ifndef TP_STATS_EXTRAS_H
#define TP_STATS_EXTRAS_H

#include <stdbool.h>

#include "stats/hash.h"
#include "stats/loops.h"
#include "stats/pass.h"

typedef struct tp_extras {
    const tp_stats_options *options;
    const tp_loops *loops;
    bool hashes;
    tp_hash hash;
} tp_extras;

/* eps is no NaN and not negative, and the bins are some that can be counted. */
bool tp_extras_are_valid(const tp_stats_options *options);

/* Sets the outputs to 0. */
void tp_extras_open(tp_extras *extras, const tp_stats_options *options, const tp_loops *loops,
                    const tp_tensor *tensor, const tp_walk *walk);

/* A block that the pass has taken: as the kernel saw it. */
void tp_extras_block(tp_extras *extras, const tp_pass *pass, const void *data, size_t n);

/* The next n positions of the traversal, which begins at a piece's border: the pass and the extras
 * take them. Returns the position of the piece that brought the largest |x|, if it is larger than
 * all before; else `before`. */
uint64_t tp_extras_read(tp_extras *extras, tp_pass *pass, tp_walk *walk, uint64_t n,
                        tp_pass_space *space, uint64_t before);

/* Once, at the end: what follows from the counted bytes, and the weight. */
void tp_extras_finish(tp_extras *extras, const tp_pass *pass, uint64_t weight);

#endif
