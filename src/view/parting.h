/* Where two runs part: the first step, and in it the first tensors, at which what two sets of
 * journals recorded differs by more than rounding explains. */
#ifndef TP_VIEW_PARTING_H
#define TP_VIEW_PARTING_H

#include "base/buf.h"
#include "cause/order.h"
#include "journal/find.h"
#include "tensorprobe/record.h"

typedef struct tp_parting_options {
    double tolerance; /* relative; NaN: what tp_parting_tolerance says of each dtype */
    uint64_t first_step;
    uint64_t last_step;
    int64_t rank_a; /* -1: all ranks; else this one of A with rank_b of B */
    int64_t rank_b;
} tp_parting_options;

/* All steps of all ranks, by the tolerances of the dtypes. */
tp_parting_options tp_parting_defaults(void);

#define TP_ALL_RANKS UINT32_MAX /* a parameter that was put together from the parts of several */

/* One series in the step at which the runs part. */
typedef struct tp_difference {
    char row[1024]; /* as tp_row_name has it, counted over pipeline stages */
    const char *statistic;
    uint32_t quantity;
    uint32_t rank_a;
    uint32_t rank_b;
    uint32_t micro_step;
    uint32_t dtype_a;
    uint32_t dtype_b;
    tp_moment moment; /* in A */
    double a;
    double b;
    double difference; /* relative to the size of what is in the tensor; NaN: of another kind */
    double tolerance;
} tp_difference;

typedef struct tp_parting {
    bool differs;
    uint64_t step;    /* at which they part; the last that was compared when they don't */
    uint64_t steps;   /* that both have and that were compared, this one included */
    uint64_t values;  /* records compared, likewise */
    uint64_t in_step; /* records compared in this step */
    uint64_t only_a;  /* records that the other run hasn't, in steps that both have */
    uint64_t only_b;
    uint64_t
        apart; /* records of what each rank has for itself, in runs that are spread differently */
    uint64_t only_steps_a; /* steps that the other run hasn't */
    uint64_t only_steps_b;
    tp_buf found; /* tp_difference: one a series, in execution order; the first statistic */
} tp_parting;

/* Values are held against those of the same name and, where a tensor is spread over ranks, of the
 * same part: on the same rank, or else on any that has it. Where the parts of a parameter aren't
 * the same, those of each run are put together. Then what ranks have for themselves (activations,
 * gradients before the reduction, logged numbers) isn't compared: nobody knows who had which data.
 * TP_ERR_NOTFOUND, TP_ERR_CORRUPT, TP_ERR_NOMEM …; end with tp_parting_free in any case. */
tp_status tp_parting_find(tp_parting *out, const tp_journals *a, const tp_journals *b,
                          const tp_parting_options *options, tp_error *error);
void tp_parting_free(tp_parting *parting);

/* What torch.testing.assert_close allows for this dtype; 0 for whole numbers. */
double tp_parting_tolerance(uint32_t dtype);

#endif
