/* How long collectives took, and who was waited for. */
#ifndef TP_VIEW_TIMING_H
#define TP_VIEW_TIMING_H

#include "view/calls.h"

/* Calls of one operation, group and size class, of all ranks. Sizes and bandwidths are NCCL's: the
 * size of an all_gather is that of what comes out, of a reduce_scatter that of what goes in …; the
 * bus bandwidth is the algorithm's times 2(n-1)/n (all_reduce), (n-1)/n (gathering, scattering,
 * all_to_all) or 1. */
typedef struct tp_timing {
    uint32_t name;
    uint32_t group;
    uint32_t size_class; /* sizes below 16^size_class KiB */
    uint64_t calls;
    double bytes;   /* sizes of all of them */
    uint64_t timed; /* that ended while somebody waited: only these have times */
    double seconds; /* from issue to completion, of these */
    double longest;
    double waiting;             /* of these: how long somebody waited */
    double algorithm_bandwidth; /* bytes per second, of these; NaN: there is none */
    double bus_bandwidth;
} tp_timing;

/* Appends tp_timing to out, in the order in which they come first. TP_ERR_NOMEM. */
tp_status tp_timing_of(const tp_calls *calls, tp_buf *out);

/* A rank's clock beside that of the lowest rank, and how often it was waited for. */
typedef struct tp_straggling {
    uint32_t rank;
    bool aligned;       /* it has ended calls of a group that both are in */
    double offset;      /* seconds that its clock shows more; of the middle of what is possible */
    double uncertainty; /* it is at most so far from there; negative: the clocks drift */
    uint64_t calls;     /* that count: all of the group had to come */
    uint64_t last;      /* of these: it came last, by more than the clocks leave open */
    double delay;       /* seconds by which it came behind the others in these */
    double score;       /* delay, as part of all time between first and last of all calls: 0 to 1 */
} tp_straggling;

/* A rank in a call that nobody can leave before all have come. */
typedef struct tp_arrival {
    uint32_t rank;
    uint64_t step;
    double waited; /* seconds until the last one came */
    double behind; /* seconds that it came behind the others, where it was the last for sure */
} tp_arrival;

/* Appends one tp_straggling a rank, and its arrivals to arrivals (unless that is NULL). From a call
 * that nobody can leave before all have come follows for each two ranks: one's end isn't before the
 * other's begin. That bounds the difference of their clocks from both sides. TP_ERR_NOMEM. */
tp_status tp_straggling_of(const tp_calls *calls, tp_buf *out, tp_buf *arrivals);

#endif
