#include <string.h>

#include "base/mem.h"
#include "stats/environment.h"
#include "stats/pass.h"

struct tp_stats_stream {
    tp_pass pass;
    uint32_t dtype;
    uint32_t element;  /* bytes of an element as the pass takes it */
    uint64_t position; /* first of the open block; of the next byte where bytes are counted */
    uint64_t abs_max_index;
    size_t filled; /* elements in the open block */
    uint8_t open[TP_PASS_BUFFER];
};

tp_status tp_stats_stream_open(tp_stats_stream **stream, uint32_t dtype, double eps)
{
    if (stream == NULL) {
        return TP_ERR_ARGUMENT;
    }
    *stream = NULL;
    if (!(eps >= 0.0)) {
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
    tp_pass_open(&made->pass, dtype, kernel, eps);
    made->dtype = dtype;
    made->element = made->pass.convert != NULL ? sizeof(double) : tp_dtype_size(dtype);
    made->abs_max_index = TP_NO_INDEX;
    *stream = made;
    return TP_OK;
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

static void take_walk(tp_stats_stream *stream, tp_walk *walk)
{
    tp_pass_space space;
    while (walk->left > 0) {
        const size_t n = tp_pass_piece(&stream->pass, walk, walk->left);
        if (stream->pass.bytes != NULL || (stream->filled == 0 && n == TP_BLOCK)) {
            take(stream, tp_pass_next(&stream->pass, walk, n, &space, NULL), n);
            continue;
        }
        const size_t room = TP_BLOCK - stream->filled;
        const size_t part = n < room ? n : room;
        memcpy(stream->open + stream->filled * stream->element,
               tp_pass_next(&stream->pass, walk, part, &space, NULL), part * stream->element);
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
}

void tp_stats_stream_result(const tp_stats_stream *stream, tp_stats *out)
{
    ending job = {.stream = stream, .out = out};
    tp_in_default_environment(finish, &job);
}

void tp_stats_stream_close(tp_stats_stream *stream)
{
    tp_free(stream);
}
