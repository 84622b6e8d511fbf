/* What a segment says of its series in short, for those who show all of them: of each statistic the
 * smallest and the largest value in spans of up to 16 steps, a statistic a frame, and its steps
 * without their records. docs/journal.md describes the bytes. */
#ifndef TP_JOURNAL_DIGEST_H
#define TP_JOURNAL_DIGEST_H

#include "base/buf.h"
#include "base/map.h"
#include "record/registry.h"

#define TP_DIGEST_NORM 0
#define TP_DIGEST_MAX_ABS 1
#define TP_DIGEST_MEAN 2
#define TP_DIGEST_STD 3
#define TP_DIGEST_MIN 4
#define TP_DIGEST_MAX 5
#define TP_DIGEST_ZEROS 6 /* share of elements */
#define TP_DIGEST_STATS 7

#define TP_DIGEST_WIDTH 16 /* steps of a span */

/* Parts, each in a frame of its own. */
#define TP_DIGEST_OF_STEPS 0
#define TP_DIGEST_OF_ROWS 1
#define TP_DIGEST_OF_STAT 2 /* + TP_DIGEST_NORM … */

/* A segment that is smaller has none: it is read as fast as it is. */
#define TP_DIGEST_LEAST_BYTES (UINT64_C(1) << 20)

/* Of a row in a span. NaN: a value is NaN, or none is there, which has bits of its own. */
typedef struct tp_digest_value {
    float low;
    float high;
} tp_digest_value;

tp_digest_value tp_digest_none(void);
bool tp_digest_is_none(tp_digest_value value);

/* The call of a key: what maps have a row of. Rows keep their places while a writer lives. */
typedef struct tp_digest_row {
    uint64_t order;    /* of execution, when it came first */
    uint64_t elements; /* likewise */
    uint32_t key;
    uint32_t call;
    uint32_t dtype;
    uint32_t quantity;
} tp_digest_row;

typedef struct tp_digest_step {
    uint64_t step;
    uint64_t offset; /* of its frame */
    uint64_t begin_ns;
    uint64_t end_ns;
    int64_t wall_ns;
    uint64_t hook_ns;
    uint64_t wait_ns;
    uint64_t writer_ns;
    uint64_t errors;
    uint64_t records;
    double gradient; /* norm of all reduced gradients together, of unreduced ones if there are no
                        others; NaN: there are none */
    uint64_t bytes;
    uint32_t flags; /* TP_BATCH_… */
    uint32_t left_out;
    uint32_t zoom;
    uint32_t micro_steps;
    int32_t pp_stage;
    uint32_t reserved;
} tp_digest_step;

typedef struct tp_digest_span {
    uint32_t steps;
    uint32_t rows; /* those behind have none */
} tp_digest_span;

/* What the training loop logged: each value, as there is no other place to see all of them fast. */
typedef struct tp_digest_scalar {
    uint32_t step; /* the how manieth */
    uint32_t row;
    double value;
} tp_digest_scalar;

/* Of the segment that is being written. Zeroed is empty. */
typedef struct tp_digests {
    tp_buf places;  /* uint32_t by key id: row of call 0, + 1; 0: none */
    tp_map calls;   /* rows of later calls, by key and call */
    tp_buf rows;    /* tp_digest_row */
    tp_buf open;    /* of each row: the span that isn't full */
    tp_buf steps;   /* tp_digest_step */
    tp_buf spans;   /* tp_digest_span */
    tp_buf scalars; /* tp_digest_scalar */
    tp_buf values;  /* tp_digest_value [span][statistic][row] */
    uint32_t open_steps;
    bool failed; /* no memory, or too many rows: the segment has none */
} tp_digests;

/* The statistics as f32: a tensor with a NaN, or ±Inf, shows it in each of them; what is finite
 * stays finite, and what isn't zero doesn't become zero. out has room for 8. */
void tp_digest_values(const tp_stats *stats, float out[8]);

/* Takes in a batch, whose frame lies at this offset; keys are those that `key_of` knows. */
void tp_digests_add(tp_digests *digests, const tp_batch *batch, uint64_t offset,
                    const tp_key *(*key_of)(const void *source, uint32_t key), const void *source);

/* Ends the open span. Nothing may be added before tp_digests_clear. */
void tp_digests_finish(tp_digests *digests);

/* Appends the payload of a part's frame. */
void tp_digests_put(tp_buf *out, const tp_digests *digests, uint32_t part);

/* A new segment begins: its steps are forgotten, rows and memory stay. */
void tp_digests_clear(tp_digests *digests);

void tp_digests_free(tp_digests *digests);

/* The part of steps as it is read. Zeroed is empty; used again and again. */
typedef struct tp_digest {
    tp_buf steps;   /* tp_digest_step */
    tp_buf spans;   /* tp_digest_span */
    tp_buf scalars; /* tp_digest_scalar */
    uint32_t rows;
    uint32_t rows_crc; /* of their keys and calls: the same rows as in another segment or not */
} tp_digest;

/* All: TP_ERR_CORRUPT, TP_ERR_NOMEM. */
tp_status tp_digest_get_steps(const tp_buf *payload, tp_digest *digest);
tp_status tp_digest_get_rows(const tp_buf *payload, const tp_digest *digest, tp_buf *rows);
/* values: tp_digest_value [span][row], of a digest with so many. */
tp_status tp_digest_get_values(const tp_buf *payload, uint64_t spans, uint32_t rows,
                               tp_buf *values);

void tp_digest_free(tp_digest *digest);

#endif
