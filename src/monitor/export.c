#include "monitor/export.h"

#include <stdbool.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "monitor/follow.h"
#include "monitor/follower.h"

static tp_status write_item(const tp_sink *sink, void *private, const tp_item *item,
                            const tp_names *names, uint64_t *steps, tp_error *error)
{
    const tp_batch *batch = &item->batch;
    if (item->type == TP_ITEM_ALERTS && sink->write_alerts != NULL) {
        return sink->write_alerts(private, batch->step, batch->records, batch->count, names, error);
    }
    if (item->type != TP_ITEM_BATCH || (batch->flags & (TP_BATCH_PARTIAL | TP_BATCH_GAP)) != 0) {
        return TP_OK;
    }
    *steps += 1;
    return sink->write(private, batch, names, error);
}

/* A sink remembers series by the numbers of their keys, which are those of one attempt: in front of
 * another one it is opened anew where it stands. */
static tp_status open_again(const tp_sink *sink, void *private, const tp_sink_options *options,
                            tp_error *error)
{
    tp_buf cursor = TP_BUF_INIT;
    tp_status status = sink->flush != NULL ? sink->flush(private, error) : TP_OK;
    sink->cursor(private, &cursor);
    sink->close(private);
    memset(private, 0, sink->private_size);
    tp_status opened = sink->open(private, options, cursor.data, cursor.size, error);
    if (cursor.failed) {
        opened = tp_fail(error, TP_ERR_NOMEM, "no memory to export");
    }
    tp_buf_free(&cursor);
    return status != TP_OK ? status : opened;
}

static void say_removed(uint64_t removed, uint64_t last, const tp_sink_options *options)
{
    if (removed > 0) {
        tp_log(TP_LOG_WARNING,
               "%llu step%s up to step %llu ha%s been removed to keep the journal small, and %s "
               "not in %s",
               (unsigned long long)removed, tp_plural(removed), (unsigned long long)last,
               removed == 1 ? "s" : "ve", removed == 1 ? "is" : "are", options->directory);
    }
}

static tp_status write_all(const tp_sink *sink, void *private, const tp_sink_options *options,
                           tp_reader *reader, uint64_t *steps, tp_error *error)
{
    const tp_names names = tp_names_of_reader(reader);
    tp_status status = TP_OK;
    bool any = false;
    uint32_t attempt = 0;
    uint64_t removed = 0;
    uint64_t removed_last = 0;
    while (status == TP_OK) {
        tp_item item;
        char text[1024];
        status = tp_reader_next(reader, &item, error);
        if (status == TP_OK && item.type == TP_ITEM_BATCH) {
            if (any && item.batch.attempt != attempt) {
                status = open_again(sink, private, options, error);
            }
            any = true;
            attempt = item.batch.attempt;
        } else if (status == TP_OK && item.type == TP_ITEM_REMOVED) {
            removed += item.batch.count;
            removed_last = item.removed_last;
        }
        if (status == TP_OK) {
            status = write_item(sink, private, &item, &names, steps, error);
        } else if (status == TP_ERR_CORRUPT) {
            tp_log(TP_LOG_WARNING, "%s", tp_error_format(error, text, sizeof text));
            status = TP_OK;
        }
    }
    if (status == TP_END) {
        say_removed(removed, removed_last, options);
        status = sink->flush != NULL ? sink->flush(private, error) : TP_OK;
    }
    return status;
}

tp_status tp_export_journal(const char *journal, const char *name, const char *directory,
                            uint64_t *steps, tp_error *error)
{
    uint32_t ops[TP_OP_COUNT];
    tp_sink_options options = {.directory = journal};
    tp_reader *reader = NULL;
    const tp_sink *sink = tp_follow_sink(name);
    *steps = 0;
    tp_status status = tp_follow_options(sink, &options, ops, error);
    if (status == TP_OK) {
        status = tp_reader_open(&reader, journal, error);
    }
    if (status != TP_OK) {
        return status;
    }
    options.directory = directory;
    options.rank = tp_reader_run(reader)->rank;
    void *private = tp_calloc(1, sink->private_size);
    if (private == NULL) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory to export %s", journal);
    } else {
        status = sink->open(private, &options, NULL, 0, error);
        if (status == TP_OK) {
            status = write_all(sink, private, &options, reader, steps, error);
        }
        sink->close(private);
        tp_free(private);
    }
    tp_reader_close(&reader);
    return status;
}
