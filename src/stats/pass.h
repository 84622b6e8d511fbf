/* What is collected while a sequence of elements of one dtype is read, whoever brings them. */
#ifndef TP_STATS_PASS_H
#define TP_STATS_PASS_H

#include <stdbool.h>

#include "stats/bytes.h"
#include "stats/convert.h"
#include "stats/kernels.h"
#include "stats/merge.h"

/* Three ways: a type of 8 bits or less is counted (bytes is set); other types go to a kernel in
 * blocks of TP_BLOCK elements, as they are or, where convert is set, made f64 first. */
typedef struct tp_pass {
    const tp_byte_type *bytes;
    tp_convert convert;
    const tp_kernel *kernel;
    tp_bounds bounds;
    bool halves;    /* f16 or bf16 */
    bool wide;      /* squares may leave the range of f64 */
    tp_block seen;  /* counts, min and max so far; its sums are not used */
    double abs_max; /* -1 while there is none */
    tp_tree tree;
    tp_byte_counts counts;
} tp_pass;

/* kernel: of the dtype, of f64 where the elements are converted, any where bytes are counted. */
void tp_pass_open(tp_pass *pass, uint32_t dtype, const tp_kernel *kernel, double eps);

/* The next block, for the kernel: TP_BLOCK elements, fewer only at the end. True when it holds a
 * larger |x| than all before it. */
bool tp_pass_block(tp_pass *pass, const void *data, size_t n);

/* The next n bytes, of any number, where bytes are counted; likewise. */
bool tp_pass_bytes(tp_pass *pass, const void *data, size_t n);

/* The first element with the largest |x| so far, in the block or bytes that brought it. */
size_t tp_pass_find(const tp_pass *pass, const void *data, size_t n);

/* count: elements read; weight: how often each counts. Leaves abs_max_index at TP_NO_INDEX. */
void tp_pass_finish(tp_pass *pass, uint64_t count, uint64_t weight, tp_stats *out);

/* x * 2^exp */
double tp_unscaled(double x, int64_t exp);

#endif
