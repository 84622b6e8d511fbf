/* What a sink is: it writes batches to a place of its own, and can say in a few bytes how far it
 * has come. A sink never sees the journal; the follower (monitor/follower.h) feeds it in step
 * order. */
#ifndef TP_SINKS_SINK_H
#define TP_SINKS_SINK_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/error.h"
#include "tensorprobe/reader.h"

/* Names and shapes behind the ids in records, from the registry of a running monitor or from a
 * reader. */
typedef struct tp_names {
    const void *source;
    const tp_key *(*key)(const void *source, uint32_t id);
    const int64_t *(*shape)(const void *source, uint32_t id, uint32_t *ndim);
} tp_names;

typedef struct tp_sink_options {
    const char *directory; /* the folder of this rank, which exists */
    uint32_t rank;
    uint32_t op_count;
    const uint32_t *ops; /* TP_OP_…: the columns, in the configured order; borrowed till close */
    uint32_t ndigits;    /* decimals; 0: numbers read back to the same double */
    uint64_t steps_per_file; /* CSV: step_count_per_record */
    uint64_t max_tags;       /* TensorBoard: tensorboard_tags; 0: no limit */
    bool micro_gradients;    /* unreduced gradients are those of micro steps (monitor_mbs_grad) */
} tp_sink_options;

/* Every function runs on the writer thread (or in `tensorprobe recover`). Errors: TP_ERR_NOSPACE
 * and TP_ERR_IO mean that the same batch may be offered again later, to a sink opened anew from its
 * last cursor; anything else ends the sink for this run. */
typedef struct tp_sink {
    const char *name;    /* of the configuration's `format`, and of the cursor file */
    size_t private_size; /* the caller allocates this much, zeroed */

    /* cursor: the bytes that the last durable `cursor` call gave, or empty: begin anew. What lies
     * in the sink's files behind the cursor is cut off. close is called even when this fails. */
    tp_status (*open)(void *private, const tp_sink_options *options, const uint8_t *cursor,
                      size_t cursor_size, tp_error *error);

    /* Whether the sink's files still hold what this cursor, which is not empty, speaks of. If
     * somebody has removed or cut them, they can be made anew from the journal. */
    bool (*is_whole)(const tp_sink_options *options, const uint8_t *cursor, size_t cursor_size);

    /* Writes one whole step: when it returns TP_OK, all bytes have been handed to the kernel, if
     * the sink has no flush. A record that has no name (its definition was damaged) is left out.
     * Never called with partial batches or gaps. */
    tp_status (*write)(void *private, const tp_batch *batch, const tp_names *names,
                       tp_error *error);

    /* The run has gone back to this step: takes out what there is of it and of later ones, which
     * come again. Called in front of the first write of another attempt. */
    tp_status (*rewind)(void *private, uint64_t step, tp_error *error);

    /* The alerts of the step that was written last; NULL: the sink shows none. */
    tp_status (*write_alerts)(void *private, uint64_t step, const tp_record *alerts, uint64_t count,
                              const tp_names *names, tp_error *error);

    /* Hands over to the kernel what write has kept back, before the cursor is asked for. NULL: it
     * keeps nothing back. */
    tp_status (*flush)(void *private, tp_error *error);

    /* Appends to out what open needs to go on behind the last write. */
    void (*cursor)(const void *private, tp_buf *out);

    uint64_t (*bytes)(const void *private); /* written since open */
    void (*close)(void *private);
} tp_sink;

extern const tp_sink tp_sink_csv;
extern const tp_sink tp_sink_tensorboard;
extern const tp_sink tp_sink_anomaly;
extern const tp_sink tp_sink_sqlite;

#endif
