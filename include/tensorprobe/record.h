/* Keys, records and batches: what the monitor writes and every reader reads. */
#ifndef TENSORPROBE_RECORD_H
#define TENSORPROBE_RECORD_H

#include <stdint.h>

#include "tensorprobe/stats.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What was measured. The numbers are stored in journals: never renumber. */
#define TP_ACTIVATION 1
#define TP_ACTIVATION_GRAD 2
#define TP_GRAD_UNREDUCED 3 /* parameter gradient before the data-parallel reduction */
#define TP_GRAD_REDUCED 4   /* parameter gradient as the optimizer's step finds it */
#define TP_PARAM_ORIGIN 5   /* parameter before the optimizer's step */
#define TP_PARAM_UPDATED 6  /* parameter after it */
#define TP_EXP_AVG 7        /* first moment, before the step */
#define TP_EXP_AVG_SQ 8     /* second moment, before the step */
#define TP_SCALAR 9         /* a number that the training loop logs: its loss, a learning rate */
#define TP_ADAM_UPDATE 10   /* Adam's update, of the moments before the step (optimizer.h) */
#define TP_ADAM_RATIO 11    /* Adam's ratio, likewise */
#define TP_MG_DIRECTION 12  /* how far the signs of gradient and first moment agree: one number */

#define TP_COMM 13 /* a collective, and what went into it and came out */

/* Which side of a module an activation or its gradient belongs to; of a collective, what went in
 * (TP_ROLE_PRE) and what came out. */
#define TP_ROLE_NONE 0
#define TP_ROLE_INPUT 1
#define TP_ROLE_OUTPUT 2
#define TP_ROLE_PRE 3
#define TP_ROLE_POST 4

/* How a tensor that is spread over processes is cut. The numbers are stored in journals. */
#define TP_SPAN_WHOLE 0 /* not at all: all of it is here */
#define TP_SPAN_FLAT 1  /* one range of its elements in row-major order */
#define TP_SPAN_BOX 2   /* a range of each of its dimensions */

typedef struct tp_range {
    int64_t start;
    int64_t length;
    int64_t full; /* of the whole tensor */
} tp_range;

/* Which part of a tensor a process has, and which others have the same part. */
typedef struct tp_span {
    uint32_t kind;          /* TP_SPAN_… */
    uint32_t ndim;          /* ranges; 1 when flat, 0 when whole */
    uint32_t copies;        /* processes with this part, this one included; 0: not known */
    uint32_t copy;          /* which of them this is, from 0 */
    const tp_range *ranges; /* borrowed or owned as the key's strings are */
} tp_span;

/* The name of a series. Strings are borrowed by the call that takes the key, and owned by the
 * registry or reader that hands one out. */
typedef struct tp_key {
    const char *name;        /* module or parameter, as the framework names it; "" is the root; of
                                a collective the operation */
    const char *global_name; /* layer numbers counted over pipeline stages; NULL means name. Of a
                                collective its group: "<name>:<ranks>", as in "0:0-3" */
    int32_t vpp_stage;       /* virtual pipeline chunk, from 0 */
    int32_t slot;            /* which of several tensors of one side; -1 when it is the only one */
    uint32_t quantity;       /* TP_ACTIVATION … */
    uint32_t role;           /* TP_ROLE_… */
    const tp_span *span;     /* NULL: the tensor isn't spread over processes, as far as is known */
    const char *argument;    /* of an input given by keyword: its name; slot then counts the tensors
                                in it alone. NULL: by position, or no input */
} tp_key;

/* States of a slot. A reader of a journal only ever sees DONE, or RESERVED in a partial batch. */
#define TP_SLOT_FREE 0u
#define TP_SLOT_RESERVED 1u /* has its key and order, its values are still to come */
#define TP_SLOT_DONE 2u     /* complete */
#define TP_SLOT_ISSUED 3u   /* a collective that runs: what tp_collective has first is there */

/* What the union of a record holds. */
#define TP_RECORD_STATS 1
#define TP_RECORD_ALERT 2
#define TP_RECORD_COLLECTIVE 3
#define TP_RECORD_INCIDENT 4 /* beside the alerts of a step: tp_incident */

/* One call of a collective, or of a point-to-point operation. A call that has not ended by the end
 * of its step, or of the journal, has no TP_COLLECTIVE_DONE; when it ends in a later step, that
 * step has a record of it too, with TP_COLLECTIVE_LATE. Ranks of a group number its calls alike. */
typedef struct tp_collective {
    uint32_t op;         /* TP_COLLECTIVE_OP_… */
    uint32_t tag;        /* of send and recv */
    int32_t peer;        /* rank of the other side, or of the root; -1: there is none */
    uint32_t group_size; /* ranks */
    uint64_t sequence;   /* of the group, from 0; of send and recv: of this peer and direction */
    uint64_t bytes_in;   /* of this rank's tensors that go in */
    uint64_t bytes_out;  /* of those that come out */
    uint64_t signature;  /* of operation, root, shapes and dtypes, as far as ranks have to agree */
    uint64_t running;    /* of all signatures of the group up to this one */
    uint64_t issue_ns;   /* monotonic clock */
    uint64_t location;   /* the line that called: id of a key of quantity TP_COMM, plus 1; or 0 */
    uint64_t flags;      /* TP_COLLECTIVE_…. From here on: once it has ended */
    uint64_t call_ns;    /* until the call came back */
    uint64_t done_ns;    /* from issue_ns until it was seen to have ended */
    uint64_t wait_ns;    /* of these, how long somebody waited for it */
    uint64_t reserved[4];
} tp_collective;

#define TP_COLLECTIVE_ASYNC 1u  /* the caller got a work object to wait for */
#define TP_COLLECTIVE_DONE 2u   /* it has ended: done_ns is right */
#define TP_COLLECTIVE_POLLED 4u /* nobody waited: it was found to have ended, done_ns is a bound */
#define TP_COLLECTIVE_FAILED 8u /* an exception */
#define TP_COLLECTIVE_LATE 16u  /* issued in an earlier step, which has a record of it, too */

#define TP_COLLECTIVE_OP_SEND 1
#define TP_COLLECTIVE_OP_RECV 2
#define TP_COLLECTIVE_OP_BROADCAST 3
#define TP_COLLECTIVE_OP_ALL_REDUCE 4
#define TP_COLLECTIVE_OP_REDUCE 5
#define TP_COLLECTIVE_OP_SCATTER 6
#define TP_COLLECTIVE_OP_REDUCE_SCATTER 7
#define TP_COLLECTIVE_OP_GATHER 8
#define TP_COLLECTIVE_OP_ALL_GATHER 9
#define TP_COLLECTIVE_OP_ALL_TO_ALL 10
#define TP_COLLECTIVE_OP_BARRIER 11
#define TP_COLLECTIVE_OP_OTHER 12 /* of objects: the name says which */

/* A rule fired. The record's key, order, micro step and call are those of the value it fired on. */
typedef struct tp_alert {
    uint32_t rule;     /* TP_RULE_… */
    uint32_t op;       /* TP_OP_… : which statistic */
    double value;      /* what was found */
    double baseline;   /* what earlier values led to expect; NaN where the rule has none */
    double threshold;  /* of the rule; NaN where it has none */
    uint64_t samples;  /* how many earlier values the baseline is made of */
    uint64_t more;     /* how many other series fired the same rule in this step (first one only) */
    uint64_t incident; /* number of the incident that it belongs to; 0: none */
    uint64_t dtype;    /* UnderflowShare, OverflowShare: whose range the values leave; else 0 */
    uint64_t reserved[9];
} tp_alert;

#define TP_RULE_ANOMALY_NAN 1
#define TP_RULE_ANOMALY_TURBULENCE 2
#define TP_RULE_EXPLODING 3
#define TP_RULE_VANISHING 4
#define TP_RULE_LOSS_SPIKE 5
#define TP_RULE_ALL_ZERO 6
#define TP_RULE_UNCHANGED_TENSOR 7
#define TP_RULE_DEAD_UNITS 8
#define TP_RULE_SATURATED 9
#define TP_RULE_WEIGHT_UPDATE_RATIO 10
#define TP_RULE_VARIANCE_BOUNDS 11
#define TP_RULE_GRAD_NORM_SPIKE 12
#define TP_RULE_UNDERFLOW_SHARE 13
#define TP_RULE_OVERFLOW_SHARE 14
#define TP_RULE_MOMENTUM_AGAINST_GRADIENT 15
#define TP_RULE_STALLED_STEP 16
#define TP_RULE_REPLICA_DRIFT 17
#define TP_RULE_COMM_STRAGGLER 18
#define TP_RULE_COUNT 18 /* the largest of them */

/* How bad it is. */
#define TP_SEVERITY_NOTICE 1   /* something to know: a dead unit, a skipped step */
#define TP_SEVERITY_WARNING 2  /* a value out of its range */
#define TP_SEVERITY_CRITICAL 3 /* values that are no numbers: what was computed from them is lost */

/* What an incident's record tells of it. */
#define TP_INCIDENT_BEGINS 1
#define TP_INCIDENT_GROWS 2 /* it is worse than before, or in its 10th, 100th … step */
#define TP_INCIDENT_ENDS 3  /* no alert of it for TP_INCIDENT_QUIET steps, or the run has ended */
#define TP_INCIDENT_QUIET 20

/* The likely cause. Stored in journals: never renumber. */
#define TP_CAUSE_UNKNOWN 0
#define TP_CAUSE_BORN 1         /* inputs finite, output not */
#define TP_CAUSE_BETWEEN 2      /* between two watched tensors, in code that is no module */
#define TP_CAUSE_BAD_BATCH 3    /* what goes into the model isn't finite */
#define TP_CAUSE_WEIGHT 4       /* a weight was changed between two steps */
#define TP_CAUSE_OVERFLOW 5     /* beyond what the dtype can hold; evidence: its finite extreme */
#define TP_CAUSE_ZERO_BY_ZERO 6 /* 0 / 0: all of the input is 0, or all of it the same */
#define TP_CAUSE_LOG 7          /* log, root or power of a number <= 0; evidence: the input's min */
#define TP_CAUSE_FLIPPED_BIT 8  /* a single element, out of all proportion */
#define TP_CAUSE_EMPTY 9        /* something was computed of no elements: an empty expert */
#define TP_CAUSE_MOMENT 10      /* the optimizer's moments overflowed; evidence: largest gradient */
#define TP_CAUSE_LOSS_SCALE 11  /* the gradient scaler found infinities and skipped the step */
#define TP_CAUSE_BACKWARD 12    /* in the backward: gradients that come in are finite */
#define TP_CAUSE_REDUCTION 13   /* by the reduction over ranks: what went in here is finite */
#define TP_CAUSE_LOSS 14        /* in the loss: its gradient is where it begins */
#define TP_CAUSE_MANY_AT_ONCE 15 /* many weights in one step: it was too large */
#define TP_CAUSE_COUNT 15        /* the largest of them */

#define TP_NO_KEY UINT32_MAX

/* All alerts of one cause, in one rank. Each record of it is complete: the last one is the truth.
 * Key, order, micro step, call, dtype and shape of the record are those of the tensor that went
 * wrong first, its producer. It stands among the alerts of the step in which it was made. */
typedef struct tp_incident {
    uint32_t number; /* in this rank and attempt, from 1 */
    uint32_t state;  /* TP_INCIDENT_… */
    uint32_t severity;
    uint32_t cause; /* TP_CAUSE_… */
    uint32_t rule;  /* of the producer's alert, with its op and numbers */
    uint32_t op;
    double value;
    double baseline;
    double threshold;
    uint64_t samples;
    uint64_t first_step;
    uint64_t last_step; /* that has an alert of it */
    uint64_t steps;     /* that have one */
    uint64_t alerts;
    uint64_t series;     /* keys that have one */
    uint64_t element;    /* row-major index of the offending element; TP_NO_INDEX: not known */
    uint64_t bits;       /* its pattern, when the index is known */
    double evidence;     /* what the cause is told by; NaN: nothing */
    uint32_t witness;    /* key of the series that it is told by; TP_NO_KEY: none */
    uint32_t parent;     /* number of an incident that may have led to this one; 0: none */
    uint32_t zoom_steps; /* steps by now that have more than is configured because of it */
    uint32_t zoom_after; /* the first of them, counted from first_step */
} tp_incident;

/* Statistics by which output columns are named, in the ancestors' words. */
#define TP_OP_NORM 1
#define TP_OP_MIN 2
#define TP_OP_MAX 3
#define TP_OP_MEAN 4
#define TP_OP_ZEROS 5 /* share of elements with |x| < eps */
#define TP_OP_NANS 6  /* number of NaN */
#define TP_OP_ID 7    /* the value itself, of 0-dimensional tensors */
#define TP_OP_SHAPE 8
#define TP_OP_DTYPE 9
#define TP_OP_COUNT 9 /* the largest of them */

/* Flags of a record. */
#define TP_RECORD_HISTOGRAM 1u /* its batch has a histogram of it: tp_batch_histogram */
#define TP_RECORD_ELEMENT 2u   /* its batch has an element of it: tp_batch_element */
#define TP_RECORD_EXPONENTS 4u /* its batch has its exponents: tp_batch_exponents */

/* One measurement: three cache lines, stored in journals column by column. */
typedef struct tp_record {
    uint32_t state;      /* TP_SLOT_…; the commit word: written last, with release order */
    uint32_t key;        /* id in the registry */
    uint64_t order;      /* execution order in this rank and step, from 0 */
    uint32_t micro_step; /* from 0 */
    uint32_t call;       /* which call of the module in this micro step, from 0 */
    uint32_t kind;       /* TP_RECORD_… */
    uint32_t dtype;      /* of the tensor */
    uint32_t shape;      /* id in the registry */
    uint32_t flags;      /* TP_RECORD_HISTOGRAM … */
    uint64_t time_ns;    /* when it was taken, since the batch's begin_ns */
    uint64_t arena;      /* with any of them: where in the batch's arena they are; else 0 */
    union {
        tp_stats stats;
        tp_alert alert;
        tp_incident incident;
        tp_collective collective;
        uint64_t words[17];
    } u;
} tp_record;

#define TP_BATCH_PARTIAL 1u /* the step did not reach its boundary, or slots were never filled */
#define TP_BATCH_GAP 2u     /* the step's records were given up; count tells how many */
#define TP_BATCH_SKIPPED 4u /* the optimizer made no update: a gradient scaler found infinities */

/* One optimizer step of one rank, as followers and readers see it. Records are owned by whoever
 * hands the batch out and are valid until the next call on it. */
typedef struct tp_batch {
    uint64_t step; /* the optimizer's step, from 0 */
    uint32_t rank;
    uint32_t attempt;     /* how often this run has been started before, from 0 */
    int32_t pp_stage;     /* pipeline stage, -1 when there is none */
    uint32_t flags;       /* TP_BATCH_… */
    uint32_t micro_steps; /* training forwards of the root module */
    uint32_t unfilled;    /* slots that were reserved and never filled */
    uint64_t begin_ns;    /* monotonic clock */
    uint64_t end_ns;
    int64_t wall_ns;          /* Unix time of end_ns */
    uint64_t hook_ns;         /* the monitor's own time in hooks */
    uint64_t wait_ns;         /* what the end of the step before waited: a part of this step */
    uint64_t writer_ns;       /* CPU time of the writer thread since the batch before this one */
    uint64_t errors;          /* hooks that failed and recorded nothing, in this step */
    uint64_t count;           /* records */
    const tp_record *records; /* NULL when TP_BATCH_GAP is set */
    const uint8_t *arena;     /* what records have beside; NULL when there is nothing */
    uint64_t arena_size;      /* bytes */
    uint64_t bytes;    /* written since the batch before this one: to the journal and other files */
    uint32_t left_out; /* bits 1 << TP_ACTIVATION …: of these quantities the step has only what
                          rules name, for the sake of the budget */
    uint32_t zoom;     /* number of the incident for which more is recorded than is configured; 0:
                          as configured */
} tp_batch;

/* bin_count bins of equal width over [low, high], the upper end included; other elements are left
 * out. bins lies in the batch's arena and is valid as long. */
typedef struct tp_histogram {
    double low;
    double high;
    const uint64_t *bins;
    uint32_t bin_count;
    uint32_t reserved;
} tp_histogram;

/* The histogram of one of the batch's records. TP_ERR_NOTFOUND when it has none (or a damaged one);
 * *out is not touched then. */
TP_API tp_status tp_batch_histogram(const tp_batch *batch, const tp_record *record,
                                    tp_histogram *out);

/* How large the record's elements are, where that was asked for: bin k counts those with
 * 2^(low + k) <= |x| < 2^(low + k + 1), from the smallest that occurs to the largest. Zeros, NaN
 * and infinities are in no bin; those below 2^-160 in the bin of -160, those from 2^160 on in that
 * of 159. Errors and lifetime as above. */
TP_API tp_status tp_batch_exponents(const tp_batch *batch, const tp_record *record,
                                    tp_histogram *out);

/* The first NaN or infinity that was met in a record of the batch: its row-major index, and its
 * pattern as it lay in memory. TP_ERR_NOTFOUND when it isn't known; *index and *bits are not
 * touched then. In one step no more than 2^26 elements are looked at for it. */
TP_API tp_status tp_batch_element(const tp_batch *batch, const tp_record *record, uint64_t *index,
                                  uint64_t *bits);

/* The value that a column named op shows for these statistics (not for SHAPE and DTYPE: NaN). */
TP_API double tp_stats_op(const tp_stats *stats, uint32_t op);

/* "norm" …; NULL for an unknown op. Static. */
TP_API const char *tp_op_name(uint32_t op);

/* The inverse; 0 when there is no such op. */
TP_API uint32_t tp_op_from_name(const char *name);

/* Kind of file a quantity goes to: "actv", "actv_grad", "grad_unreduced" …; NULL if unknown. */
TP_API const char *tp_quantity_name(uint32_t quantity);

/* "actv_grad exp_avg": their names, of the bits 1 << TP_ACTIVATION …, with a space between, always
 * shorter than TP_QUANTITIES_TEXT. Returns the length. */
#define TP_QUANTITIES_TEXT 256
TP_API uint64_t tp_quantities_describe(uint32_t bits, char *text, uint64_t size);

/* "input", "output", "" for TP_ROLE_NONE; NULL if unknown. Static. */
TP_API const char *tp_role_name(uint32_t role);

/* "AnomalyNan" …; NULL if unknown. */
TP_API const char *tp_rule_name(uint32_t rule);

/* "norm is 512.3, the mean of 31 earlier steps 4.1": the finding in words, always shorter than
 * TP_ALERT_TEXT. Returns the length without the terminator. */
#define TP_ALERT_TEXT 160
TP_API uint64_t tp_alert_describe(const tp_alert *alert, char *text, uint64_t size);

/* "notice" …; NULL if unknown. */
TP_API const char *tp_severity_name(uint32_t severity);

/* "overflow" …, a short word; NULL if unknown. */
TP_API const char *tp_cause_name(uint32_t cause);

/* An incident in words, in one line: what, where, value and normal range, since when, how far it
 * has spread, the likely cause and where to look next. record: one of kind TP_RECORD_INCIDENT; key
 * and witness: of its keys, witness NULL when there is none. Cut to size - 1 at the end of a
 * character; TP_INCIDENT_TEXT is enough for names of up to 1,000 bytes. Returns the length. */
#define TP_INCIDENT_TEXT 4096
TP_API uint64_t tp_incident_describe(const tp_record *record, const tp_key *key,
                                     const tp_key *witness, char *text, uint64_t size);

/* The row name of a record: parameters by their name; activations "<module>.input", tensors of
 * collectives "<operation>.pre", with "_<slot>" when the side has several tensors and "#<call>"
 * from the second call of a micro step on; an input given by keyword "<module>.input_<argument>",
 * with ".<slot>" when there are several in it.
 * Returns the length (without the terminator), cut to size - 1 at the end of a character. */
TP_API uint64_t tp_row_name(const tp_key *key, uint32_t call, char *text, uint64_t size);

#ifdef __cplusplus
}
#endif

#endif
