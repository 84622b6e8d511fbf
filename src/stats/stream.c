#include <string.h>

#include "base/mem.h"
#include "stats/environment.h"
#include "stats/extras.h"
#include "stats/loops.h"

struct tp_stats_stream {
    tp_pass pass;
    tp_extras extras;
    tp_stats_options wanted; /* the caller's outputs, written when the result is asked for */
    tp_stats_options kept;   /* where they grow meanwhile */
    tp_exponents exponents;
    uint32_t dtype;
    uint32_t element;  /* bytes of an element as the pass takes it */
    uint64_t position; /* first of the open block; of the next byte where bytes are counted */
    uint64_t abs_max_index;
    size_t filled; /* elements in the open block */
    uint8_t open[TP_PASS_BUFFER];
};

static void keep_extras(tp_stats_stream *stream)
{
    stream->kept.exponents = stream->wanted.exponents != NULL ? &stream->exponents : NULL;
    stream->extras.options = &stream->kept;
    stream->extras.loops = tp_loops_with(tp_stats_isa_in_use());
    stream->extras.hashes = stream->wanted.hash != NULL;
    if (stream->extras.hashes) {
        tp_hash_open_sequence(&stream->extras.hash, tp_dtype_size(stream->dtype));
    }
}

tp_status tp_stats_stream_open_with(tp_stats_stream **stream, uint32_t dtype,
                                    const tp_stats_options *options)
{
    if (stream == NULL) {
        return TP_ERR_ARGUMENT;
    }
    *stream = NULL;
    if (options == NULL || !tp_extras_are_valid(options)) {
        return TP_ERR_ARGUMENT;
    }
    const tp_kernel *kernel = tp_kernel_of(dtype);
    if (kernel == NULL) {
        return TP_ERR_UNSUPPORTED;
    }
    tp_stats_stream *made = tp_calloc(1, sizeof(*made));
    if (made == NULL) {
        return TP_ERR_NOMEM;
    }
    made->wanted = *options;
    made->kept = *options;
    if (options->bins != NULL) {
        made->kept.bins = tp_calloc(options->bin_count, sizeof(*options->bins));
        if (made->kept.bins == NULL) {
            tp_free(made);
            return TP_ERR_NOMEM;
        }
    }
    tp_pass_open(&made->pass, dtype, kernel, options->eps);
    made->dtype = dtype;
    made->element = made->pass.convert != NULL ? sizeof(double) : tp_dtype_size(dtype);
    made->abs_max_index = TP_NO_INDEX;
    keep_extras(made);
    *stream = made;
    return TP_OK;
}

tp_status tp_stats_stream_open(tp_stats_stream **stream, uint32_t dtype, double eps)
{
    const tp_stats_options options = {.eps = eps};
    return tp_stats_stream_open_with(stream, dtype, &options);
}

/* A whole block, or bytes. */
static void take(tp_stats_stream *stream, const void *data, size_t n)
{
    if (tp_pass_add(&stream->pass, data, n)) {
        stream->abs_max_index =
            stream->position * stream->pass.per + tp_pass_find(&stream->pass, data, n);
    }
    stream->position += n;
}

/* The next n elements of a piece, as the pass takes them. */
static const void *next(tp_stats_stream *stream, tp_walk *walk, size_t n, tp_pass_space *space)
{
    tp_extras *extras = &stream->extras;
    const void *data =
        tp_pass_next(&stream->pass, walk, n, space, extras->hashes ? &extras->hash : NULL);
    if (stream->pass.bytes == NULL) {
        tp_extras_block(extras, &stream->pass, data, n);
    }
    return data;
}

static void take_walk(tp_stats_stream *stream, tp_walk *walk)
{
    tp_pass_space space;
    while (walk->left > 0) {
        const size_t n = tp_pass_piece(&stream->pass, walk, walk->left);
        if (stream->pass.bytes != NULL || (stream->filled == 0 && n == TP_BLOCK)) {
            take(stream, next(stream, walk, n, &space), n);
            continue;
        }
        const size_t room = TP_BLOCK - stream->filled;
        const size_t part = n < room ? n : room;
        memcpy(stream->open + stream->filled * stream->element, next(stream, walk, part, &space),
               part * stream->element);
        stream->filled += part;
        if (stream->filled == TP_BLOCK) {
            stream->filled = 0;
            take(stream, stream->open, TP_BLOCK);
        }
    }
}

typedef struct adding {
    tp_stats_stream *stream;
    tp_walk walk;
} adding;

static void add(void *context)
{
    adding *job = context;
    for (uint64_t copy = 0; copy < job->walk.weight && job->walk.count > 0; copy++) {
        tp_walk_seek(&job->walk, 0);
        take_walk(job->stream, &job->walk);
    }
}

tp_status tp_stats_stream_add(tp_stats_stream *stream, const tp_tensor *piece)
{
    if (stream == NULL || piece == NULL || piece->dtype != stream->dtype) {
        return TP_ERR_ARGUMENT;
    }
    adding job = {.stream = stream};
    const tp_status status = tp_walk_open(&job.walk, piece);
    if (status == TP_OK) {
        tp_in_default_environment(add, &job);
    }
    return status;
}

typedef struct ending {
    const tp_stats_stream *stream;
    tp_stats *out;
} ending;

/* The open block ends in a copy of the pass, as more may follow. */
static void finish(void *context)
{
    const ending *job = context;
    const tp_stats_stream *stream = job->stream;
    tp_pass pass = stream->pass;
    uint64_t index = stream->abs_max_index;
    if (stream->filled > 0 && tp_pass_add(&pass, stream->open, stream->filled)) {
        index = stream->position + tp_pass_find(&pass, stream->open, stream->filled);
    }
    tp_pass_finish(&pass, stream->position + stream->filled, 1, job->out);
    job->out->abs_max_index = index;

    const tp_stats_options *wanted = &stream->wanted;
    if (wanted->bins != NULL) {
        memcpy(wanted->bins, stream->kept.bins, wanted->bin_count * sizeof(*wanted->bins));
    }
    if (wanted->exponents != NULL) {
        *wanted->exponents = stream->exponents;
    }
    tp_extras extras = stream->extras;
    extras.options = wanted;
    extras.hash.count = stream->position + stream->filled;
    tp_extras_finish(&extras, &pass, 1);
}

void tp_stats_stream_result(const tp_stats_stream *stream, tp_stats *out)
{
    ending job = {.stream = stream, .out = out};
    tp_in_default_environment(finish, &job);
}

void tp_stats_stream_close(tp_stats_stream *stream)
{
    if (stream != NULL) {
        tp_free(stream->kept.bins);
        tp_free(stream);
    }
}
