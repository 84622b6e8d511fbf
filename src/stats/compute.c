#include <math.h>
#include <stdbool.h>

#include "base/cpu.h"
#include "stats/kernels.h"
#include "stats/merge.h"
#include "tensor/walk.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <fenv.h>
#endif

_Static_assert(sizeof(tp_stats) == 136, "tp_stats is stored in journals as is");

/* Squares of magnitudes between these add up in f64 without leaving its range, whatever their
 * number; an f64 block whose largest magnitude lies outside is scaled by 2^600 or 2^-600. */
#define LARGEST_UNSCALED 0x1p450
#define SMALLEST_UNSCALED 0x1p-450
#define SCALE_EXP 600

/* Below this share of Σx², Σx² - (Σx)²/n has lost too many digits to be M2. */
#define WELL_CONDITIONED (1.0 / 1024.0)

/* Everything that is collected from block to block. */
typedef struct tp_pass {
    const tp_kernel *kernel;
    tp_bounds bounds;
    tp_block seen;         /* counts, min and max so far; its sums are not used */
    double abs_max;        /* -1 while there is none */
    uint64_t abs_max_from; /* start of the first block that holds it, a position of the traversal */
    tp_tree tree;
} tp_pass;

/* M2 of one block, divided by 4^exp; the block is still in the L1 cache. */
static double block_m2(const tp_kernel *kernel, const void *data, size_t n, double scale,
                       const tp_block *block, uint64_t finite)
{
    const double count = (double)finite;
    if (block->min == block->max) {
        return 0.0;
    }
    const double m2 = block->sum_sq - block->sum * block->sum / count;
    if (m2 >= block->sum_sq * WELL_CONDITIONED) {
        return m2;
    }
    double moments[2];
    kernel->spread(data, n, scale, block->sum / count, moments);
    const double corrected = moments[1] - moments[0] * moments[0] / count;
    return corrected > 0.0 ? corrected : 0.0;
}

static double finite_abs_max(const tp_block *block)
{
    return -block->min > block->max ? -block->min : block->max;
}

static double block_abs_max(const tp_block *block, uint64_t finite)
{
    if (block->pos_inf + block->neg_inf > 0) {
        return INFINITY;
    }
    return finite > 0 ? finite_abs_max(block) : -1.0;
}

static void add_block(tp_pass *pass, const void *data, size_t n, uint64_t position, bool wide)
{
    const tp_kernel *kernel = pass->kernel;
    tp_block block;
    kernel->clean(data, n, &pass->bounds, &block);
    if (!(block.sum_sq < INFINITY)) {
        kernel->masked(data, n, &pass->bounds, 1.0, &block);
    }
    const uint64_t finite = n - block.nan - block.pos_inf - block.neg_inf;
    double scale = 1.0;
    int64_t exp = 0;
    if (wide && finite > 0) {
        const double largest = finite_abs_max(&block);
        if (largest > LARGEST_UNSCALED) {
            scale = 0x1p-600;
            exp = SCALE_EXP;
        } else if (largest < SMALLEST_UNSCALED && largest > 0.0) {
            scale = 0x1p600;
            exp = -SCALE_EXP;
        }
        if (exp != 0) {
            kernel->masked(data, n, &pass->bounds, scale, &block);
        }
    }

    tp_part part = {.n = finite, .exp = exp};
    if (finite > 0) {
        part.sum = block.sum;
        part.sum_abs = block.sum_abs;
        part.sum_sq = block.sum_sq;
        part.m2 = block_m2(kernel, data, n, scale, &block, finite);
    }
    tp_tree_add(&pass->tree, &part);

    tp_block *seen = &pass->seen;
    seen->nan += block.nan;
    seen->pos_inf += block.pos_inf;
    seen->neg_inf += block.neg_inf;
    seen->zeros += block.zeros;
    seen->subnormal += block.subnormal;
    seen->min = block.min < seen->min ? block.min : seen->min;
    seen->max = block.max > seen->max ? block.max : seen->max;
    const double largest = block_abs_max(&block, finite);
    if (largest > pass->abs_max) {
        pass->abs_max = largest;
        pass->abs_max_from = position;
    }
}

static uint64_t abs_max_index(const tp_pass *pass, tp_walk *walk, const tp_tensor *tensor,
                              void *buffer)
{
    tp_walk_seek(walk, pass->abs_max_from);
    const size_t n = walk->left < TP_BLOCK ? walk->left : TP_BLOCK;
    const void *data = tp_walk_next(walk, n, buffer);
    const size_t i = pass->kernel->find(data, n, pass->abs_max);
    return tp_walk_index(walk, tensor, pass->abs_max_from + i);
}

static double unscaled(double x, int64_t exp)
{
    return exp == 0 ? x : ldexp(x, (int)exp);
}

static void finish(const tp_pass *pass, uint64_t count, uint64_t weight, tp_stats *out)
{
    const tp_block *seen = &pass->seen;
    const tp_part total = tp_tree_total(&pass->tree);
    const double times = (double)weight;
    const double quiet_nan = (double)NAN;
    *out = (tp_stats){
        .count = count * weight,
        .nan = seen->nan * weight,
        .pos_inf = seen->pos_inf * weight,
        .neg_inf = seen->neg_inf * weight,
        .zeros = seen->zeros * weight,
        .subnormal = seen->subnormal * weight,
        .finite_min = total.n > 0 ? seen->min : quiet_nan,
        .finite_max = total.n > 0 ? seen->max : quiet_nan,
        .abs_max = pass->abs_max >= 0.0 ? pass->abs_max : quiet_nan,
        .abs_max_index = TP_NO_INDEX,
        .sum = unscaled(total.sum * times, total.exp),
        .sum_abs = unscaled(total.sum_abs * times, total.exp),
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

/* The smallest float that is not less than eps: |x| < eps says the same with it for every float x.
 * FLT_MAX < eps becomes infinity, which no finite float reaches either. */
static double float_bound(double eps)
{
    const float near = (float)eps;
    return (double)near < eps ? (double)nextafterf(near, INFINITY) : (double)near;
}

static tp_bounds bounds_of(uint32_t dtype, double eps)
{
    return (tp_bounds){
        .eps = dtype == TP_F64 ? eps : float_bound(eps),
        .normal = dtype == TP_F64   ? 0x1p-1022
                  : dtype == TP_F16 ? 0x1p-14
                                    : 0x1p-126,
    };
}

static const tp_kernel *kernel_of(int isa, uint32_t dtype)
{
    switch (isa) {
    case TP_ISA_SCALAR:
        return tp_kernel_scalar(dtype);
    case TP_ISA_AVX2:
        return tp_kernel_avx2(dtype);
    case TP_ISA_AVX512:
        return tp_kernel_avx512(dtype);
    default:
        return NULL;
    }
}
/* Not inlined: no arithmetic may move across a change of the environment. */
__attribute__((noinline)) static void read_tensor(const tp_kernel *kernel, const tp_tensor *tensor,
                                                  double eps, tp_walk *walk, tp_stats *out)
{
    /* For elements that do not lie side by side. It stays in the L1 cache. */
    _Alignas(64) uint8_t buffer[TP_BLOCK * sizeof(double)];
    tp_pass pass;
    pass.kernel = kernel;
    pass.bounds = bounds_of(tensor->dtype, eps);
    pass.seen = (tp_block){.min = INFINITY, .max = -INFINITY};
    pass.abs_max = -1.0;
    pass.abs_max_from = 0;
    pass.tree.blocks = 0;
    while (walk->left > 0) {
        const uint64_t position = walk->count - walk->left;
        const size_t n = walk->left < TP_BLOCK ? walk->left : TP_BLOCK;
        const void *data = tp_walk_next(walk, n, buffer);
        add_block(&pass, data, n, position, tensor->dtype == TP_F64);
    }
    finish(&pass, walk->count, walk->weight, out);
    if (pass.abs_max >= 0.0) {
        out->abs_max_index = abs_max_index(&pass, walk, tensor, buffer);
    }
}

/* The results must not depend on what the program has set (torch.set_flush_denormal flushes
 * subnormals to 0), so the pass runs in the default floating-point environment. */
static void read_in_default_environment(const tp_kernel *kernel, const tp_tensor *tensor,
                                        double eps, tp_walk *walk, tp_stats *out)
{
#if defined(__SSE2__)
    const unsigned int status_flags = 0x3f;
    const unsigned int initial = 0x1f80; /* nothing flushed, round to nearest, all masked */
    const unsigned int found = _mm_getcsr();
    const bool differs = (found & ~status_flags) != initial;
    if (differs) {
        _mm_setcsr(initial);
    }
    read_tensor(kernel, tensor, eps, walk, out);
    if (differs) {
        _mm_setcsr(found);
    }
#else
    fenv_t found;
    fegetenv(&found);
    fesetenv(FE_DFL_ENV);
    read_tensor(kernel, tensor, eps, walk, out);
    fesetenv(&found);
#endif
}

static tp_status compute(const tp_tensor *tensor, double eps, const tp_kernel *kernel,
                         tp_stats *out)
{
    if (kernel == NULL) {
        return TP_ERR_UNSUPPORTED;
    }
    tp_walk walk;
    const tp_status status = tp_walk_open(&walk, tensor);
    if (status == TP_OK) {
        read_in_default_environment(kernel, tensor, eps, &walk, out);
    }
    return status;
}

tp_status tp_stats_compute_isa(const tp_tensor *tensor, double eps, int isa, tp_stats *out,
                               const char **kernel)
{
    if (tensor == NULL || out == NULL || !(eps >= 0.0)) {
        return TP_ERR_ARGUMENT;
    }
    const tp_kernel *chosen = isa <= tp_cpu_isa_supported() ? kernel_of(isa, tensor->dtype) : NULL;
    const tp_status status = compute(tensor, eps, chosen, out);
    if (status == TP_OK && kernel != NULL) {
        *kernel = chosen->name;
    }
    return status;
}

/* The best that both this build and tp_cpu_isa allow. */
static int isa_in_use(void)
{
    int isa = tp_cpu_isa();
    while (isa > TP_ISA_SCALAR && kernel_of(isa, TP_F32) == NULL) {
        isa--;
    }
    return isa;
}

const char *tp_stats_isa(void)
{
    return tp_cpu_isa_name(isa_in_use());
}

tp_status tp_stats_compute(const tp_tensor *tensor, double eps, tp_stats *out)
{
    if (tensor == NULL || out == NULL || !(eps >= 0.0)) {
        return TP_ERR_ARGUMENT;
    }
    return compute(tensor, eps, kernel_of(isa_in_use(), tensor->dtype), out);
}

double tp_stats_norm(const tp_stats *stats)
{
    if (stats->nan > 0) {
        return (double)NAN;
    }
    if (stats->pos_inf + stats->neg_inf > 0) {
        return INFINITY;
    }
    return unscaled(sqrt(stats->sum_sq), stats->sq_exp);
}

double tp_stats_mean(const tp_stats *stats)
{
    if (stats->nan > 0 || stats->count == 0 || (stats->pos_inf > 0 && stats->neg_inf > 0)) {
        return (double)NAN;
    }
    if (stats->pos_inf > 0) {
        return INFINITY;
    }
    if (stats->neg_inf > 0) {
        return -INFINITY;
    }
    return stats->sum / (double)stats->count;
}

double tp_stats_std(const tp_stats *stats)
{
    const uint64_t finite = stats->count - stats->nan - stats->pos_inf - stats->neg_inf;
    if (finite == 0) {
        return (double)NAN;
    }
    return unscaled(sqrt(stats->m2 / (double)finite), stats->sq_exp);
}
