/* TensorBoard event files: TFRecord frames, one Event a step with all its values. A value is a
 * float tensor of rank 0 under the scalars plugin, which has the exact double beside it in
 * double_val: TensorBoard's fast loader shows no tensors of type double, and simple_value has no
 * such place. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "sinks/event.h"
#include "sinks/heatmap.h"
#include "sinks/layout.h"
#include "sinks/merged.h"
#include "sinks/others.h"
#include "sinks/series.h"

#define PREFIX "events.out.tfevents."
#define SUFFIX ".tensorprobe"
#define COST_TAG "tensorprobe/"
#define SESSION_START 1
#define FILE_BYTES (UINT64_C(32) << 20) /* then the next step goes into another file */
#define MOST_MAPS 1000u                 /* of 34 KB each */
#define MAP_STEPS 64u

typedef struct tensorboard {
    tp_sink_options options;
    char name[NAME_MAX + 1]; /* of the file; "": none yet */
    int fd;
    uint64_t size;
    uint64_t bytes;
    tp_blocks values; /* packed values of a series, see append_values; of others they are empty */
    uint64_t tags;    /* in the file */
    uint64_t other_count; /* series that have no tags of their own */
    bool has_told;        /* about them */
    bool tells_cost;      /* the tags of the monitor's own cost are in the file */
    bool explains;        /* the page and the layout are still to be written */
    tp_others others;
    tp_map map_places; /* tp_series → place in maps */
    tp_buf maps;       /* tp_heatmap * */
    tp_merged merged;  /* collectives: one value for all calls of a step */
    tp_buf block;
    tp_buf summary;
    tp_buf frames;
} tensorboard;

/* How many tags a series has. */
static uint64_t count_tags(const tp_columns *columns, uint32_t ndim)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < columns->count; i++) {
        const uint32_t op = columns->ops[i];
        count += op != TP_OP_SHAPE && op != TP_OP_DTYPE && (op != TP_OP_ID || ndim == 0);
    }
    return count;
}

/* First time that a series is seen in this file: its values are packed with the plugin's name, and
 * without it for all later steps, as (op, size, bytes), …  Beyond the limit of tags the series has
 * none: others sum it up. */
static tp_status announce_values(tensorboard *sink, const tp_series *series,
                                 const tp_record *record, const tp_key *key, uint32_t ndim)
{
    char series_tag[TP_TAG_MAX];
    char tag[TP_TAG_MAX + 16];
    tp_series_tag(&sink->options, key, record, series_tag);
    tp_buf_clear(&sink->block);
    const tp_columns columns = tp_columns_of(key->quantity, &sink->options);
    const uint64_t tags = count_tags(&columns, ndim);
    if (sink->options.max_tags > 0 && key->quantity != TP_SCALAR &&
        sink->tags + tags > sink->options.max_tags) {
        sink->other_count++;
        tp_others_add(&sink->others, key->quantity, record, &columns);
        return tp_blocks_add(&sink->values, series, &sink->block);
    }
    sink->tags += tags;
    for (uint32_t i = 0; i < columns.count; i++) {
        uint32_t op = columns.ops[i];
        if (op == TP_OP_SHAPE || op == TP_OP_DTYPE || (op == TP_OP_ID && ndim > 0)) {
            continue;
        }
        /* A scalar is its own statistic. */
        snprintf(tag, sizeof tag, "%s%s%s", series_tag, key->quantity == TP_SCALAR ? "" : "_",
                 key->quantity == TP_SCALAR ? "" : tp_op_name(op));
        tp_event_put_scalar(&sink->summary, tag, tp_column_value(record, op, ndim), true);
        tp_buf_put_u32(&sink->block, op);
        size_t place = sink->block.size;
        tp_buf_put_u32(&sink->block, 0);
        tp_event_put_scalar(&sink->block, tag, 0, false);
        if (!sink->block.failed) {
            uint32_t size = (uint32_t)(sink->block.size - place - 4);
            memcpy(sink->block.data + place, &size, sizeof size);
        }
    }
    return tp_blocks_add(&sink->values, series, &sink->block);
}

static void append_values(tensorboard *sink, const uint8_t *block, size_t block_size,
                          const tp_record *record, uint32_t ndim)
{
    for (size_t at = 0; at < block_size;) {
        uint32_t op;
        uint32_t size;
        memcpy(&op, block + at, sizeof op);
        memcpy(&size, block + at + 4, sizeof size);
        if (op != TP_OP_ID || ndim == 0) {
            double value = tp_column_value(record, op, ndim);
            tp_buf_put(&sink->summary, block + at + 8, size);
            if (!sink->summary.failed) {
                uint8_t *end = sink->summary.data + sink->summary.size;
                float shown = (float)value;
                memcpy(end - TP_EVENT_FLOAT_FROM_END, &shown, sizeof shown);
                memcpy(end - TP_EVENT_DOUBLE_FROM_END, &value, sizeof value);
            }
        }
        at += 8 + (size_t)size;
    }
}

/* The map of a series; NULL: there are too many, or there is no memory for it. */
static tp_heatmap *find_map(tensorboard *sink, const tp_series *series,
                            const tp_histogram *histogram)
{
    uint32_t place = (uint32_t)(sink->maps.size / sizeof(tp_heatmap *));
    tp_heatmap *map = NULL;
    if (tp_map_get(&sink->map_places, series, sizeof *series, &place) == TP_OK) {
        memcpy(&map, sink->maps.data + place * sizeof map, sizeof map);
        return map;
    }
    if (place == MOST_MAPS || (map = tp_heatmap_new(histogram)) == NULL) {
        return NULL;
    }
    tp_buf_put(&sink->maps, &map, sizeof map);
    if (sink->maps.failed) {
        sink->maps.failed = false;
        tp_heatmap_free(map);
        return NULL;
    }
    return tp_map_set(&sink->map_places, series, sizeof *series, place) == TP_OK ? map : NULL;
}

/* The histogram of a step, and now and then the picture of all steps so far: often at first, where
 * it changes most. (It begins anew when the sink is opened again.) */
static void put_histogram(tensorboard *sink, uint64_t step, const tp_series *series,
                          const tp_record *record, const tp_key *key, const tp_histogram *histogram)
{
    char tag[TP_TAG_MAX];
    char map_tag[TP_TAG_MAX + 16];
    tp_series_tag(&sink->options, key, record, tag);
    tp_event_put_histogram(&sink->summary, tag, histogram, &sink->block);
    tp_heatmap *map = find_map(sink, series, histogram);
    if (map == NULL) {
        return;
    }
    tp_heatmap_add(map, step, histogram);
    const uint64_t steps = tp_heatmap_steps(map);
    if ((steps & (steps - 1)) == 0 || steps % MAP_STEPS == 0) {
        snprintf(map_tag, sizeof map_tag, "%s_heatmap", tag);
        tp_heatmap_draw(map, &sink->block);
        tp_event_put_image(&sink->summary, map_tag, TP_HEATMAP_WIDTH, TP_HEATMAP_HEIGHT,
                           &sink->block);
    }
}

static tp_status put_record(tensorboard *sink, const tp_batch *batch, const tp_record *record,
                            const tp_names *names, tp_error *error)
{
    uint32_t ndim = 0;
    const tp_key *key = names->key(names->source, record->key);
    if (key == NULL || names->shape(names->source, record->shape, &ndim) == NULL) {
        return TP_OK; /* its definition was damaged: there is no name for it */
    }
    if (tp_quantity_name(key->quantity) == NULL || tp_role_name(key->role) == NULL) {
        return TP_OK; /* of a newer version: it has no tag */
    }
    const tp_series series = {record->key, record->call,
                              tp_has_micro_step(&sink->options, key->quantity) ? record->micro_step
                                                                               : 0};
    tp_histogram histogram;
    if (tp_batch_histogram(batch, record, &histogram) == TP_OK && histogram.bin_count > 0) {
        put_histogram(sink, batch->step, &series, record, key, &histogram);
    }
    size_t size = 0;
    const uint8_t *block = tp_blocks_find(&sink->values, &series, &size);
    if (block != NULL && size == 0 && sink->other_count > 0) {
        const tp_columns columns = tp_columns_of(key->quantity, &sink->options);
        tp_others_add(&sink->others, key->quantity, record, &columns);
        return TP_OK;
    }
    if (block != NULL) {
        append_values(sink, block, size, record, ndim);
        return TP_OK;
    }
    if (announce_values(sink, &series, record, key, ndim) != TP_OK) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for tags");
    }
    return TP_OK;
}

/* All calls of one operation in a step have one tag, in whatever group. */
static tp_status merge_record(tensorboard *sink, const tp_record *record, const tp_key *key,
                              tp_error *error)
{
    char tag[TP_TAG_MAX];
    if (tp_role_name(key->role) == NULL) {
        return TP_OK;
    }
    tp_series_tag(&sink->options, key, record, tag);
    return tp_merged_add(&sink->merged, tag, strlen(tag), record, error);
}

static tp_status file_path(const tensorboard *sink, char path[TP_PATH_MAX], tp_error *error)
{
    tp_status status = tp_path_join(path, sink->options.directory, sink->name);
    if (status != TP_OK) {
        return tp_fail(error, status, "path is too long: %s", sink->options.directory);
    }
    return TP_OK;
}

/* A later file has a later name, whoever makes it and whatever the clock says: TensorBoard reads
 * them in that order. */
static tp_status name_file(tensorboard *sink, tp_error *error)
{
    char host[256] = "localhost";
    int64_t second = tp_clock_wall() / 1000000000;
    int64_t last_second = 0;
    unsigned number = 0;
    if (sscanf(sink->name, PREFIX "%" SCNd64 ".%u.", &last_second, &number) == 2) {
        second = last_second > second ? last_second : second;
        number++;
    }
    gethostname(host, sizeof host - 1);
    host[sizeof host - 1] = '\0';
    int length =
        snprintf(sink->name, sizeof sink->name, PREFIX "%" PRId64 ".%06u.%.100s.%ld" SUFFIX, second,
                 number % 1000000, host, (long)getpid());
    return length > 0 && (size_t)length < sizeof sink->name
               ? TP_OK
               : tp_fail(error, TP_ERR_ARGUMENT, "name of the event file is too long");
}

/* Opens a new file and puts its first event in front of what is to be written. */
static tp_status begin_file(tensorboard *sink, tp_error *error)
{
    char path[TP_PATH_MAX];
    char version[] = "brain.Event:2";
    tp_status status = name_file(sink, error);
    if (status == TP_OK) {
        status = file_path(sink, path, error);
    }
    if (status == TP_OK) {
        status = tp_file_append(path, &sink->fd, &sink->size, error);
    }
    if (status == TP_OK && sink->size > 0) {
        sink->size = 0;
        status = tp_file_truncate(sink->fd, path, 0, error);
    }
    TpEvent__Event event;
    tp_event__event__init(&event);
    event.wall_time = (double)tp_clock_wall() * 1e-9;
    event.file_version = version;
    tp_event_put_frame(&sink->frames, &event);
    return status;
}

/* A file that is large enough ends; in the next one every series is announced anew, so that it can
 * be read alone. */
static void end_file(tensorboard *sink)
{
    tp_file_close(sink->fd);
    sink->fd = -1;
    sink->tags = 0;
    sink->tells_cost = false;
    sink->other_count = 0;
    tp_blocks_free(&sink->values);
}

/* The values of a step, which lie in summary, as an event. */
static void put_summary(tensorboard *sink, const tp_batch *batch)
{
    TpEvent__Event event;
    tp_event__event__init(&event);
    event.wall_time = (double)batch->wall_ns * 1e-9;
    event.step = (int64_t)batch->step;
    event.summary = (ProtobufCBinaryData){sink->summary.size, sink->summary.data};
    tp_event_put_frame(&sink->frames, &event);
    sink->frames.failed = sink->frames.failed || sink->summary.failed;
}

/* The page that explains the tags, and the layout that groups them. */
static tp_status explain(tensorboard *sink, const tp_batch *batch, const tp_names *names,
                         tp_error *error)
{
    char page[] = "tensorprobe/tags";
    char layout[] = "custom_scalars__config__";
    char text_plugin[] = "text";
    char layout_plugin[] = "custom_scalars";
    tp_buf_clear(&sink->summary);
    tp_buf_clear(&sink->block);
    tp_layout_put_page(&sink->block, &sink->options);
    tp_event_put_text(&sink->summary, page, text_plugin, &sink->block);
    tp_buf_clear(&sink->block);
    tp_status status = tp_layout_put(&sink->block, batch, names, &sink->options);
    tp_event_put_text(&sink->summary, layout, layout_plugin, &sink->block);
    put_summary(sink, batch);
    return status == TP_OK ? TP_OK : tp_fail(error, status, "no memory for a layout");
}

/* Series that have no tags of their own. */
static void put_others(tensorboard *sink)
{
    if (sink->other_count == 0) {
        return;
    }
    if (!sink->has_told) {
        sink->has_told = true;
        tp_log(
            TP_LOG_WARNING,
            "TensorBoard gets %" PRIu64 " tags and no more: of %" PRIu64 " further series it "
            "shows the smallest and largest values alone, under others/; targets and ops choose, "
            "tensorboard_tags raises the limit, and the journal has all",
            sink->tags, sink->other_count);
    }
    tp_others_put(&sink->others, sink->options.rank, &sink->summary);
}

/* What the step and the monitor's part of it took: an event of its own. */
static void put_cost(tensorboard *sink, const tp_batch *batch)
{
    const struct {
        char tag[32];
        double value;
    } values[] = {
        {COST_TAG "step_ms", (double)(batch->end_ns - batch->begin_ns) / 1e6},
        {COST_TAG "hook_ms", (double)batch->hook_ns / 1e6},
        {COST_TAG "wait_ms", (double)batch->wait_ns / 1e6},
        {COST_TAG "writer_ms", (double)batch->writer_ns / 1e6},
        {COST_TAG "bytes", (double)batch->bytes},
        {COST_TAG "records", (double)batch->count},
    };
    tp_buf_clear(&sink->summary);
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char tag[sizeof values[0].tag];
        memcpy(tag, values[i].tag, sizeof tag);
        tp_event_put_scalar(&sink->summary, tag, values[i].value, !sink->tells_cost);
    }
    sink->tells_cost = true;
    put_summary(sink, batch);
}

/* Appends what lies in frames. */
static tp_status write_frames(tensorboard *sink, tp_error *error)
{
    char path[TP_PATH_MAX];
    tp_status status = file_path(sink, path, error);
    if (status == TP_OK && sink->frames.failed) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory for events");
    }
    if (status == TP_OK) {
        status = tp_file_write(sink->fd, path, sink->frames.data, sink->frames.size, error);
    }
    if (status == TP_OK) {
        sink->size += sink->frames.size;
        sink->bytes += sink->frames.size;
    }
    return status;
}

/* A log of a session that starts makes TensorBoard forget what it has read of this step and of
 * later ones. */
static tp_status tensorboard_rewind(void *private, uint64_t step, tp_error *error)
{
    tensorboard *sink = private;
    TpEvent__Event event;
    TpEvent__SessionLog log;
    tp_status status = TP_OK;
    tp_buf_clear(&sink->frames);
    if (sink->fd < 0) {
        status = begin_file(sink, error);
    }
    tp_event__event__init(&event);
    tp_event__session_log__init(&log);
    log.status = SESSION_START;
    event.wall_time = (double)tp_clock_wall() * 1e-9;
    event.step = (int64_t)step;
    event.session_log = &log;
    /* Twice: the first one that it meets in a run only tells that the run has begun. */
    tp_event_put_frame(&sink->frames, &event);
    tp_event_put_frame(&sink->frames, &event);
    return status == TP_OK ? write_frames(sink, error) : status;
}

static tp_status tensorboard_write(void *private, const tp_batch *batch, const tp_names *names,
                                   tp_error *error)
{
    tensorboard *sink = private;
    tp_status status = TP_OK;
    if (sink->fd >= 0 && sink->size >= FILE_BYTES) {
        end_file(sink);
    }
    tp_buf_clear(&sink->frames);
    if (sink->fd < 0) {
        status = begin_file(sink, error);
    }
    if (status == TP_OK && sink->explains) {
        status = explain(sink, batch, names, error);
        sink->explains = status != TP_OK;
    }
    if (status == TP_OK) {
        put_cost(sink, batch);
    }
    tp_buf_clear(&sink->summary);
    tp_others_clear(&sink->others);
    tp_merged_clear(&sink->merged);
    for (uint64_t i = 0; i < batch->count && status == TP_OK; i++) {
        const tp_record *record = &batch->records[i];
        const tp_key *key = NULL;
        if (record->kind == TP_RECORD_STATS) {
            key = names->key(names->source, record->key);
        }
        if (key != NULL && key->quantity == TP_COMM) {
            status = merge_record(sink, record, key, error);
        } else if (key != NULL) {
            status = put_record(sink, batch, record, names, error);
        }
    }
    for (uint32_t i = 0; i < sink->merged.count && status == TP_OK; i++) {
        status = put_record(sink, batch, tp_merged_record(&sink->merged, i), names, error);
    }
    if (status != TP_OK) {
        return status;
    }
    put_others(sink);
    put_summary(sink, batch);
    return write_frames(sink, error);
}

/* Event files behind that of the cursor would show their steps twice: TensorBoard reads all of a
 * folder. */
static tp_status remove_leftovers(const tensorboard *sink, tp_error *error)
{
    char path[TP_PATH_MAX];
    tp_status status = TP_OK;
    DIR *directory = opendir(sink->options.directory);
    if (directory == NULL) {
        return tp_fail(error, tp_status_from_errno(errno), "can't read %s: %s",
                       sink->options.directory, strerror(errno));
    }
    const struct dirent *entry;
    while (status == TP_OK && (entry = readdir(directory)) != NULL) {
        size_t length = strlen(entry->d_name);
        if (length > sizeof SUFFIX && strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) == 0 &&
            strcmp(entry->d_name + length - (sizeof SUFFIX - 1), SUFFIX) == 0 &&
            strcmp(entry->d_name, sink->name) > 0) {
            status = tp_path_join(path, sink->options.directory, entry->d_name);
            if (status == TP_OK && unlink(path) != 0) {
                status = tp_fail(error, tp_status_from_errno(errno), "can't remove %s: %s", path,
                                 strerror(errno));
            }
        }
    }
    closedir(directory);
    return status;
}

/* Cursor: offset (u64), then the name of the file. */
static tp_status tensorboard_open(void *private, const tp_sink_options *options,
                                  const uint8_t *cursor, size_t cursor_size, tp_error *error)
{
    tensorboard *sink = private;
    char path[TP_PATH_MAX];
    sink->options = *options;
    sink->fd = -1;
    sink->explains = cursor_size <= 8;
    if (cursor_size <= 8) {
        return remove_leftovers(sink, error);
    }
    if (cursor_size - 8 >= sizeof sink->name) {
        return tp_fail(error, TP_ERR_CORRUPT, "the cursor of the event file has a wrong size");
    }
    uint64_t offset = tp_get_u64(cursor);
    memcpy(sink->name, cursor + 8, cursor_size - 8);
    tp_status status = file_path(sink, path, error);
    if (status == TP_OK) {
        status = remove_leftovers(sink, error);
    }
    if (status == TP_OK) {
        status = tp_file_append(path, &sink->fd, &sink->size, error);
    }
    if (status != TP_OK) {
        return status;
    }
    if (sink->size < offset) {
        /* Somebody else cut or removed it: readers stop at a torn frame, so go on in a new file. */
        tp_log(TP_LOG_WARNING, "%s is shorter than it was left: events are missing", path);
        tp_file_close(sink->fd);
        sink->fd = -1;
        return TP_OK;
    }
    sink->size = offset;
    return tp_file_truncate(sink->fd, path, offset, error);
}

static bool tensorboard_is_whole(const tp_sink_options *options, const uint8_t *cursor,
                                 size_t cursor_size)
{
    char name[NAME_MAX + 1] = "";
    char path[TP_PATH_MAX];
    if (cursor_size <= 8 || cursor_size - 8 >= sizeof name) {
        return true;
    }
    memcpy(name, cursor + 8, cursor_size - 8);
    return tp_path_join(path, options->directory, name) != TP_OK ||
           tp_file_has(path, tp_get_u64(cursor));
}

static void tensorboard_cursor(const void *private, tp_buf *out)
{
    const tensorboard *sink = private;
    tp_buf_put_u64(out, sink->size);
    tp_buf_put(out, sink->name, strlen(sink->name));
}

static uint64_t tensorboard_bytes(const void *private)
{
    const tensorboard *sink = private;
    return sink->bytes;
}

static void tensorboard_close(void *private)
{
    tensorboard *sink = private;
    tp_file_close(sink->fd);
    tp_blocks_free(&sink->values);
    for (size_t at = 0; at < sink->maps.size; at += sizeof(tp_heatmap *)) {
        tp_heatmap *map;
        memcpy(&map, sink->maps.data + at, sizeof map);
        tp_heatmap_free(map);
    }
    tp_buf_free(&sink->maps);
    tp_map_free(&sink->map_places);
    tp_merged_free(&sink->merged);
    tp_buf_free(&sink->block);
    tp_buf_free(&sink->summary);
    tp_buf_free(&sink->frames);
}

const tp_sink tp_sink_tensorboard = {
    .name = "tensorboard",
    .private_size = sizeof(tensorboard),
    .open = tensorboard_open,
    .is_whole = tensorboard_is_whole,
    .write = tensorboard_write,
    .rewind = tensorboard_rewind,
    .cursor = tensorboard_cursor,
    .bytes = tensorboard_bytes,
    .close = tensorboard_close,
};
