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
#include "base/crc32c.h"
#include "base/file.h"
#include "base/log.h"
#include "event.pb-c.h"
#include "sinks/series.h"

#define PREFIX "events.out.tfevents."
#define SUFFIX ".tensorprobe"
#define DT_FLOAT 1
#define DATA_CLASS_SCALAR 1
#define SESSION_START 1
#define FRAME_HEADER 12 /* length, and its checksum */

/* A packed value that is not announced ends in float_val (4 bytes), two bytes of double_val's tag
 * and length, and double_val (8 bytes). */
#define FLOAT_FROM_END 14
#define DOUBLE_FROM_END 8

typedef struct tensorboard {
    tp_sink_options options;
    char name[NAME_MAX + 1]; /* of the file; "": none yet */
    int fd;
    uint64_t size;
    uint64_t bytes;
    tp_blocks values; /* packed values of a series, see append_values */
    tp_buf block;
    tp_buf summary;
    tp_buf frames;
} tensorboard;

static void put_packed(tp_buf *out, const ProtobufCMessage *message)
{
    uint8_t *room = tp_buf_extend(out, protobuf_c_message_get_packed_size(message));
    if (room != NULL) {
        protobuf_c_message_pack(message, room);
    }
}

/* A Summary with one value. Summaries can be joined end to end: that is how protobuf repeats. */
static void put_value(tp_buf *out, char *tag, double value, bool announce)
{
    static char plugin_name[] = "scalars";
    TpEvent__PluginData plugin;
    TpEvent__SummaryMetadata metadata;
    TpEvent__TensorShape shape;
    TpEvent__Tensor tensor;
    TpEvent__Value one;
    TpEvent__Summary summary;
    TpEvent__Value *values[] = {&one};
    float shown = (float)value;
    tp_event__plugin_data__init(&plugin);
    tp_event__summary_metadata__init(&metadata);
    tp_event__tensor_shape__init(&shape);
    tp_event__tensor__init(&tensor);
    tp_event__value__init(&one);
    tp_event__summary__init(&summary);
    plugin.plugin_name = plugin_name;
    metadata.plugin_data = &plugin;
    metadata.data_class = DATA_CLASS_SCALAR;
    tensor.dtype = DT_FLOAT;
    tensor.tensor_shape = &shape;
    tensor.n_float_val = 1;
    tensor.float_val = &shown;
    tensor.n_double_val = 1;
    tensor.double_val = &value;
    one.tag = tag;
    one.tensor = &tensor;
    one.metadata = announce ? &metadata : NULL;
    summary.n_value = 1;
    summary.value = values;
    put_packed(out, &summary.base);
}

/* As torch's SummaryWriter writes one; of the elements that are in its bins. */
static void put_histogram(tp_buf *out, char *tag, const tp_histogram *histogram, tp_buf *numbers)
{
    TpEvent__Histogram histo;
    TpEvent__Value one;
    TpEvent__Summary summary;
    TpEvent__Value *values[] = {&one};
    const uint32_t n = histogram->bin_count;
    const double width = (histogram->high - histogram->low) / n;
    tp_buf_clear(numbers);
    double *limits = tp_buf_extend(numbers, 2 * (size_t)n * sizeof(*limits));
    if (limits == NULL) {
        out->failed = true;
        return;
    }
    double *counts = limits + n;
    tp_event__histogram__init(&histo);
    for (uint32_t i = 0; i < n; i++) {
        const double middle = histogram->low + width * (i + 0.5); /* the elements' own are lost */
        limits[i] = i + 1 < n ? histogram->low + width * (i + 1) : histogram->high;
        counts[i] = (double)histogram->bins[i];
        histo.num += counts[i];
        histo.sum += counts[i] * middle;
        histo.sum_squares += counts[i] * middle * middle;
    }
    histo.min = histogram->low;
    histo.max = histogram->high;
    histo.n_bucket_limit = n;
    histo.bucket_limit = limits;
    histo.n_bucket = n;
    histo.bucket = counts;
    tp_event__value__init(&one);
    tp_event__summary__init(&summary);
    one.tag = tag;
    one.histo = &histo;
    summary.n_value = 1;
    summary.value = values;
    put_packed(out, &summary.base);
}

static uint32_t mask_crc(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + UINT32_C(0xa282ead8);
}

/* Appends the event as a TFRecord: length, its masked CRC-32C, data, its masked CRC-32C. */
static void put_frame(tp_buf *out, const TpEvent__Event *event)
{
    size_t length = protobuf_c_message_get_packed_size(&event->base);
    size_t start = out->size;
    tp_buf_put_u64(out, length);
    tp_buf_put_u32(out, out->failed ? 0 : mask_crc(tp_crc32c(0, out->data + start, 8)));
    put_packed(out, &event->base);
    tp_buf_put_u32(
        out, out->failed ? 0 : mask_crc(tp_crc32c(0, out->data + start + FRAME_HEADER, length)));
}

/* First time that a series is seen in this run: its values are packed with the plugin's name, and
 * without it for all later steps, as (op, size, bytes), …  */
static tp_status announce_values(tensorboard *sink, const tp_series *series,
                                 const tp_record *record, const tp_key *key, uint32_t ndim)
{
    char series_tag[TP_TAG_MAX];
    char tag[TP_TAG_MAX + 16];
    tp_series_tag(key, record, sink->options.rank, series_tag);
    tp_buf_clear(&sink->block);
    const tp_columns columns = tp_columns_of(key->quantity, &sink->options);
    for (uint32_t i = 0; i < columns.count; i++) {
        uint32_t op = columns.ops[i];
        if (op == TP_OP_SHAPE || op == TP_OP_DTYPE || (op == TP_OP_ID && ndim > 0)) {
            continue;
        }
        /* A scalar is its own statistic. */
        snprintf(tag, sizeof tag, "%s%s%s", series_tag, key->quantity == TP_SCALAR ? "" : "_",
                 key->quantity == TP_SCALAR ? "" : tp_op_name(op));
        put_value(&sink->summary, tag, tp_column_value(record, op, ndim), true);
        tp_buf_put_u32(&sink->block, op);
        size_t place = sink->block.size;
        tp_buf_put_u32(&sink->block, 0);
        put_value(&sink->block, tag, 0, false);
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
                memcpy(end - FLOAT_FROM_END, &shown, sizeof shown);
                memcpy(end - DOUBLE_FROM_END, &value, sizeof value);
            }
        }
        at += 8 + (size_t)size;
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
    if (tp_quantity_name(key->quantity) == NULL) {
        return TP_OK; /* of a newer version: it has no tag */
    }
    tp_histogram histogram;
    if (tp_batch_histogram(batch, record, &histogram) == TP_OK && histogram.bin_count > 0) {
        char tag[TP_TAG_MAX];
        tp_series_tag(key, record, sink->options.rank, tag);
        put_histogram(&sink->summary, tag, &histogram, &sink->block);
    }
    const tp_series series = {record->key, record->call,
                              tp_has_micro_step(key->quantity) ? record->micro_step : 0};
    size_t size = 0;
    const uint8_t *block = tp_blocks_find(&sink->values, &series, &size);
    if (block != NULL) {
        append_values(sink, block, size, record, ndim);
        return TP_OK;
    }
    if (announce_values(sink, &series, record, key, ndim) != TP_OK) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for tags");
    }
    return TP_OK;
}

static tp_status file_path(const tensorboard *sink, char path[TP_PATH_MAX], tp_error *error)
{
    tp_status status = tp_path_join(path, sink->options.directory, sink->name);
    if (status != TP_OK) {
        return tp_fail(error, status, "path is too long: %s", sink->options.directory);
    }
    return TP_OK;
}

/* Opens a new file and puts its first event in front of what is to be written. */
static tp_status begin_file(tensorboard *sink, tp_error *error)
{
    char host[256] = "localhost";
    char path[TP_PATH_MAX];
    char version[] = "brain.Event:2";
    int64_t now = tp_clock_wall();
    gethostname(host, sizeof host - 1);
    host[sizeof host - 1] = '\0';
    int length = snprintf(sink->name, sizeof sink->name, PREFIX "%" PRId64 ".%.100s.%ld" SUFFIX,
                          now / 1000000000, host, (long)getpid());
    if (length < 0 || (size_t)length >= sizeof sink->name) {
        return tp_fail(error, TP_ERR_ARGUMENT, "name of the event file is too long");
    }
    tp_status status = file_path(sink, path, error);
    if (status == TP_OK) {
        status = tp_file_append(path, &sink->fd, &sink->size, error);
    }
    if (status == TP_OK && sink->size > 0) {
        sink->size = 0;
        status = tp_file_truncate(sink->fd, path, 0, error);
    }
    TpEvent__Event event;
    tp_event__event__init(&event);
    event.wall_time = (double)now * 1e-9;
    event.file_version = version;
    put_frame(&sink->frames, &event);
    return status;
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
    put_frame(&sink->frames, &event);
    put_frame(&sink->frames, &event);
    return status == TP_OK ? write_frames(sink, error) : status;
}

static tp_status tensorboard_write(void *private, const tp_batch *batch, const tp_names *names,
                                   tp_error *error)
{
    tensorboard *sink = private;
    tp_status status = TP_OK;
    tp_buf_clear(&sink->summary);
    tp_buf_clear(&sink->frames);
    for (uint64_t i = 0; i < batch->count && status == TP_OK; i++) {
        if (batch->records[i].kind == TP_RECORD_STATS) {
            status = put_record(sink, batch, &batch->records[i], names, error);
        }
    }
    if (status == TP_OK && sink->fd < 0) {
        status = begin_file(sink, error);
    }
    if (status != TP_OK) {
        return status;
    }
    TpEvent__Event event;
    tp_event__event__init(&event);
    event.wall_time = (double)batch->wall_ns * 1e-9;
    event.step = (int64_t)batch->step;
    event.summary = (ProtobufCBinaryData){sink->summary.size, sink->summary.data};
    put_frame(&sink->frames, &event);
    sink->frames.failed = sink->frames.failed || sink->summary.failed;
    return write_frames(sink, error);
}

/* Event files that no cursor speaks of would show their steps twice: TensorBoard reads all of a
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
            strcmp(entry->d_name + length - (sizeof SUFFIX - 1), SUFFIX) == 0) {
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
