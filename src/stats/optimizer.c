#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/cpu.h"
#include "stats/environment.h"
#include "stats/extras.h"
#include "stats/loops.h"
#include "tensor/walk.h"

/* Elements that become f64 by way of f32. */
#define PIECE 512

const tp_loops *tp_loops_with(int isa)
{
    switch (isa) {
    case TP_ISA_SCALAR:
        return tp_loops_scalar();
    case TP_ISA_AVX2:
        return tp_loops_avx2();
    case TP_ISA_AVX512:
        return tp_loops_avx512();
    case TP_ISA_NEON:
        return tp_loops_neon();
    default:
        return NULL;
    }
}

/* One of two tensors that are read together. */
typedef struct operand {
    tp_walk walk;
    uint32_t dtype;
    uint32_t as; /* TP_F32 or TP_F64: the type in which both are calculated with */
    _Alignas(64) uint8_t gathered[TP_BLOCK * sizeof(double)];
    _Alignas(64) uint8_t widened[TP_BLOCK * sizeof(double)];
} operand;

static bool is_half(uint32_t dtype)
{
    return dtype == TP_F16 || dtype == TP_BF16;
}

static void widen_halves(const tp_loops *loops, uint32_t dtype, const void *from, size_t n,
                         float *to)
{
    (dtype == TP_F16 ? loops->widen_f16 : loops->widen_bf16)(from, n, to);
}

/* The next n <= TP_BLOCK elements, aligned, in the type of the calculation. */
static const void *next(operand *from, const tp_loops *loops, size_t n)
{
    const uint8_t *data = tp_walk_next(&from->walk, n, from->gathered);
    if ((uintptr_t)data % from->walk.element != 0) {
        data = memcpy(from->gathered, data, n * from->walk.element);
    }
    if (from->dtype == from->as) {
        return data;
    }
    if (from->as == TP_F32) {
        widen_halves(loops, from->dtype, data, n, (float *)(void *)from->widened);
        return from->widened;
    }
    double *to = (double *)(void *)from->widened;
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t part = n - i < PIECE ? n - i : PIECE;
        const uint8_t *at = data + i * from->walk.element;
        float floats[PIECE];
        if (is_half(from->dtype)) {
            widen_halves(loops, from->dtype, at, part, floats);
        } else {
            memcpy(floats, at, part * sizeof(*floats));
        }
        loops->widen_f32(floats, part, to + i);
    }
    return from->widened;
}

static tp_status open_operands(operand pair[2], const tp_tensor *a, const tp_tensor *b)
{
    const tp_tensor *tensors[] = {a, b};
    uint32_t as = TP_F32;
    for (int k = 0; k < 2; k++) {
        const uint32_t dtype = tensors[k]->dtype;
        if (dtype != TP_F64 && dtype != TP_F32 && !is_half(dtype)) {
            return TP_ERR_UNSUPPORTED;
        }
        pair[k].dtype = dtype;
        as = dtype == TP_F64 ? TP_F64 : as;
    }
    pair[0].as = as;
    pair[1].as = as;
    return tp_walk_open_pair(&pair[0].walk, a, &pair[1].walk, b);
}

/* update and ratio, in this order wherever there are two. */
typedef struct adam_job {
    const tp_loops *loops;
    const tp_kernel *stats_kernel;
    const tp_tensor *exp_avg;
    const tp_adam_options *options;
    tp_adam_terms terms;
    operand moments[2];
    _Alignas(64) uint8_t block[2][TP_BLOCK * sizeof(double)];
    tp_pass pass[2];
    tp_extras extras[2];
    tp_stats *out[2];
} adam_job;

static void calculate(adam_job *job, size_t n)
{
    const void *exp_avg = next(&job->moments[0], job->loops, n);
    const void *exp_avg_sq = next(&job->moments[1], job->loops, n);
    void *update = job->block[0];
    void *ratio = job->block[1];
    if (job->moments[0].as == TP_F64) {
        job->loops->adam_f64(exp_avg, exp_avg_sq, n, &job->terms, update, ratio);
    } else {
        job->loops->adam_f32(exp_avg, exp_avg_sq, n, &job->terms, update, ratio);
    }
}

/* Of the largest |x|, which the block that begins at this position has brought. */
static uint64_t abs_max_index(adam_job *job, int which, uint64_t from)
{
    tp_walk *walk = &job->moments[0].walk;
    tp_walk_seek(walk, from);
    tp_walk_seek(&job->moments[1].walk, from);
    const size_t n = tp_pass_piece(&job->pass[which], walk, walk->left);
    calculate(job, n);
    const size_t element = tp_pass_find(&job->pass[which], job->block[which], n);
    return tp_walk_index(walk, job->exp_avg, from + element);
}

static double rounded(double x, uint32_t dtype)
{
    return dtype == TP_F32 ? (double)(float)x : x;
}

static tp_adam_terms terms_of(const tp_adam_options *options, uint32_t dtype)
{
    const bool corrected = options->step > 0.0;
    return (tp_adam_terms){
        .correction1 = corrected ? rounded(1.0 - pow(options->beta1, options->step), dtype) : 1.0,
        .correction2 = corrected ? rounded(1.0 - pow(options->beta2, options->step), dtype) : 1.0,
        .eps = rounded(options->eps, dtype),
    };
}

static void read_moments(void *context)
{
    adam_job *job = context;
    tp_walk *walk = &job->moments[0].walk;
    const uint32_t dtype = job->moments[0].as;
    const tp_stats_options *const wanted[] = {&job->options->update, &job->options->ratio};
    uint64_t abs_max_from[2] = {0, 0};
    job->terms = terms_of(job->options, dtype);
    for (int k = 0; k < 2; k++) {
        tp_pass_open(&job->pass[k], dtype, job->stats_kernel, wanted[k]->eps);
        tp_extras_open(&job->extras[k], wanted[k], job->loops, job->exp_avg, walk);
    }
    while (walk->left > 0) {
        const uint64_t position = walk->count - walk->left;
        const size_t n = tp_pass_piece(&job->pass[0], walk, walk->left);
        calculate(job, n);
        for (int k = 0; k < 2; k++) {
            if (tp_pass_add(&job->pass[k], job->block[k], n)) {
                abs_max_from[k] = position;
            }
            tp_extras_block(&job->extras[k], &job->pass[k], job->block[k], n);
        }
    }
    for (int k = 0; k < 2; k++) {
        tp_pass_finish(&job->pass[k], walk->count, walk->weight, job->out[k]);
        tp_extras_finish(&job->extras[k], &job->pass[k], walk->weight);
        if (job->pass[k].abs_max >= 0.0) {
            job->out[k]->abs_max_index = abs_max_index(job, k, abs_max_from[k]);
        }
    }
}

static bool is_beta(double beta)
{
    return beta >= 0.0 && beta < 1.0;
}

static bool adam_options_are_valid(const tp_adam_options *options)
{
    return is_beta(options->beta1) && is_beta(options->beta2) && options->eps >= 0.0 &&
           (options->step == 0.0 || (options->step >= 1.0 && options->step < INFINITY)) &&
           options->update.hash == NULL && options->ratio.hash == NULL &&
           tp_extras_are_valid(&options->update) && tp_extras_are_valid(&options->ratio);
}

tp_status tp_adam_compute_isa(const tp_tensor *exp_avg, const tp_tensor *exp_avg_sq,
                              const tp_adam_options *options, int isa, tp_stats *update,
                              tp_stats *ratio)
{
    if (exp_avg == NULL || exp_avg_sq == NULL || options == NULL || update == NULL ||
        ratio == NULL || !adam_options_are_valid(options)) {
        return TP_ERR_ARGUMENT;
    }
    adam_job job;
    job.loops = isa <= tp_cpu_isa_supported() ? tp_loops_with(isa) : NULL;
    if (job.loops == NULL) {
        return TP_ERR_UNSUPPORTED;
    }
    const tp_status status = open_operands(job.moments, exp_avg, exp_avg_sq);
    if (status != TP_OK) {
        return status;
    }
    job.stats_kernel = tp_kernel_with(isa, job.moments[0].as);
    job.exp_avg = exp_avg;
    job.options = options;
    job.out[0] = update;
    job.out[1] = ratio;
    tp_in_default_environment(read_moments, &job);
    return TP_OK;
}

void tp_adam_options_defaults(tp_adam_options *options)
{
    *options = (tp_adam_options){.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    tp_stats_options_defaults(&options->update);
    tp_stats_options_defaults(&options->ratio);
}

tp_status tp_adam_compute(const tp_tensor *exp_avg, const tp_tensor *exp_avg_sq,
                          const tp_adam_options *options, tp_stats *update, tp_stats *ratio)
{
    return tp_adam_compute_isa(exp_avg, exp_avg_sq, options, tp_stats_isa_in_use(), update, ratio);
}

typedef struct agreement_job {
    const tp_loops *loops;
    operand pair[2];
    tp_agreement *out;
} agreement_job;

static void read_signs(void *context)
{
    agreement_job *job = context;
    tp_walk *walk = &job->pair[0].walk;
    tp_agreement found = {.count = walk->count};
    while (walk->left > 0) {
        const size_t n = walk->left < TP_BLOCK ? (size_t)walk->left : TP_BLOCK;
        const void *gradient = next(&job->pair[0], job->loops, n);
        const void *momentum = next(&job->pair[1], job->loops, n);
        if (job->pair[0].as == TP_F64) {
            job->loops->agree_f64(gradient, momentum, n, &found);
        } else {
            job->loops->agree_f32(gradient, momentum, n, &found);
        }
    }
    const uint64_t weight = walk->weight;
    found.zero = found.count - found.same - found.opposite - found.nan;
    *job->out = (tp_agreement){found.count * weight, found.same * weight, found.opposite * weight,
                               found.zero * weight, found.nan * weight};
}

tp_status tp_agreement_compute_isa(const tp_tensor *gradient, const tp_tensor *momentum, int isa,
                                   tp_agreement *out)
{
    if (gradient == NULL || momentum == NULL || out == NULL) {
        return TP_ERR_ARGUMENT;
    }
    agreement_job job;
    job.loops = isa <= tp_cpu_isa_supported() ? tp_loops_with(isa) : NULL;
    if (job.loops == NULL) {
        return TP_ERR_UNSUPPORTED;
    }
    job.out = out;
    const tp_status status = open_operands(job.pair, gradient, momentum);
    if (status == TP_OK) {
        tp_in_default_environment(read_signs, &job);
    }
    return status;
}

tp_status tp_agreement_compute(const tp_tensor *gradient, const tp_tensor *momentum,
                               tp_agreement *out)
{
    return tp_agreement_compute_isa(gradient, momentum, tp_stats_isa_in_use(), out);
}

double tp_agreement_direction(const tp_agreement *agreement)
{
    if (agreement->nan > 0) {
        return (double)NAN;
    }
    if (agreement->count == 0) {
        return 1.0;
    }
    const double balance = (double)agreement->same - (double)agreement->opposite;
    return (balance / (double)agreement->count + 1.0) / 2.0;
}
