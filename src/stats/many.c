#include <stdatomic.h>

#include "base/pool.h"
#include "stats/split.h"

#define GRAB 8 /* tensors that a thread takes at a time */

typedef struct many {
    const tp_tensor *tensors;
    uint64_t count;
    tp_stats_options alone; /* each tensor by the thread that has taken it */
    tp_stats *out;
    atomic_ullong next;
    atomic_ullong failed; /* the first tensor that could not be read; count: none */
} many;

/* What a thread reads alone; 0 where the tensor is not valid. */
static uint64_t bytes_of(const tp_tensor *tensor)
{
    tp_walk walk;
    return tp_walk_open(&walk, tensor) == TP_OK ? walk.count * walk.element : 0;
}

static void note_failure(many *job, unsigned long long number)
{
    unsigned long long first = atomic_load(&job->failed);
    while (number < first && !atomic_compare_exchange_weak(&job->failed, &first, number)) {
    }
}

static void read_small_ones(void *context)
{
    many *job = context;
    unsigned long long from;
    while ((from = atomic_fetch_add_explicit(&job->next, GRAB, memory_order_relaxed)) <
           job->count) {
        for (uint64_t i = from; i < job->count && i < from + GRAB; i++) {
            if (bytes_of(&job->tensors[i]) < TP_SPLIT_BYTES &&
                tp_stats_compute_with(&job->tensors[i], &job->alone, &job->out[i]) != TP_OK) {
                note_failure(job, i);
            }
        }
    }
}

static tp_status read_one_by_one(const tp_tensor *tensors, uint64_t count,
                                 const tp_stats_options *options, tp_stats *out)
{
    for (uint64_t i = 0; i < count; i++) {
        const tp_status status = tp_stats_compute_with(&tensors[i], options, &out[i]);
        if (status != TP_OK) {
            return status;
        }
    }
    return TP_OK;
}

tp_status tp_stats_compute_many(const tp_tensor *tensors, uint64_t count,
                                const tp_stats_options *options, tp_stats *out)
{
    if (tensors == NULL || options == NULL || out == NULL || options->bins != NULL ||
        options->exponents != NULL || options->hash != NULL || !tp_extras_are_valid(options)) {
        return TP_ERR_ARGUMENT;
    }
    const unsigned threads = tp_stats_threads(options);
    uint64_t small = 0; /* bytes */
    for (uint64_t i = 0; threads > 1 && i < count && small < TP_SPLIT_BYTES; i++) {
        const uint64_t bytes = bytes_of(&tensors[i]);
        small += bytes < TP_SPLIT_BYTES ? bytes : 0;
    }
    if (small < TP_SPLIT_BYTES) {
        return read_one_by_one(tensors, count, options, out);
    }
    many job = {.tensors = tensors, .count = count, .alone = *options, .out = out};
    job.alone.threads = 1;
    atomic_store(&job.failed, count);
    tp_pool_run(threads, read_small_ones, &job);
    for (uint64_t i = 0; i < count; i++) {
        if (bytes_of(&tensors[i]) < TP_SPLIT_BYTES) {
            continue;
        }
        if (tp_stats_compute_with(&tensors[i], options, &out[i]) != TP_OK) {
            note_failure(&job, i);
        }
    }
    const uint64_t failed = atomic_load(&job.failed);
    return failed < count ? tp_stats_compute_with(&tensors[failed], &job.alone, &out[failed])
                          : TP_OK;
}
