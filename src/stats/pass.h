/* What is collected while a sequence of elements of one dtype is read, whoever brings them. */
#ifndef TP_STATS_PASS_H
#define TP_STATS_PASS_H

#include <stdbool.h>

#include "stats/bytes.h"
#include "stats/convert.h"
#include "stats/hash.h"
#include "stats/kernels.h"
#include "stats/merge.h"

/* Three ways: a type of 8 bits or less is counted (bytes is set); other types go to a kernel in
 * blocks of TP_BLOCK elements, as they are or, where convert is set, made f64 first. */
typedef struct tp_pass {
    uint32_t dtype;
    const tp_byte_type *bytes;
    uint64_t per; /* elements in one position of the traversal: 2 in a packed byte, else 1 */
    tp_convert convert;
    const tp_kernel *kernel;
    tp_bounds bounds;
    bool halves;    /* f16 or bf16 */
    unsigned quiet; /* blocks, one after the other, with neither zeros nor subnormal numbers */
    unsigned trust; /* so many of them, and the next one is read by the lean kernel */
    bool wide;      /* squares may leave the range of f64 */
    tp_block seen;  /* counts, min and max so far; its sums are not used */
    double abs_max; /* -1 while there is none */
    tp_tree tree;
    tp_byte_counts counts;
} tp_pass;

/* kernel: of the dtype, of f64 where the elements are converted, any where bytes are counted. */
void tp_pass_open(tp_pass *pass, uint32_t dtype, const tp_kernel *kernel, double eps);

/* Forgets what it has taken. */
void tp_pass_restart(tp_pass *pass);

/* Counts and extremes of a block, or of many. */
void tp_pass_see(tp_pass *pass, const tp_block *block);

/* Room for elements that do not lie side by side, and for converted ones. */
#define TP_PASS_BUFFER (TP_BLOCK * sizeof(double))
typedef struct tp_pass_space {
    _Alignas(64) uint8_t gathered[TP_PASS_BUFFER];
    double converted[TP_BLOCK];
} tp_pass_space;

/* How many of the next `left` positions tp_pass_add takes at a time. */
size_t tp_pass_piece(const tp_pass *pass, const tp_walk *walk, uint64_t left);

/* The next n positions of a traversal (what tp_pass_piece says, or fewer) as tp_pass_add wants
 * them; the hash, unless it is NULL, takes them as they are. */
const void *tp_pass_next(const tp_pass *pass, tp_walk *walk, size_t n, tp_pass_space *space,
                         tp_hash *hash);

/* The next block: TP_BLOCK elements, fewer only at the end; any number of bytes that are counted.
 * True when it holds a larger |x| than all before it. */
bool tp_pass_add(tp_pass *pass, const void *data, size_t n);

/* The first element with the largest |x| so far, in the block that brought it. */
size_t tp_pass_find(const tp_pass *pass, const void *data, size_t n);

/* The statistics of a block that is a whole tensor, in row-major order, and not empty; of a dtype
 * whose elements are neither counted nor converted. */
void tp_pass_whole(uint32_t dtype, const tp_kernel *kernel, double eps, const void *data, size_t n,
                   tp_stats *out);

/* count: positions read; weight: how often each counts. Leaves abs_max_index at TP_NO_INDEX. */
void tp_pass_finish(tp_pass *pass, uint64_t count, uint64_t weight, tp_stats *out);

/* x * 2^exp */
double tp_unscaled(double x, int64_t exp);

#endif
