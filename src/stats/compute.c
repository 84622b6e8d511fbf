#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/cpu.h"
#include "stats/environment.h"
#include "stats/extras.h"
#include "stats/split.h"
#include "tensor/walk.h"

_Static_assert(sizeof(tp_stats) == 136, "tp_stats is stored in journals as is");

const tp_kernel *tp_kernel_with(int isa, uint32_t dtype)
{
    dtype = dtype > TP_BF16 && tp_dtype_size(dtype) > 0 ? TP_F64 : dtype; /* converted or counted */
    switch (isa) {
    case TP_ISA_SCALAR:
        return tp_kernel_scalar(dtype);
    case TP_ISA_AVX2:
        return tp_kernel_avx2(dtype);
    case TP_ISA_AVX512:
        return tp_kernel_avx512(dtype);
    case TP_ISA_NEON:
        return tp_kernel_neon(dtype);
    default:
        return NULL;
    }
}

/* from: position of the piece that brought the largest |x|. */
static uint64_t abs_max_index(const tp_pass *pass, tp_walk *walk, const tp_tensor *tensor,
                              uint64_t from, tp_pass_space *space)
{
    tp_walk_seek(walk, from);
    const size_t n = tp_pass_piece(pass, walk, walk->left);
    const size_t element = tp_pass_find(pass, tp_pass_next(pass, walk, n, space, NULL), n);
    return tp_walk_index(walk, tensor, from + element / pass->per) * pass->per +
           element % pass->per;
}

static atomic_uint threads_in_use = 1;

void tp_stats_set_threads(uint32_t threads)
{
    atomic_store_explicit(&threads_in_use, threads > 0 ? threads : 1, memory_order_relaxed);
}

unsigned tp_stats_threads(const tp_stats_options *options)
{
    return options->threads > 0 ? options->threads
                                : atomic_load_explicit(&threads_in_use, memory_order_relaxed);
}

typedef struct reading {
    const tp_kernel *kernel;
    const tp_loops *loops;
    const tp_tensor *tensor;
    const tp_stats_options *options;
    tp_walk walk;
    tp_stats *out;
} reading;

static void read_tensor(void *context)
{
    reading *job = context;
    tp_walk *walk = &job->walk;
    const tp_tensor *tensor = job->tensor;
    tp_pass_space space;
    tp_pass pass;
    tp_pass_open(&pass, tensor->dtype, job->kernel, job->options->eps);
    if (walk->count * walk->element >= TP_AHEAD_LARGE_FROM) {
        pass.bounds.ahead = TP_AHEAD_LARGE;
    }
    tp_extras extras;
    tp_extras_open(&extras, job->options, job->loops, tensor, walk);
    const unsigned threads = tp_stats_threads(job->options);
    const uint64_t abs_max_from = threads > 1 && tp_split_is_worth(&pass, walk, job->options)
                                      ? tp_split_read(threads, &extras, &pass, walk)
                                      : tp_extras_read(&extras, &pass, walk, walk->left, &space, 0);
    tp_pass_finish(&pass, walk->count, walk->weight, job->out);
    tp_extras_finish(&extras, &pass, walk->weight);
    if (pass.abs_max >= 0.0) {
        job->out->abs_max_index = abs_max_index(&pass, walk, tensor, abs_max_from, &space);
    }
}

/* What a small tensor needs: most tensors of a model are small, and of the time that they take,
 * reading them is the lesser part. */
typedef struct small_reading {
    const tp_kernel *kernel;
    const void *data;
    uint32_t dtype;
    size_t count;
    double eps;
    tp_stats *out;
} small_reading;

static void read_small(void *context)
{
    const small_reading *job = context;
    tp_pass_whole(job->dtype, job->kernel, job->eps, job->data, job->count, job->out);
}

static void compute_small(const tp_kernel *kernel, const void *data, uint32_t dtype, size_t count,
                          double eps, tp_stats *out)
{
    if (tp_environment_is_default()) {
        tp_pass_whole(dtype, kernel, eps, data, count, out);
        return;
    }
    small_reading job = {kernel, data, dtype, count, eps, out};
    tp_in_default_environment(read_small, &job);
}

static tp_status read_any(const tp_tensor *tensor, const tp_stats_options *options,
                          const tp_kernel *kernel, int isa, tp_stats *out)
{
    reading job;
    const tp_status status = tp_walk_open(&job.walk, tensor);
    if (status == TP_OK) {
        job.kernel = kernel;
        job.loops = tp_loops_with(isa);
        job.tensor = tensor;
        job.options = options;
        job.out = out;
        tp_in_default_environment(read_tensor, &job);
    }
    return status;
}

/* With the kernel's name, unless `name` is NULL. */
static tp_status compute(const tp_tensor *tensor, const tp_stats_options *options, int isa,
                         tp_stats *out, const char **name)
{
    if (tensor == NULL || options == NULL || out == NULL || !tp_extras_are_valid(options)) {
        return TP_ERR_ARGUMENT;
    }
    const uint32_t dtype = tensor->dtype;
    const tp_kernel *kernel = tp_kernel_with(isa, dtype);
    if (kernel == NULL) {
        return TP_ERR_UNSUPPORTED;
    }
    if (name != NULL) {
        const tp_byte_type *bytes = tp_byte_type_of(dtype);
        *name = bytes != NULL ? bytes->name : kernel->name;
    }
    const bool plain = dtype <= TP_BF16 && options->bins == NULL && options->exponents == NULL &&
                       options->hash == NULL;
    const size_t count = plain ? tp_walk_plain(tensor, TP_BLOCK) : 0;
    if (count == 0) {
        return read_any(tensor, options, kernel, isa, out);
    }
    compute_small(kernel, tensor->data, dtype, count, options->eps, out);
    return TP_OK;
}

tp_status tp_stats_compute_isa(const tp_tensor *tensor, const tp_stats_options *options, int isa,
                               tp_stats *out, const char **kernel)
{
    return isa <= tp_cpu_isa_supported() ? compute(tensor, options, isa, out, kernel)
                                         : TP_ERR_UNSUPPORTED;
}

int tp_stats_isa_in_use(void)
{
    static atomic_int found = -1;
    int isa = atomic_load_explicit(&found, memory_order_relaxed);
    if (isa < 0) {
        isa = tp_cpu_isa();
        while (isa > TP_ISA_SCALAR && tp_kernel_with(isa, TP_F32) == NULL) {
            isa--;
        }
        atomic_store_explicit(&found, isa, memory_order_relaxed);
    }
    return isa;
}

const char *tp_stats_isa(void)
{
    return tp_cpu_isa_name(tp_stats_isa_in_use());
}

const tp_kernel *tp_kernel_of(uint32_t dtype)
{
    return tp_kernel_with(tp_stats_isa_in_use(), dtype);
}

void tp_stats_small(const void *data, uint32_t dtype, size_t count, double eps, tp_stats *out)
{
    static _Atomic(const tp_kernel *) found[TP_BF16 + 1];
    const tp_kernel *kernel = atomic_load_explicit(&found[dtype], memory_order_relaxed);
    if (kernel == NULL) {
        kernel = tp_kernel_of(dtype);
        atomic_store_explicit(&found[dtype], kernel, memory_order_relaxed);
    }
    compute_small(kernel, data, dtype, count, eps, out);
}

void tp_stats_options_defaults(tp_stats_options *options)
{
    *options = (tp_stats_options){.eps = 1e-8, .bin_count = 30, .low = -1.0, .high = 1.0};
}

tp_status tp_stats_compute(const tp_tensor *tensor, double eps, tp_stats *out)
{
    const tp_stats_options options = {.eps = eps};
    return compute(tensor, &options, tp_stats_isa_in_use(), out, NULL);
}

tp_status tp_stats_compute_with(const tp_tensor *tensor, const tp_stats_options *options,
                                tp_stats *out)
{
    return compute(tensor, options, tp_stats_isa_in_use(), out, NULL);
}

double tp_stats_norm(const tp_stats *stats)
{
    if (stats->nan > 0) {
        return (double)NAN;
    }
    if (stats->pos_inf + stats->neg_inf > 0) {
        return INFINITY;
    }
    return tp_unscaled(sqrt(stats->sum_sq), stats->sq_exp);
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
    return tp_unscaled(sqrt(stats->m2 / (double)finite), stats->sq_exp);
}
