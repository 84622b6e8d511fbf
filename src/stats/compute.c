#include <math.h>
#include <stdbool.h>

#include "base/cpu.h"
#include "stats/extras.h"
#include "tensor/walk.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <fenv.h>
#endif

_Static_assert(sizeof(tp_stats) == 136, "tp_stats is stored in journals as is");

/* Bytes for elements that do not lie side by side. They stay in the L1 cache. */
#define BUFFER (TP_BLOCK * sizeof(double))

typedef struct reading_space {
    _Alignas(64) uint8_t gathered[BUFFER];
    double converted[TP_BLOCK];
} reading_space;

static const tp_kernel *kernel_of(int isa, uint32_t dtype)
{
    dtype = dtype > TP_BF16 && tp_dtype_size(dtype) > 0 ? TP_F64 : dtype; /* converted or counted */
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

/* Elements of the traversal that are read at a time. */
static size_t piece_of(const tp_pass *pass, uint64_t left)
{
    const size_t most = pass->bytes != NULL ? BUFFER : TP_BLOCK;
    return left < most ? (size_t)left : most;
}

/* The next n elements as the pass wants them; the hash, if there is one, takes them as they are. */
static const void *next_piece(const tp_pass *pass, tp_walk *walk, size_t n, reading_space *space,
                              tp_hash *hash)
{
    if (pass->convert == NULL) {
        const void *data = tp_walk_next(walk, n, space->gathered);
        if (hash != NULL) {
            tp_hash_add(hash, data, n);
        }
        return data;
    }
    for (size_t done = 0; done < n;) {
        const size_t most = BUFFER / walk->element;
        const size_t part = n - done < most ? n - done : most;
        const void *data = tp_walk_next(walk, part, space->gathered);
        pass->convert(data, part, space->converted + done);
        if (hash != NULL) {
            tp_hash_add(hash, data, part);
        }
        done += part;
    }
    return space->converted;
}

/* from: position of the piece that brought the largest |x|. */
static uint64_t abs_max_index(const tp_pass *pass, tp_walk *walk, const tp_tensor *tensor,
                              uint64_t from, reading_space *space)
{
    tp_walk_seek(walk, from);
    const size_t n = piece_of(pass, walk->left);
    const size_t element = tp_pass_find(pass, next_piece(pass, walk, n, space, NULL), n);
    const size_t per = pass->bytes != NULL ? pass->bytes->per_byte : 1;
    return tp_walk_index(walk, tensor, from + element / per) * per + element % per;
}

/* Not inlined: no arithmetic may move across a change of the environment. */
__attribute__((noinline)) static void read_tensor(const tp_kernel *kernel, const tp_tensor *tensor,
                                                  const tp_stats_options *options, tp_walk *walk,
                                                  tp_stats *out)
{
    reading_space space;
    tp_pass pass;
    tp_pass_open(&pass, tensor->dtype, kernel, options->eps);
    tp_extras extras;
    tp_extras_open(&extras, options, tensor, walk);
    uint64_t abs_max_from = 0;
    while (walk->left > 0) {
        const uint64_t position = walk->count - walk->left;
        const size_t n = piece_of(&pass, walk->left);
        const void *data = next_piece(&pass, walk, n, &space, extras.hashes ? &extras.hash : NULL);
        const bool larger =
            pass.bytes != NULL ? tp_pass_bytes(&pass, data, n) : tp_pass_block(&pass, data, n);
        abs_max_from = larger ? position : abs_max_from;
        if (pass.bytes == NULL) {
            tp_extras_block(&extras, tensor->dtype, &pass, data, n);
        }
    }
    const uint64_t per = pass.bytes != NULL ? pass.bytes->per_byte : 1;
    tp_pass_finish(&pass, walk->count * per, walk->weight, out);
    tp_extras_finish(&extras, &pass, walk->weight);
    if (pass.abs_max >= 0.0) {
        out->abs_max_index = abs_max_index(&pass, walk, tensor, abs_max_from, &space);
    }
}

/* The results must not depend on what the program has set (torch.set_flush_denormal flushes
 * subnormals to 0), so the pass runs in the default floating-point environment. */
static void read_in_default_environment(const tp_kernel *kernel, const tp_tensor *tensor,
                                        const tp_stats_options *options, tp_walk *walk,
                                        tp_stats *out)
{
#if defined(__SSE2__)
    const unsigned int status_flags = 0x3f;
    const unsigned int initial = 0x1f80; /* nothing flushed, round to nearest, all masked */
    const unsigned int found = _mm_getcsr();
    const bool differs = (found & ~status_flags) != initial;
    if (differs) {
        _mm_setcsr(initial);
    }
    read_tensor(kernel, tensor, options, walk, out);
    if (differs) {
        _mm_setcsr(found);
    }
#else
    fenv_t found;
    fegetenv(&found);
    fesetenv(FE_DFL_ENV);
    read_tensor(kernel, tensor, options, walk, out);
    fesetenv(&found);
#endif
}

static bool bins_are_valid(const tp_stats_options *options)
{
    const float low = (float)options->low;
    const float high = (float)options->high;
    return low < high && high - low < INFINITY && options->bin_count >= 1 &&
           options->bin_count <= TP_MAX_BINS;
}

static tp_status compute(const tp_tensor *tensor, const tp_stats_options *options, int isa,
                         tp_stats *out, const char **name)
{
    if (tensor == NULL || options == NULL || out == NULL || !(options->eps >= 0.0) ||
        (options->bins != NULL && !bins_are_valid(options))) {
        return TP_ERR_ARGUMENT;
    }
    const tp_kernel *kernel = kernel_of(isa, tensor->dtype);
    if (kernel == NULL) {
        return TP_ERR_UNSUPPORTED;
    }
    tp_walk walk;
    const tp_status status = tp_walk_open(&walk, tensor);
    if (status == TP_OK) {
        read_in_default_environment(kernel, tensor, options, &walk, out);
        const tp_byte_type *bytes = name != NULL ? tp_byte_type_of(tensor->dtype) : NULL;
        if (name != NULL) {
            *name = bytes != NULL ? bytes->name : kernel->name;
        }
    }
    return status;
}

tp_status tp_stats_compute_isa(const tp_tensor *tensor, const tp_stats_options *options, int isa,
                               tp_stats *out, const char **kernel)
{
    return isa <= tp_cpu_isa_supported() ? compute(tensor, options, isa, out, kernel)
                                         : TP_ERR_UNSUPPORTED;
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

void tp_stats_options_defaults(tp_stats_options *options)
{
    *options = (tp_stats_options){.eps = 1e-8, .bin_count = 30, .low = -1.0, .high = 1.0};
}

tp_status tp_stats_compute(const tp_tensor *tensor, double eps, tp_stats *out)
{
    const tp_stats_options options = {.eps = eps};
    return compute(tensor, &options, isa_in_use(), out, NULL);
}

tp_status tp_stats_compute_with(const tp_tensor *tensor, const tp_stats_options *options,
                                tp_stats *out)
{
    return compute(tensor, options, isa_in_use(), out, NULL);
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
