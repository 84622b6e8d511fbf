#include "stats/pass.h"

#include <math.h>
#include <string.h>

#include "stats/block.h"

#define SCALE_EXP 600 /* f64 are scaled by 2^600 or 2^-600 */

/* M2 of one block, divided by 4^exp; the block is still in the L1 cache. */
static double block_m2(const tp_pass *pass, const void *data, size_t n, double scale,
                       const tp_block *block, uint64_t finite)
{
    const double count = (double)finite;
    if (block->min == block->max) {
        return 0.0;
    }
    bool is_right;
    const double m2 = tp_block_m2(block, pass->halves, count, &is_right);
    if (is_right) {
        return m2;
    }
    double moments[2];
    pass->kernel->spread(data, n, scale, block->sum / count, moments);
    return tp_moments_m2(moments, count);
}

static double block_abs_max(const tp_block *block, uint64_t finite)
{
    if (block->pos_inf + block->neg_inf > 0) {
        return INFINITY;
    }
    return finite > 0 ? tp_block_largest(block) : -1.0;
}

void tp_pass_see(tp_pass *pass, const tp_block *block)
{
    tp_block *seen = &pass->seen;
    seen->nan += block->nan;
    seen->pos_inf += block->pos_inf;
    seen->neg_inf += block->neg_inf;
    seen->zeros += block->zeros;
    seen->subnormal += block->subnormal;
    seen->min = block->min < seen->min ? block->min : seen->min;
    seen->max = block->max > seen->max ? block->max : seen->max;
}

/* After a block that the lean kernel has read in vain, so many have to be quiet before it is asked
 * again: what is lost stays small in any mixture of blocks. */
#define TRUST_AGAIN 16

/* By the lean kernel, where blocks before this one let it be hoped that there is nothing to count.
 * What the others give is the same, so that the result doesn't depend on it. */
static void read_clean(tp_pass *pass, const void *data, size_t n, tp_block *block)
{
    const tp_kernel *kernel = pass->kernel;
    if (pass->quiet >= pass->trust && n == TP_BLOCK && kernel->lean != NULL) {
        if (kernel->lean(data, &pass->bounds, block) || !(block->sum_sq < INFINITY)) {
            return;
        }
        pass->trust = TRUST_AGAIN;
    }
    kernel->clean(data, n, &pass->bounds, block);
    pass->quiet = block->zeros + block->subnormal == 0 ? pass->quiet + 1 : 0;
}

static tp_part read_block(tp_pass *pass, const void *data, size_t n, tp_block *block)
{
    const tp_kernel *kernel = pass->kernel;
    read_clean(pass, data, n, block);
    if (!(block->sum_sq < INFINITY) || (pass->halves && tp_is_extreme(tp_block_largest(block)))) {
        kernel->masked(data, n, &pass->bounds, 1.0, block);
    }
    const uint64_t finite = n - block->nan - block->pos_inf - block->neg_inf;
    double scale = 1.0;
    int64_t exp = 0;
    if (pass->wide && finite > 0) {
        const double largest = tp_block_largest(block);
        if (largest > TP_LARGEST_UNSCALED) {
            scale = 0x1p-600;
            exp = SCALE_EXP;
        } else if (largest < TP_SMALLEST_UNSCALED && largest > 0.0) {
            scale = 0x1p600;
            exp = -SCALE_EXP;
        }
        if (exp != 0) {
            kernel->masked(data, n, &pass->bounds, scale, block);
        }
    }

    tp_part part = {.n = finite, .exp = exp};
    if (finite > 0) {
        part.sum = block->sum;
        part.sum_abs = block->sum_abs;
        part.sum_sq = block->sum_sq;
        part.m2 = block_m2(pass, data, n, scale, block, finite);
    }
    return part;
}

static bool add_block(tp_pass *pass, const void *data, size_t n)
{
    tp_block block;
    const tp_part part = read_block(pass, data, n, &block);
    tp_tree_add(&pass->tree, &part, 0);

    tp_pass_see(pass, &block);
    const double largest = block_abs_max(&block, part.n);
    const bool larger = largest > pass->abs_max;
    pass->abs_max = larger ? largest : pass->abs_max;
    return larger;
}

bool tp_pass_add(tp_pass *pass, const void *data, size_t n)
{
    return pass->bytes != NULL ? tp_bytes_add(pass->bytes, &pass->counts, data, n)
                               : add_block(pass, data, n);
}

/* Bytes that are counted together where they lie side by side: enough to make little of what each
 * such piece costs besides. */
#define LARGE_PIECE (UINT64_C(64) << 20)

size_t tp_pass_piece(const tp_pass *pass, const tp_walk *walk, uint64_t left)
{
    uint64_t most = pass->bytes != NULL ? TP_PASS_BUFFER : TP_BLOCK;
    if (pass->bytes != NULL && pass->per == 1) {
        const uint64_t run = tp_walk_run(walk);
        if (run >= TP_BYTES_PAIRED) {
            most = run < LARGE_PIECE ? run : LARGE_PIECE;
        }
    }
    return left < most ? (size_t)left : (size_t)most;
}

const void *tp_pass_next(const tp_pass *pass, tp_walk *walk, size_t n, tp_pass_space *space,
                         tp_hash *hash)
{
    /* A complex128 is larger than what it is converted to. */
    const size_t most = pass->convert != NULL ? TP_PASS_BUFFER / walk->element : n;
    const void *data = NULL;
    for (size_t done = 0; done < n;) {
        const size_t part = n - done < most ? n - done : most;
        data = tp_walk_next(walk, part, space->gathered);
        if (hash != NULL) {
            tp_hash_add(hash, data, part);
        }
        if (pass->convert != NULL) {
            pass->convert(data, part, space->converted + done);
        }
        done += part;
    }
    return pass->convert != NULL ? space->converted : data;
}

size_t tp_pass_find(const tp_pass *pass, const void *data, size_t n)
{
    if (pass->bytes != NULL) {
        const double most = pass->bytes->magnitude[pass->bytes->falling[pass->counts.best]];
        return tp_bytes_find(pass->bytes, data, n, most);
    }
    return pass->kernel->find(data, n, pass->abs_max);
}

double tp_unscaled(double x, int64_t exp)
{
    return exp == 0 ? x : ldexp(x, (int)exp);
}

/* total: of what the pass has taken. */
static void tell(const tp_pass *pass, tp_part total, uint64_t count, uint64_t weight, tp_stats *out)
{
    const tp_block *seen = &pass->seen;
    const double times = (double)weight;
    const double quiet_nan = (double)NAN;
    *out = (tp_stats){
        .count = count * pass->per * weight,
        .nan = seen->nan * weight,
        .pos_inf = seen->pos_inf * weight,
        .neg_inf = seen->neg_inf * weight,
        .zeros = seen->zeros * weight,
        .subnormal = seen->subnormal * weight,
        .finite_min = total.n > 0 ? seen->min : quiet_nan,
        .finite_max = total.n > 0 ? seen->max : quiet_nan,
        .abs_max = pass->abs_max >= 0.0 ? pass->abs_max : quiet_nan,
        .abs_max_index = TP_NO_INDEX,
        .sum = tp_unscaled(total.sum * times, total.exp),
        .sum_abs = tp_unscaled(total.sum_abs * times, total.exp),
        .sum_sq = total.sum_sq * times,
        .m2 = seen->min == seen->max ? 0.0 : total.m2 * times,
        .sq_exp = total.exp,
    };
    if (count == 0 || seen->nan > 0) {
        out->min = quiet_nan;
        out->max = quiet_nan;
        return;
    }
    /* Here seen->min is +Inf when all elements are infinite, and seen->max is -Inf. */
    out->min = seen->neg_inf > 0 ? -INFINITY : seen->min;
    out->max = seen->pos_inf > 0 ? INFINITY : seen->max;
}

void tp_pass_finish(tp_pass *pass, uint64_t count, uint64_t weight, tp_stats *out)
{
    tp_part total;
    if (pass->bytes != NULL) {
        tp_bytes_derive(pass->bytes, &pass->counts, pass->bounds.eps, &pass->seen, &total,
                        &pass->abs_max);
    } else {
        total = tp_tree_total(&pass->tree);
    }
    tell(pass, total, count, weight, out);
}

/* The smallest float that is not less than eps: |x| < eps says the same with it for every float x.
 * FLT_MAX < eps becomes infinity, which no finite float reaches either. */
static double float_bound(double eps)
{
    const float near = (float)eps;
    if ((double)near >= eps) {
        return (double)near;
    }
    uint32_t bits; /* of a float that is not negative: those of the next one are larger by 1 */
    memcpy(&bits, &near, sizeof(bits));
    bits++;
    float next;
    memcpy(&next, &bits, sizeof(next));
    return (double)next;
}

static tp_bounds bounds_of(uint32_t dtype, double eps)
{
    const bool compares_floats = dtype == TP_F32 || dtype == TP_F16 || dtype == TP_BF16;
    const bool of_floats = compares_floats || dtype == TP_C64;
    return (tp_bounds){
        .eps = compares_floats ? float_bound(eps) : eps,
        .normal = dtype == TP_F16 ? 0x1p-14
                  : of_floats     ? 0x1p-126
                                  : 0x1p-1022,
        .ahead = TP_AHEAD_SMALL,
    };
}

void tp_pass_restart(tp_pass *pass)
{
    pass->seen = (tp_block){.min = INFINITY, .max = -INFINITY};
    pass->abs_max = -1.0;
    pass->tree.blocks = 0;
    if (pass->bytes != NULL) {
        memset(&pass->counts, 0, sizeof(pass->counts));
        pass->counts.best = 256;
    }
}

/* What a kernel's block is read by. */
static void open_kernel(tp_pass *pass, uint32_t dtype, const tp_kernel *kernel, double eps)
{
    pass->kernel = kernel;
    pass->bounds = bounds_of(dtype, eps);
    pass->halves = dtype == TP_F16 || dtype == TP_BF16;
    pass->wide = dtype == TP_F64 || dtype == TP_C128;
    pass->quiet = 0;
    pass->trust = 1;
}

void tp_pass_open(tp_pass *pass, uint32_t dtype, const tp_kernel *kernel, double eps)
{
    pass->dtype = dtype;
    const bool has_kernel = dtype <= TP_BF16;
    pass->bytes = has_kernel ? NULL : tp_byte_type_of(dtype);
    pass->per = pass->bytes != NULL ? pass->bytes->per_byte : 1;
    pass->convert = has_kernel ? NULL : tp_convert_of(dtype);
    open_kernel(pass, dtype, kernel, eps);
    tp_pass_restart(pass);
}

/* A tensor of one block, whatever is in it. */
static __attribute__((noinline)) void read_whole(uint32_t dtype, const tp_kernel *kernel,
                                                 double eps, const void *data, size_t n,
                                                 tp_stats *out)
{
    tp_pass pass;
    pass.per = 1;
    open_kernel(&pass, dtype, kernel, eps);
    const tp_part part = read_block(&pass, data, n, &pass.seen);
    pass.abs_max = block_abs_max(&pass.seen, part.n);
    tell(&pass, part, n, 1, out);
    if (pass.abs_max >= 0.0) {
        out->abs_max_index = kernel->find(data, n, pass.abs_max);
    }
}

void tp_pass_whole(uint32_t dtype, const tp_kernel *kernel, double eps, const void *data, size_t n,
                   tp_stats *out)
{
    tp_bounds bounds = bounds_of(dtype, eps);
    if (n <= TP_AHEAD_SMALL / sizeof(double)) {
        bounds.ahead = 0; /* what follows is none of it */
    }
    if (!kernel->whole(data, n, &bounds, out)) {
        read_whole(dtype, kernel, eps, data, n, out);
    }
}
