#include "journal/writer.h"

#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "journal/definitions.h"
#include "journal/digest.h"
#include "journal/frame.h"
#include "journal/index.h"
#include "journal/overview.h"
#include "journal/records.h"

struct tp_journal {
    char folder[TP_PATH_MAX];
    char path[TP_PATH_MAX]; /* of the segment */
    tp_run_info run;
    const tp_registry *registry;
    uint64_t segment_bytes;
    tp_buf settings; /* empty: none are told */
    tp_retention limits;
    bool has_warned; /* that they can't be kept */
    bool has_warned_of_waiting;
    uint64_t bytes;  /* since open */
    tp_position end; /* of what has been written */
    uint64_t segment;
    uint64_t size;          /* of the segment up to its last good frame */
    uint64_t front;         /* bytes in front of its first frame that is indexed */
    int fd;                 /* -1: the next append begins a new segment */
    uint32_t keys;          /* defined in this segment */
    uint32_t shapes;        /* likewise */
    tp_index index;         /* of the segment */
    tp_overviews overviews; /* likewise */
    tp_digests digests;     /* likewise */
    ZSTD_CCtx *packer;
    tp_buf payload;
    tp_buf out; /* what one append writes */
};

/* Opens a file for journal->segment, or for the first one behind it that is new or empty. */
static tp_status open_segment(tp_journal *journal, tp_error *error)
{
    for (uint64_t size = 1; size > 0; journal->segment++) {
        tp_status status = tp_segment_path(journal->path, journal->folder, journal->segment);
        if (status != TP_OK) {
            return tp_fail(error, status, "path is too long: %.100s", journal->folder);
        }
        status = tp_file_append(journal->path, &journal->fd, &size, error);
        if (status != TP_OK && tp_file_is_link(journal->path)) {
            tp_log(TP_LOG_WARNING, "%s is a symbolic link, which is not followed", journal->path);
            size = 1;
            continue;
        }
        if (status != TP_OK) {
            return status;
        }
        if (size > 0) {
            tp_file_close(journal->fd);
            journal->fd = -1;
        }
    }
    journal->segment--;
    journal->size = 0;
    journal->keys = 0;
    journal->shapes = 0;
    tp_index_clear(&journal->index);
    tp_overviews_clear(&journal->overviews);
    tp_digests_clear(&journal->digests);
    return TP_OK;
}

static void leave_segment(tp_journal *journal)
{
    tp_file_close(journal->fd);
    journal->fd = -1;
    journal->segment++;
}

/* Writes journal->out in one piece. A failure leaves no trace: what got into the file is cut off,
 * and if even that fails the file is left to its torn tail, which readers ignore once a later
 * segment is there. */
static tp_status write_out(tp_journal *journal, tp_error *error)
{
    if (journal->out.failed) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory to append to %s", journal->path);
    }
    tp_status status =
        tp_file_write(journal->fd, journal->path, journal->out.data, journal->out.size, error);
    if (status != TP_OK) {
        if (tp_file_truncate(journal->fd, journal->path, journal->size, NULL) != TP_OK) {
            leave_segment(journal);
        }
        return status;
    }
    journal->size += journal->out.size;
    journal->bytes += journal->out.size;
    journal->end = (tp_position){journal->segment, journal->size};
    return TP_OK;
}

/* Puts journal->payload, cut into pieces or not, behind what out holds already. */
static tp_status put_frame_cut(tp_journal *journal, uint32_t type, uint64_t step,
                               const tp_frame_cut *cut, tp_error *error)
{
    if (journal->payload.failed) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory to append to %s", journal->path);
    }
    tp_status status =
        tp_frame_put_cut(&journal->out, type, step, journal->size + journal->out.size,
                         &journal->payload, cut, journal->packer);
    if (status != TP_OK) {
        return tp_fail(error, status, "step %llu is too large for a journal: %zu bytes",
                       (unsigned long long)step, journal->payload.size);
    }
    return TP_OK;
}

static tp_status put_frame(tp_journal *journal, uint32_t type, uint64_t step, tp_error *error)
{
    const tp_frame_cut whole = {.head = journal->payload.size};
    return put_frame_cut(journal, type, step, &whole, error);
}

static tp_status put_digests(tp_journal *journal)
{
    tp_status status = TP_OK;
    tp_digests_finish(&journal->digests);
    for (uint32_t part = 0;
         part < TP_DIGEST_OF_STAT + TP_DIGEST_STATS && status == TP_OK && !journal->digests.failed;
         part++) {
        const uint64_t offset = journal->size + journal->out.size;
        tp_buf_clear(&journal->payload);
        tp_digests_put(&journal->payload, &journal->digests, part);
        status = put_frame(journal, TP_FRAME_DIGEST, 0, NULL);
        if (status == TP_OK) {
            tp_index_add(&journal->index, TP_FRAME_DIGEST, 0, offset, part);
        }
    }
    return status;
}

/* What a reader finds its way by: overviews and digests, then the index, and in the payload where
 * that lies. */
static tp_status put_index(tp_journal *journal)
{
    tp_overviews_finish(&journal->overviews);
    for (uint32_t level = 0; level <= TP_OVERVIEW_LEVELS; level++) {
        if (!tp_overviews_keeps(&journal->overviews, level)) {
            continue;
        }
        const uint64_t offset = journal->size + journal->out.size;
        tp_buf_clear(&journal->payload);
        tp_overviews_put(&journal->payload, &journal->overviews, level);
        const tp_status status = put_frame(journal, TP_FRAME_OVERVIEW, 0, NULL);
        if (status != TP_OK) {
            return status;
        }
        tp_index_add(&journal->index, TP_FRAME_OVERVIEW, 0, offset, level);
    }
    if (journal->size >= TP_DIGEST_LEAST_BYTES && put_digests(journal) != TP_OK) {
        return TP_ERR_NOMEM;
    }
    const uint64_t offset = journal->size + journal->out.size;
    tp_buf_clear(&journal->payload);
    tp_index_put(&journal->payload, &journal->index);
    if (journal->index.entries.failed) {
        return TP_ERR_NOMEM;
    }
    const tp_status status = put_frame(journal, TP_FRAME_INDEX, 0, NULL);
    tp_buf_clear(&journal->payload);
    tp_buf_put_u64(&journal->payload, offset);
    return status;
}

/* Ends the segment behind what out holds: index and mark; when they can't be written, the mark
 * alone. */
static tp_status put_end(tp_journal *journal, uint32_t type, tp_error *error)
{
    const size_t before = journal->out.size;
    tp_status status = put_index(journal);
    if (status == TP_OK) {
        status = put_frame(journal, type, 0, error);
    }
    if (status == TP_OK) {
        status = write_out(journal, error);
    }
    if (status != TP_OK && journal->fd >= 0) {
        journal->out.size = before;
        journal->out.failed = false;
        tp_buf_clear(&journal->payload);
        status = put_frame(journal, type, 0, error);
        if (status == TP_OK) {
            status = write_out(journal, error);
        }
    }
    return status;
}

/* Says once each what can't be kept, and what is lost to whom. */
static void keep_limits(tp_journal *journal)
{
    tp_error error;
    tp_waiting waiting;
    if (tp_retention_apply(&journal->limits, journal->folder, journal->segment, &waiting, &error) !=
            TP_OK &&
        !journal->has_warned) {
        journal->has_warned = true;
        tp_log(TP_LOG_WARNING, "the journal grows beyond what is to be kept: %s", error.message);
    }
    if (waiting.segments > 0 && !journal->has_warned_of_waiting) {
        journal->has_warned_of_waiting = true;
        tp_log(TP_LOG_WARNING,
               "%s: steps are removed that %s has not come to: the journal had grown to twice of "
               "what is to be kept",
               journal->folder, waiting.cursor);
    }
}

/* A full segment ends in a mark, so that damage to its last step shows. When the mark can't be
 * written, the segment ends without: the journal itself is not worse for it. */
static void end_segment(tp_journal *journal)
{
    tp_buf_clear(&journal->out);
    (void)put_end(journal, TP_FRAME_CONTINUED, NULL);
    if (journal->fd >= 0) {
        leave_segment(journal);
    }
    if (journal->limits.bytes > 0 || journal->limits.seconds > 0) {
        keep_limits(journal);
    }
}

void tp_journal_begin_attempt(tp_journal *journal, uint32_t attempt)
{
    if (journal->run.attempt != attempt && journal->fd >= 0) {
        end_segment(journal);
    }
    journal->run.attempt = attempt;
}

/* Begins an append in out: a header when the segment is new, then definitions that it lacks. */
static tp_status begin(tp_journal *journal, uint32_t keys, uint32_t shapes, uint64_t step,
                       tp_error *error)
{
    if (journal->fd >= 0 && tp_file_is_removed(journal->fd)) {
        tp_log(TP_LOG_WARNING, "%s was removed: going on in a new segment", journal->path);
        leave_segment(journal);
    }
    if (journal->fd >= 0 &&
        (journal->size >= journal->segment_bytes || tp_overviews_are_large(&journal->overviews))) {
        end_segment(journal);
    }
    if (journal->fd < 0) {
        tp_status status = tp_dir_make_in(journal->folder, error);
        if (status == TP_OK) {
            status = open_segment(journal, error);
        }
        if (status != TP_OK) {
            return status;
        }
    }
    tp_buf_clear(&journal->out);
    if (journal->size == 0) {
        tp_segment_header_put(&journal->out, &journal->run, journal->segment);
        if (journal->settings.size > 0) {
            (void)tp_frame_put(&journal->out, TP_FRAME_SETTINGS, 0, journal->out.size,
                               &journal->settings, journal->packer);
        }
        journal->front = journal->out.size;
    }
    if (journal->keys < keys || journal->shapes < shapes) {
        tp_buf_clear(&journal->payload);
        tp_definitions_put(&journal->payload, journal->registry, journal->keys, keys,
                           journal->shapes, shapes);
        return put_frame(journal, TP_FRAME_DEFINITIONS, step, error);
    }
    return TP_OK;
}

static const tp_key *key_of(const void *registry, uint32_t key)
{
    return tp_registry_key(registry, key);
}

/* Remembers the frames of an append that has been written: definitions at the first offset, if
 * there are any, and the frame behind them. */
static void remember(tp_journal *journal, uint32_t type, uint64_t step, uint64_t definitions,
                     uint64_t frame, const tp_batch *batch)
{
    if (definitions < frame) {
        tp_index_add(&journal->index, TP_FRAME_DEFINITIONS, step, definitions, 0);
    }
    tp_index_add(&journal->index, type, step, frame, 0);
    if (type == TP_FRAME_BATCH) {
        tp_overviews_add(&journal->overviews, batch);
        tp_digests_add(&journal->digests, batch, frame, key_of, journal->registry);
    }
}

/* One append: all that is known by now is defined in front of the frame, whose payload `fill`
 * makes. */
static tp_status append(tp_journal *journal, uint32_t type, uint64_t step,
                        void (*fill)(tp_buf *payload, const tp_batch *batch), const tp_batch *batch,
                        tp_error *error)
{
    uint32_t keys = tp_registry_key_count(journal->registry);
    uint32_t shapes = tp_registry_shape_count(journal->registry);
    tp_status status = begin(journal, keys, shapes, step, error);
    if (status != TP_OK) {
        return status;
    }
    const uint64_t definitions = journal->size + (journal->size == 0 ? journal->front : 0);
    const uint64_t frame = journal->size + journal->out.size;
    tp_buf_clear(&journal->payload);
    fill(&journal->payload, batch);
    const tp_frame_cut cut = tp_records_cut(batch);
    const tp_frame_cut whole = {.head = journal->payload.size};
    status = put_frame_cut(journal, type, step, type == TP_FRAME_BATCH ? &cut : &whole, error);
    if (status == TP_OK) {
        status = write_out(journal, error);
    }
    if (status == TP_OK) {
        journal->keys = keys;
        journal->shapes = shapes;
        remember(journal, type, step, definitions, frame, batch);
    }
    return status;
}

tp_status tp_journal_open(tp_journal **out, const char *directory, const tp_run_info *run,
                          const tp_registry *registry, uint64_t segment_bytes, tp_error *error)
{
    uint64_t next;
    uint64_t last;
    tp_journal *journal = tp_calloc(1, sizeof *journal);
    if (journal == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory to open a journal");
    }
    journal->run = *run;
    journal->registry = registry;
    journal->segment_bytes = segment_bytes != 0 ? segment_bytes : TP_JOURNAL_SEGMENT_BYTES;
    journal->fd = -1;
    tp_status status = tp_path_join(journal->folder, directory, "journal");
    if (status != TP_OK) {
        tp_fail(error, status, "path is too long: %.100s", directory);
        goto fail;
    }
    status = tp_segment_find(journal->folder, 0, &next, &last);
    if (status == TP_OK) {
        journal->segment = last; /* taken only when it is empty: an earlier open that failed */
    } else if (status != TP_ERR_NOTFOUND) {
        tp_fail(error, status, "can't list %s", journal->folder);
        goto fail;
    }
    journal->packer = ZSTD_createCCtx();
    if (journal->packer == NULL) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory to open a journal");
        goto fail;
    }
    status = begin(journal, 0, 0, 0, error);
    if (status != TP_OK) {
        goto fail;
    }
    status = write_out(journal, error);
    if (status != TP_OK) {
        goto fail;
    }
    *out = journal;
    return TP_OK;
fail:
    tp_file_close(journal->fd);
    ZSTD_freeCCtx(journal->packer);
    tp_buf_free(&journal->payload);
    tp_buf_free(&journal->out);
    tp_free(journal);
    return status;
}

static void fill_batch(tp_buf *payload, const tp_batch *batch)
{
    tp_records_put_batch(payload, batch);
}

static void fill_alerts(tp_buf *payload, const tp_batch *alerts)
{
    tp_records_put_alerts(payload, alerts->records, alerts->count);
}

tp_status tp_journal_append_batch(tp_journal *journal, const tp_batch *batch, tp_error *error)
{
    return append(journal, TP_FRAME_BATCH, batch->step, fill_batch, batch, error);
}

tp_status tp_journal_append_alerts(tp_journal *journal, uint64_t step, const tp_record *alerts,
                                   uint64_t count, tp_error *error)
{
    const tp_batch batch = {.step = step, .count = count, .records = alerts};
    return append(journal, TP_FRAME_ALERTS, step, fill_alerts, &batch, error);
}

void tp_journal_tell(tp_journal *journal, const tp_buf *settings)
{
    tp_buf_clear(&journal->settings);
    tp_buf_put_buf(&journal->settings, settings);
    if (journal->settings.failed) {
        tp_buf_clear(&journal->settings);
    }
    if (journal->fd >= 0 && journal->size == TP_SEGMENT_HEADER_SIZE && journal->settings.size > 0) {
        tp_buf_clear(&journal->out);
        if (tp_frame_put(&journal->out, TP_FRAME_SETTINGS, 0, journal->size, &journal->settings,
                         journal->packer) == TP_OK) {
            (void)write_out(journal, NULL); /* the next segment tells them */
        }
    }
}

void tp_journal_keep(tp_journal *journal, const tp_retention *limits)
{
    journal->limits = *limits;
}

tp_position tp_journal_position(const tp_journal *journal)
{
    return journal->end;
}

uint64_t tp_journal_bytes(const tp_journal *journal)
{
    return journal->bytes;
}

void tp_journal_leave(tp_journal **journal)
{
    tp_journal *closing = *journal;
    if (closing != NULL) {
        tp_file_close(closing->fd);
        ZSTD_freeCCtx(closing->packer);
        tp_buf_free(&closing->payload);
        tp_buf_free(&closing->out);
        tp_index_free(&closing->index);
        tp_overviews_free(&closing->overviews);
        tp_digests_free(&closing->digests);
        tp_buf_free(&closing->settings);
        tp_free(closing);
        *journal = NULL;
    }
}

tp_status tp_journal_close(tp_journal **journal, tp_error *error)
{
    tp_journal *closing = *journal;
    if (closing == NULL) {
        return TP_OK;
    }
    tp_status status = begin(closing, closing->keys, closing->shapes, 0, error);
    if (status == TP_OK) {
        status = put_end(closing, TP_FRAME_CLOSE, error);
    }
    tp_journal_leave(journal);
    return status;
}
