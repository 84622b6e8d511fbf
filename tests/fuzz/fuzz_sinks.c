/* Cursors of the sinks with any bytes in them, over files that may have been cut: a sink opens or says
 * no, and what it writes then it can go on with. The first byte says which sink and how much of the
 * files is there; then pairs say which byte of its good cursor is which instead. */
#include "driver.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "record/registry.h"
#include "sinks/sink.h"

static const tp_sink *const sinks[] = {&tp_sink_csv, &tp_sink_tensorboard, &tp_sink_anomaly,
                                       &tp_sink_sqlite};
static char directory[] = "/tmp/tp_fuzz_XXXXXX";
static tp_registry *registry;

static void check(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* Removes the files, or cuts them to a share. */
static void cut_files(unsigned share)
{
    const struct dirent *entry;
    DIR *listing = opendir(directory);
    check(listing != NULL);
    while ((entry = readdir(listing)) != NULL) {
        char path[TP_PATH_MAX];
        int fd = -1;
        uint64_t size;
        if (entry->d_name[0] == '.' || tp_path_join(path, directory, entry->d_name) != TP_OK) {
            continue;
        }
        if (share == 0) {
            unlink(path);
        } else if (share < 3 && tp_file_append(path, &fd, &size, NULL) == TP_OK) {
            check(tp_file_truncate(fd, path, size * share / 3, NULL) == TP_OK);
            tp_file_close(fd);
        }
    }
    closedir(listing);
}

static void clean_up(void)
{
    cut_files(0);
    rmdir(directory);
    tp_registry_free(registry);
}

static const tp_key *get_key(const void *source, uint32_t id)
{
    return tp_registry_key(source, id);
}

static const int64_t *get_shape(const void *source, uint32_t id, uint32_t *ndim)
{
    return tp_registry_shape(source, id, ndim);
}

static void begin(void)
{
    const tp_key key = {.name = "w", .slot = -1, .quantity = TP_GRAD_REDUCED};
    uint32_t id;
    if (registry == NULL) {
        check(mkdtemp(directory) != NULL && tp_registry_new(&registry) == TP_OK);
        check(tp_registry_add_key(registry, &key, &id) == TP_OK);
        check(tp_registry_add_shape(registry, 0, NULL, &id) == TP_OK);
        atexit(clean_up);
    }
}

/* Opens the sink with this cursor, writes a step with an alert, and gives the next cursor. */
static tp_status write_step(const tp_sink *sink, tp_buf *cursor, uint64_t step)
{
    static const uint32_t ops[] = {TP_OP_MAX, TP_OP_NORM};
    const tp_sink_options options = {.directory = directory,
                                     .rank = 3,
                                     .op_count = 2,
                                     .ops = ops,
                                     .steps_per_file = 4,
                                     .max_tags = 100};
    const tp_names names = {registry, get_key, get_shape};
    tp_error error;
    tp_record record = {.state = TP_SLOT_DONE, .kind = TP_RECORD_STATS, .dtype = TP_F64};
    tp_record alert = {.state = TP_SLOT_DONE, .kind = TP_RECORD_ALERT};
    alert.u.alert = (tp_alert){.rule = TP_RULE_ANOMALY_NAN, .op = TP_OP_NORM};
    const tp_batch batch = {.step = step, .count = 1, .records = &record};
    void *private = tp_calloc(1, sink->private_size);
    check(private != NULL);
    if (cursor->size > 0) {
        (void)sink->is_whole(&options, cursor->data, cursor->size);
    }
    tp_status status = sink->open(private, &options, cursor->data, cursor->size, &error);
    if (status == TP_OK) {
        status = sink->write(private, &batch, &names, &error);
    }
    if (status == TP_OK && sink->write_alerts != NULL) {
        status = sink->write_alerts(private, step, &alert, 1, &names, &error);
    }
    if (status == TP_OK && step % 3 == 0) {
        status = sink->rewind(private, step > 0 ? step - 1 : 0, &error);
    }
    if (status == TP_OK && sink->flush != NULL) {
        status = sink->flush(private, &error);
    }
    if (status == TP_OK) {
        tp_buf_clear(cursor);
        sink->cursor(private, cursor);
    }
    sink->close(private);
    tp_free(private);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tp_buf cursor = TP_BUF_INIT;
    if (size == 0) {
        return 0;
    }
    begin();
    cut_files(0);
    const tp_sink *sink = sinks[data[0] % 4];
    check(write_step(sink, &cursor, 1) == TP_OK);
    check(write_step(sink, &cursor, 2) == TP_OK);
    for (size_t i = 1; i + 1 < size && i < 64; i += 2) {
        if (cursor.size > 0) {
            cursor.data[data[i] % cursor.size] = data[i + 1];
        }
    }
    cut_files(1 + data[0] / 4 % 3);
    if (write_step(sink, &cursor, 3) == TP_OK) {
        check(write_step(sink, &cursor, 4) == TP_OK);
    }
    tp_buf_free(&cursor);
    return 0;
}

size_t tp_fuzz_seed(uint8_t *data, size_t capacity)
{
    static const uint8_t seed[] = {0, 16, 1, 24, 0, 40, 7, 56, 200};
    check(capacity >= sizeof seed);
    memcpy(data, seed, sizeof seed);
    return sizeof seed;
}
