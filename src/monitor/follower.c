#include "monitor/follower.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "journal/cursor.h"
#include "journal/frame.h"
#include "journal/thin.h"

#define NEVER UINT64_MAX
#define RETRY_NS UINT64_C(1000000000)
/* How often the cursor is written at most; and where that takes long, a twentieth of the time. */
#define CURSOR_NS UINT64_C(20000000)
#define CURSOR_PAUSES UINT64_C(20)

struct tp_follower {
    const tp_sink *sink;
    tp_sink_options options;
    uint32_t ops[TP_OP_COUNT];
    char folder[TP_PATH_MAX]; /* of the cursor */
    char cursor_path[TP_PATH_MAX];
    void *private; /* of the sink; NULL while it is not open */
    tp_cursor cursor;
    tp_buf blob;       /* scratch: what the cursor file holds besides the cursor */
    bool behind;       /* the journal holds steps that the sink lacks */
    bool warned;       /* about the present trouble */
    bool *no_room;     /* tp_follower_share; NULL: nobody shares it */
    uint64_t retry_at; /* monotonic; NEVER: the sink has ended for this run */
    uint64_t steps;
    uint64_t stored_steps; /* of them, those that the cursor file speaks of */
    uint64_t store_at;     /* monotonic: when it is to be written again */
    uint64_t bytes_before; /* of sinks that were closed again */
    const int *stop;       /* ends catching up when it becomes 1; NULL: nothing does */
};

#define MICRO_GRADIENTS (UINT32_C(1) << 31) /* beside the digits */

/* The options lie in the cursor file, so that a run directory explains itself to recovery. */
static void put_options(tp_buf *blob, const tp_sink_options *options)
{
    tp_buf_put_u32(blob, options->rank);
    tp_buf_put_u32(blob, options->ndigits | (options->micro_gradients ? MICRO_GRADIENTS : 0));
    tp_buf_put_u64(blob, options->steps_per_file);
    tp_buf_put_u64(blob, options->max_tags);
    tp_buf_put_u32(blob, options->op_count);
    for (uint32_t i = 0; i < options->op_count; i++) {
        tp_buf_put_u32(blob, options->ops[i]);
    }
}

/* Bytes that the options take, 0 when they are not valid. */
static size_t get_options(const tp_buf *blob, tp_sink_options *options, uint32_t ops[TP_OP_COUNT])
{
    const uint8_t *bytes = blob->data;
    if (blob->size < 28) {
        return 0;
    }
    options->rank = tp_get_u32(bytes);
    options->ndigits = tp_get_u32(bytes + 4) & ~MICRO_GRADIENTS;
    options->micro_gradients = (tp_get_u32(bytes + 4) & MICRO_GRADIENTS) != 0;
    options->steps_per_file = tp_get_u64(bytes + 8);
    options->max_tags = tp_get_u64(bytes + 16);
    options->op_count = tp_get_u32(bytes + 24);
    size_t size = 28 + (size_t)options->op_count * 4;
    if (options->op_count > TP_OP_COUNT || blob->size < size) {
        return 0;
    }
    for (uint32_t i = 0; i < options->op_count; i++) {
        ops[i] = tp_get_u32(bytes + 28 + (size_t)4 * i);
    }
    options->ops = ops;
    return size;
}

static void close_sink(tp_follower *follower)
{
    if (follower->private != NULL) {
        follower->bytes_before += follower->sink->bytes(follower->private);
        follower->sink->close(follower->private);
        tp_free(follower->private);
        follower->private = NULL;
    }
}

static tp_status store_cursor(tp_follower *follower, tp_error *error)
{
    const uint64_t begin = tp_clock_monotonic();
    tp_status status =
        follower->sink->flush != NULL ? follower->sink->flush(follower->private, error) : TP_OK;
    if (status != TP_OK) {
        return status;
    }
    tp_buf_clear(&follower->blob);
    put_options(&follower->blob, &follower->options);
    follower->sink->cursor(follower->private, &follower->blob);
    if (follower->blob.failed) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for a cursor");
    }
    status = tp_cursor_store(follower->cursor_path, &follower->cursor, &follower->blob, error);
    if (status == TP_OK) {
        const uint64_t end = tp_clock_monotonic();
        const uint64_t pause = (end - begin) * CURSOR_PAUSES;
        follower->stored_steps = follower->steps;
        follower->store_at = end + (pause > CURSOR_NS ? pause : CURSOR_NS);
    }
    return status;
}

bool tp_follower_has_beginning(const char *directory)
{
    char folder[TP_PATH_MAX];
    uint64_t first;
    uint64_t last;
    tp_removed removed;
    return tp_path_join(folder, directory, "journal") == TP_OK &&
           tp_segment_find(folder, 0, &first, &last) == TP_OK && first == 0 &&
           !tp_segment_is_thin(folder, 0, &removed);
}

/* Somebody has removed or cut the files: makes the sink begin anew, to be fed from the journal. */
static void begin_anew(tp_follower *follower)
{
    tp_log(TP_LOG_WARNING, "%s: files of the %s output are gone: made anew from the journal",
           follower->options.directory, follower->sink->name);
    follower->cursor = (tp_cursor){0};
    follower->steps = 0;
    follower->stored_steps = 0;
    follower->behind = true;
    follower->retry_at = 0;
}

/* Opens the sink where the cursor file says, or anew if it may and its files are not there. */
static tp_status open_sink(tp_follower *follower, bool may_begin, tp_error *error)
{
    tp_sink_options stored;
    uint32_t ops[TP_OP_COUNT];
    tp_status status = tp_dir_make_in(follower->folder, error);
    if (status == TP_OK) {
        status = tp_cursor_load(follower->cursor_path, &follower->cursor, &follower->blob, error);
    }
    if (status != TP_OK) {
        return status;
    }
    size_t skip = get_options(&follower->blob, &stored, ops);
    if (may_begin && skip > 0 && follower->blob.size > skip &&
        !follower->sink->is_whole(&follower->options, follower->blob.data + skip,
                                  follower->blob.size - skip) &&
        tp_follower_has_beginning(follower->options.directory)) {
        begin_anew(follower);
        skip = follower->blob.size;
    }
    follower->private = tp_calloc(1, follower->sink->private_size);
    if (follower->private == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for a sink");
    }
    status = follower->sink->open(follower->private, &follower->options,
                                  skip > 0 ? follower->blob.data + skip : NULL,
                                  follower->blob.size - skip, error);
    if (status == TP_OK) {
        follower->steps = follower->stored_steps; /* the others come again */
        status = store_cursor(follower, error);
    }
    if (status != TP_OK) {
        close_sink(follower);
    }
    return status;
}

/* Remembers that the sink must be opened anew and be fed from the journal. */
static void fall_behind(tp_follower *follower, tp_status status, const tp_error *error)
{
    /* What is not there any more (somebody has removed the directory) is made again. */
    bool passing = status == TP_ERR_NOSPACE || status == TP_ERR_IO || status == TP_ERR_NOMEM ||
                   status == TP_ERR_NOTFOUND;
    close_sink(follower);
    follower->behind = true;
    follower->retry_at = passing ? tp_clock_monotonic() + RETRY_NS : NEVER;
    const bool is_full = status == TP_ERR_NOSPACE && follower->no_room != NULL;
    if (!follower->warned && !(is_full && *follower->no_room)) {
        tp_log(TP_LOG_WARNING, "%s output %s: %s; nothing is lost, the journal has it",
               follower->sink->name, passing ? "is behind" : "has ended", error->message);
        follower->warned = true;
    }
    if (is_full) {
        *follower->no_room = true;
    }
}

/* The cursor, now and then: what it does not speak of is cut off at the next open, and comes again
 * from the journal. Writing it for every step would cost a small model more than its step does. */
static tp_status advance(tp_follower *follower, tp_position position, tp_error *error)
{
    follower->cursor.position = position;
    return tp_clock_monotonic() < follower->store_at ? TP_OK : store_cursor(follower, error);
}

/* A sink remembers series by the numbers of their keys, which are those of one attempt. What the
 * attempts before have of this step and of later ones is recorded anew. */
static tp_status begin_attempt(tp_follower *follower, uint64_t step, tp_error *error)
{
    tp_status status = store_cursor(follower, error);
    if (status == TP_OK) {
        close_sink(follower);
        status = open_sink(follower, false, error);
    }
    if (status == TP_OK) {
        status = follower->sink->rewind(follower->private, step, error);
    }
    return status == TP_OK ? store_cursor(follower, error) : status;
}

static tp_status write_step(tp_follower *follower, const tp_batch *batch, const tp_names *names,
                            tp_error *error)
{
    if (follower->cursor.any && follower->cursor.attempt != batch->attempt) {
        tp_status status = begin_attempt(follower, batch->step, error);
        if (status != TP_OK) {
            return status;
        }
    }
    if ((batch->flags & (TP_BATCH_PARTIAL | TP_BATCH_GAP)) == 0) {
        tp_status status = follower->sink->write(follower->private, batch, names, error);
        if (status != TP_OK) {
            return status;
        }
        follower->steps++;
    }
    follower->cursor.any = true;
    follower->cursor.step = batch->step;
    follower->cursor.attempt = batch->attempt;
    return TP_OK;
}

static tp_status write_alerts(tp_follower *follower, uint64_t step, const tp_record *alerts,
                              uint64_t count, const tp_names *names, tp_error *error)
{
    const tp_sink *sink = follower->sink;
    if (count == 0 || sink->write_alerts == NULL) {
        return TP_OK;
    }
    return sink->write_alerts(follower->private, step, alerts, count, names, error);
}

static void take_options(tp_follower *follower, const tp_sink_options *options)
{
    follower->options = *options;
    memcpy(follower->ops, options->ops, options->op_count * sizeof options->ops[0]);
    follower->options.ops = follower->ops;
}

tp_status tp_follower_open(tp_follower **out, const tp_sink *sink, const tp_sink_options *options,
                           tp_error *error)
{
    char name[64];
    tp_follower *follower = tp_calloc(1, sizeof *follower);
    if (follower == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for a follower");
    }
    follower->sink = sink;
    take_options(follower, options);
    snprintf(name, sizeof name, "%s.cursor", sink->name);
    tp_status status = tp_path_join(follower->folder, options->directory, "followers");
    if (status == TP_OK) {
        status = tp_path_join(follower->cursor_path, follower->folder, name);
    }
    if (status != TP_OK) {
        tp_free(follower);
        return tp_fail(error, status, "path is too long: %.100s", options->directory);
    }
    tp_error trouble;
    status = open_sink(follower, true, &trouble);
    if (status != TP_OK) {
        fall_behind(follower, status, &trouble);
    }
    *out = follower;
    return TP_OK;
}

void tp_follower_write(tp_follower *follower, const tp_batch *batch, const tp_record *alerts,
                       uint64_t alert_count, const tp_names *names, tp_position position)
{
    tp_error error;
    tp_status status;
    if (follower->behind) {
        if (follower->retry_at == NEVER || tp_clock_monotonic() < follower->retry_at) {
            return;
        }
        status = tp_follower_catch_up(follower, RETRY_NS / 10, &error);
    } else {
        status = write_step(follower, batch, names, &error);
        if (status == TP_OK) {
            status = write_alerts(follower, batch->step, alerts, alert_count, names, &error);
        }
        if (status == TP_OK) {
            status = advance(follower, position, &error);
        }
        if (status != TP_OK) {
            fall_behind(follower, status, &error);
        }
    }
}

void tp_follower_tell(tp_follower *follower, uint64_t step, const tp_record *alerts, uint64_t count,
                      const tp_names *names, tp_position position)
{
    tp_error error;
    if (follower->behind || follower->sink->write_alerts == NULL) {
        return;
    }
    tp_status status = write_alerts(follower, step, alerts, count, names, &error);
    if (status == TP_OK) {
        follower->cursor.position = position;
        status = store_cursor(follower, &error); /* now: the process may be killed as it hangs */
    }
    if (status != TP_OK) {
        fall_behind(follower, status, &error);
    }
}

static const tp_key *reader_key(const void *source, uint32_t id)
{
    return tp_reader_key(source, id);
}

static const int64_t *reader_shape(const void *source, uint32_t id, uint32_t *ndim)
{
    return tp_reader_shape(source, id, ndim);
}

tp_names tp_names_of_reader(const tp_reader *reader)
{
    return (tp_names){reader, reader_key, reader_shape};
}

/* Whether the step that ends here lies behind the cursor. */
static bool is_new(const tp_follower *follower, tp_position position)
{
    const tp_position *last = &follower->cursor.position;
    return !follower->cursor.any || position.segment > last->segment ||
           (position.segment == last->segment && position.offset > last->offset);
}

/* Opens the journal at the follower's cursor. Where that place is gone (a segment was removed, or
 * its end lost) all is read again, and feed leaves out what lies in front of the cursor. */
static tp_status open_reader(const tp_follower *follower, tp_reader **reader, tp_error *error)
{
    const char *directory = follower->options.directory;
    tp_status status = tp_reader_open(reader, directory, error);
    if (status == TP_OK && follower->cursor.any) {
        status = tp_reader_seek(*reader, follower->cursor.position, error);
        if (status == TP_ERR_ARGUMENT) {
            tp_log(TP_LOG_WARNING, "%s output goes on behind a damaged place: %s",
                   follower->sink->name, error->message);
            tp_reader_close(reader);
            status = tp_reader_open(reader, directory, error);
        }
    }
    return status;
}

static bool must_stop(const tp_follower *follower)
{
    return follower->stop != NULL && __atomic_load_n(follower->stop, __ATOMIC_ACQUIRE);
}

/* Feeds the sink from reader until TP_END, an error, or the time is up (TP_OK). */
static tp_status feed(tp_follower *follower, tp_reader *reader, uint64_t limit_ns, tp_error *error)
{
    const tp_names names = tp_names_of_reader(reader);
    uint64_t start = tp_clock_monotonic();
    while (!must_stop(follower)) {
        tp_item item;
        tp_status status = tp_reader_next(reader, &item, error);
        if (status == TP_ERR_CORRUPT) {
            char text[1024];
            tp_log(TP_LOG_WARNING, "%s", tp_error_format(error, text, sizeof text));
            continue;
        }
        if (status != TP_OK) {
            return status;
        }
        if (!is_new(follower, item.position)) {
            continue;
        }
        if (item.type == TP_ITEM_BATCH) {
            status = write_step(follower, &item.batch, &names, error);
        } else if (item.type == TP_ITEM_ALERTS) {
            status = write_alerts(follower, item.batch.step, item.batch.records, item.batch.count,
                                  &names, error);
        }
        if (status == TP_OK && item.type != TP_ITEM_CLOSE) {
            status = advance(follower, item.position, error);
        }
        if (status != TP_OK) {
            return status;
        }
        if (item.type == TP_ITEM_BATCH) {
            if (tp_clock_monotonic() - start > limit_ns) {
                break;
            }
        }
    }
    return TP_OK;
}

tp_status tp_follower_catch_up(tp_follower *follower, uint64_t limit_ns, tp_error *error)
{
    tp_reader *reader = NULL;
    tp_error local;
    tp_error *where = error != NULL ? error : &local;
    if (follower->retry_at == NEVER) {
        return tp_fail(where, TP_ERR_STATE, "%s output has ended", follower->sink->name);
    }
    tp_status status = follower->private != NULL ? TP_OK : open_sink(follower, true, where);
    if (status == TP_OK) {
        status = open_reader(follower, &reader, where);
        if (status == TP_ERR_NOTFOUND) {
            status = TP_END; /* no journal yet: nothing to catch up with */
        }
    }
    if (status == TP_OK) {
        status = feed(follower, reader, limit_ns, where);
        if (status == TP_OK || status == TP_END) {
            tp_status stored = store_cursor(follower, where);
            status = stored != TP_OK ? stored : status;
        }
    }
    tp_reader_close(&reader);
    if (status == TP_END) {
        if (follower->warned) {
            tp_log(TP_LOG_INFO, "%s output has caught up", follower->sink->name);
        }
        follower->behind = false;
        follower->warned = false;
        return TP_OK;
    }
    if (status == TP_OK) { /* more to do: go on at the next opportunity */
        follower->behind = true;
        follower->retry_at = 0;
        return TP_END;
    }
    fall_behind(follower, status, where);
    return status;
}

static bool has_options(const tp_follower *follower, const tp_sink_options *options)
{
    const tp_sink_options *own = &follower->options;
    return own->ndigits == options->ndigits && own->max_tags == options->max_tags &&
           own->micro_gradients == options->micro_gradients && own->op_count == options->op_count &&
           memcmp(own->ops, options->ops, own->op_count * sizeof *own->ops) == 0;
}

void tp_follower_configure(tp_follower *follower, const tp_sink_options *options)
{
    tp_sink_options next = *options;
    tp_error error;
    /* Files that are cut otherwise would overlap. */
    next.steps_per_file = follower->options.steps_per_file;
    if (has_options(follower, options)) {
        return;
    }
    tp_status status = follower->behind ? tp_follower_catch_up(follower, NEVER, &error) : TP_OK;
    if (status == TP_OK) {
        status = store_cursor(follower, &error);
    }
    close_sink(follower);
    take_options(follower, &next);
    if (status == TP_OK) {
        status = open_sink(follower, false, &error);
    }
    if (status != TP_OK && follower->retry_at != NEVER) {
        fall_behind(follower, status, &error);
    }
}

void tp_follower_share(tp_follower *follower, bool *no_room)
{
    follower->no_room = no_room;
}

void tp_follower_suspect(tp_follower *follower)
{
    follower->behind = true;
}

bool tp_follower_is_behind(const tp_follower *follower)
{
    return follower->behind;
}

uint64_t tp_follower_steps(const tp_follower *follower)
{
    return follower->steps;
}

uint64_t tp_follower_bytes(const tp_follower *follower)
{
    return follower->bytes_before +
           (follower->private != NULL ? follower->sink->bytes(follower->private) : 0);
}

void tp_follower_close(tp_follower **follower)
{
    if (*follower != NULL) {
        if ((*follower)->private != NULL) {
            (void)store_cursor(*follower, NULL); /* an older one only means more to read again */
        }
        close_sink(*follower);
        tp_buf_free(&(*follower)->blob);
        tp_free(*follower);
        *follower = NULL;
    }
}

tp_status tp_follower_load_options(const char *directory, const tp_sink *sink,
                                   tp_sink_options *options, uint32_t ops[TP_OP_COUNT], bool *found,
                                   tp_error *error)
{
    char path[TP_PATH_MAX];
    char name[80];
    tp_cursor cursor;
    tp_buf blob = TP_BUF_INIT;
    snprintf(name, sizeof name, "followers/%s.cursor", sink->name);
    tp_status status = tp_path_join(path, directory, name);
    if (status == TP_OK) {
        status = tp_cursor_load(path, &cursor, &blob, error);
    } else {
        tp_fail(error, status, "path is too long: %.100s", directory);
    }
    *found = status == TP_OK && blob.size > 0;
    if (*found && get_options(&blob, options, ops) == 0) {
        status = tp_fail(error, TP_ERR_CORRUPT, "%s holds no valid options", path);
    }
    tp_buf_free(&blob);
    return status;
}

tp_status tp_follower_bring(const tp_sink *sink, const tp_sink_options *options, const int *stop,
                            uint64_t *steps, tp_error *error)
{
    tp_follower *follower = NULL;
    tp_status status = tp_follower_open(&follower, sink, options, error);
    if (status == TP_OK) {
        follower->stop = stop;
        status = tp_follower_catch_up(follower, NEVER, error);
        if (tp_follower_steps(follower) > *steps) {
            *steps = tp_follower_steps(follower);
        }
    }
    tp_follower_close(&follower);
    return status;
}
