#include "tensorprobe/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/mem.h"
#include "journal/attempts.h"
#include "journal/definitions.h"
#include "journal/frame.h"
#include "journal/index.h"
#include "journal/overview.h"
#include "journal/records.h"
#include "journal/segment.h"
#include "journal/thin.h"

#define SEGMENT_OVER 2 /* a status of look: before it goes on to the next segment */

struct tp_reader {
    char folder[TP_PATH_MAX];
    char path[TP_PATH_MAX]; /* of the segment */
    int fd;
    tp_position at; /* offset 0: the segment's header has not been read yet */
    tp_run_info run;
    uint64_t first_step; /* what is handed out: tp_reader_limit */
    uint64_t last_step;
    tp_attempts attempts;
    bool gives_all;        /* steps that later attempts have repeated, too */
    uint64_t segment_last; /* of this segment no step behind this one is handed out */
    bool is_repeated;      /* nor any other */
    bool knows_run;        /* a good header has been read */
    bool headers_only;
    bool is_limited; /* something is left out, so that an index helps */
    bool has_looked; /* for the segment's index */
    tp_index index;  /* empty: there is none */
    bool gives_overview;
    bool has_given;    /* the overview that was made is to be cleared */
    uint64_t width;    /* tp_reader_overview */
    uint32_t level;    /* of the overview that the segment gives, or TP_INDEX_NO_LEVEL */
    tp_overviews made; /* of the records of this segment */
    uint64_t overview_count, removed_last; /* of what is handed out */
    tp_definitions definitions;
    ZSTD_DCtx *unpacker;
    tp_buf stored; /* bytes as they lie in the file */
    tp_buf payload;
    tp_buf records;
    tp_buf arena;
};

/* What lies at the reader's place. */
typedef struct tp_look {
    tp_frame frame;    /* type 0: the segment's header */
    uint64_t behind;   /* where the next frame begins, or may begin at the earliest */
    const char *wrong; /* what was found instead of a good frame */
} tp_look;

static tp_status fail_here(const tp_reader *reader, tp_error *error, tp_status status,
                           const char *what, uint64_t offset)
{
    tp_fail(error, status, "%s at byte %llu", what, (unsigned long long)offset);
    if (error != NULL) {
        /* Of a path that is too long, the end says more. */
        size_t length = strlen(reader->path);
        size_t room = sizeof error->file - 1;
        memcpy(error->file, reader->path + (length > room ? length - room : 0),
               (length > room ? room : length) + 1);
    }
    return status;
}

/* Reads up to size bytes at offset into reader->stored: as many as are there. */
static tp_status read_bytes(tp_reader *reader, uint64_t offset, size_t size, tp_error *error)
{
    return tp_file_read_at(reader->fd, reader->path, offset, size, &reader->stored, error);
}

/* Which steps of the segment count: those from the first step of a later attempt on are there, too,
 * as that has recorded them. */
static void limit_segment(tp_reader *reader)
{
    const uint64_t end = reader->gives_all || !reader->knows_run
                             ? TP_ATTEMPTS_NO_STEP
                             : tp_attempts_end(&reader->attempts, reader->run.attempt);
    const uint64_t last = end == TP_ATTEMPTS_NO_STEP ? UINT64_MAX : end - 1;
    reader->is_repeated = end == 0;
    reader->segment_last = last < reader->last_step ? last : reader->last_step;
}

static tp_status look_at_header(tp_reader *reader, tp_look *look, tp_error *error)
{
    tp_run_info run;
    uint32_t size = 0;
    tp_status status = read_bytes(reader, 0, TP_SEGMENT_HEADER_MAX, error);
    if (status != TP_OK) {
        return status;
    }
    status = tp_segment_header_get(reader->stored.data, reader->stored.size, &run, &size);
    if (status == TP_ERR_VERSION) {
        return fail_here(reader, error, status, "written by a newer version: segment header", 0);
    }
    if (status == TP_OK) {
        reader->run = run;
        reader->knows_run = true;
        limit_segment(reader);
    }
    *look = (tp_look){.behind = status == TP_OK ? size : 1, .wrong = "damaged segment header"};
    return status;
}

static bool has_step(const tp_frame *frame)
{
    return frame->type == TP_FRAME_BATCH || frame->type == TP_FRAME_ALERTS;
}

static bool is_out_of_limits(const tp_reader *reader, const tp_frame *frame)
{
    return has_step(frame) && (frame->step < reader->first_step ||
                               frame->step > reader->segment_last || reader->is_repeated);
}

/* Its payload isn't wanted. */
static bool is_passed_over(const tp_reader *reader, const tp_frame *frame)
{
    return is_out_of_limits(reader, frame) || (reader->headers_only && has_step(frame));
}

/* TP_OK: a good frame (or segment header), its payload in reader->stored unless it isn't wanted.
 * TP_END: the file ends before it does. TP_ERR_CORRUPT: neither. Any other error stands for
 * itself. */
static tp_status look_here(tp_reader *reader, tp_look *look, tp_error *error)
{
    uint64_t offset = reader->at.offset;
    struct stat info;
    *look = (tp_look){0};
    if (offset == 0) {
        return look_at_header(reader, look, error);
    }
    tp_status status = read_bytes(reader, offset, TP_FRAME_HEADER_SIZE, error);
    if (status != TP_OK) {
        return status;
    }
    if (reader->stored.size < TP_FRAME_HEADER_SIZE) {
        return TP_END;
    }
    *look = (tp_look){.behind = offset + 1, .wrong = "damaged frame"};
    if (!tp_frame_get(reader->stored.data, offset, &look->frame)) {
        return TP_ERR_CORRUPT;
    }
    look->behind = offset + TP_FRAME_HEADER_SIZE + look->frame.stored_size;
    if (fstat(reader->fd, &info) != 0 || (uint64_t)info.st_size < look->behind) {
        return TP_END;
    }
    if (is_passed_over(reader, &look->frame)) {
        return TP_OK;
    }
    status = read_bytes(reader, offset + TP_FRAME_HEADER_SIZE, look->frame.stored_size, error);
    if (status != TP_OK) {
        return status;
    }
    if (reader->stored.size < look->frame.stored_size) {
        return TP_END; /* the writer has just cut it off */
    }
    return tp_crc32c(0, reader->stored.data, reader->stored.size) == look->frame.payload_crc
               ? TP_OK
               : TP_ERR_CORRUPT;
}

static tp_status enter(tp_reader *reader, uint64_t segment, tp_error *error)
{
    char path[TP_PATH_MAX];
    tp_status status = tp_segment_path(path, reader->folder, segment);
    if (status != TP_OK) {
        return tp_fail(error, status, "path is too long: %.100s", reader->folder);
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return tp_fail(error, tp_status_from_errno(errno), "can't open %s: %s", path,
                       strerror(errno));
    }
    tp_file_close(reader->fd);
    reader->fd = fd;
    memcpy(reader->path, path, sizeof path);
    reader->at = (tp_position){segment, 0};
    reader->has_looked = false;
    reader->level = TP_INDEX_NO_LEVEL;
    tp_index_clear(&reader->index);
    tp_overviews_clear(&reader->made);
    tp_definitions_begin(&reader->definitions);
    return TP_OK;
}

static bool is_wanted(const tp_reader *reader, const tp_index_entry *entry)
{
    switch (entry->type) {
    case TP_FRAME_BATCH:
    case TP_FRAME_ALERTS:
        return entry->step >= reader->first_step && entry->step <= reader->segment_last &&
               !reader->is_repeated &&
               !(reader->gives_overview &&
                 (reader->level != TP_INDEX_NO_LEVEL || entry->type == TP_FRAME_ALERTS));
    case TP_FRAME_OVERVIEW:
        return reader->gives_overview && entry->level == reader->level && !reader->is_repeated &&
               reader->index.first_step <= reader->segment_last &&
               reader->index.last_step >= reader->first_step;
    default:
        return true;
    }
}

static void load_index(tp_reader *reader)
{
    tp_segment segment = {.fd = -1};
    if (tp_segment_open(&segment, reader->folder, reader->at.segment) == TP_OK) {
        tp_index_load(&reader->index, &segment);
    }
    tp_segment_close(&segment);
}

/* Goes to the next frame that is wanted, as the index has it. */
static void skip(tp_reader *reader)
{
    const bool is_cut = reader->is_repeated || reader->segment_last < reader->last_step;
    if (!(reader->is_limited || is_cut) || reader->at.offset == 0) {
        return;
    }
    if (!reader->has_looked) {
        reader->has_looked = true;
        load_index(reader);
        if (reader->gives_overview) {
            /* What is stored speaks of all steps, also of those that have been repeated. */
            const bool is_whole = !is_cut || reader->index.last_step <= reader->segment_last;
            reader->level = tp_index_choose(&reader->index, reader->width, is_whole);
        }
    }
    const tp_index *index = &reader->index;
    const uint64_t count = tp_index_count(index);
    uint64_t place = tp_index_find(index, reader->at.offset);
    while (place < count && !is_wanted(reader, tp_index_at(index, place))) {
        place++;
        reader->at.offset = place < count ? tp_index_at(index, place)->offset : index->offset;
    }
}

/* Looks until there is a good frame at the reader's place, steps over what lies in front of it, and
 * goes to the next segment at the end of one. TP_ERR_CORRUPT: stepped over damage. */
static tp_status look(tp_reader *reader, tp_look *seen, tp_error *error)
{
    uint64_t next = 0;
    uint64_t last;
    bool looked_again = false; /* after something behind the frame was seen */
    for (;;) {
        skip(reader);
        tp_status status = look_here(reader, seen, error);
        if (status == TP_ERR_CORRUPT) {
            uint64_t found = 0;
            status = tp_frame_find(reader->fd, reader->path, seen->behind, &reader->stored, &found,
                                   error);
            if (status == TP_OK && looked_again) {
                status = fail_here(reader, error, TP_ERR_CORRUPT, seen->wrong, reader->at.offset);
                reader->at.offset = found;
                return status;
            }
            if (status == TP_OK) {
                /* The writer may have gone on between the two looks. What lies before a good frame
                 * is final, so the next look decides. */
                looked_again = true;
                continue;
            }
        }
        if (status != TP_END) {
            return status;
        }
        if (next > reader->at.segment) {
            /* Final as well: the writer never returns to a segment that has a successor. */
            if (reader->made.steps > 0) {
                return SEGMENT_OVER; /* its overview needs its definitions */
            }
            status = enter(reader, next, error);
            if (status != TP_OK) {
                return status;
            }
            looked_again = false;
            continue;
        }
        status = tp_segment_find(reader->folder, reader->at.segment + 1, &next, &last);
        if (status == TP_ERR_NOTFOUND) {
            return TP_END;
        }
        if (status != TP_OK) {
            return tp_fail(error, status, "can't list %s", reader->folder);
        }
    }
}

/* Takes in the payload of a frame whose type is looked at. */
static tp_status take_payload(tp_reader *reader, uint32_t frame_type, tp_batch *batch,
                              uint32_t *type)
{
    tp_status status = TP_OK;
    uint32_t level = TP_INDEX_NO_LEVEL;
    tp_removed removed = {0};
    switch (frame_type) {
    case TP_FRAME_DEFINITIONS:
        return tp_definitions_get(&reader->definitions, &reader->payload);
    case TP_FRAME_BATCH:
        status = tp_records_get_batch(&reader->payload, batch, &reader->records, &reader->arena);
        *type = TP_ITEM_BATCH;
        if (status == TP_OK && reader->gives_overview) {
            tp_overviews_add(&reader->made, batch);
            status = reader->made.failed ? TP_ERR_NOMEM : TP_OK;
            *type = 0;
        }
        return status;
    case TP_FRAME_ALERTS:
        *type = TP_ITEM_ALERTS;
        return tp_records_get_alerts(&reader->payload, batch, &reader->records);
    case TP_FRAME_REMOVED:
        status = tp_removed_get(&reader->payload, &removed);
        batch->step = removed.first_step;
        batch->count = removed.batches;
        reader->removed_last = removed.last_step;
        if (!reader->is_repeated && batch->step <= reader->segment_last &&
            reader->removed_last >= reader->first_step) {
            *type = TP_ITEM_REMOVED;
        }
        return status;
    default:
        *type = TP_ITEM_OVERVIEW;
        return tp_overviews_get(&reader->payload, &level, &reader->records,
                                &reader->overview_count);
    }
}

/* Whether the payload of a frame has to be looked at. */
static bool has_payload(const tp_reader *reader, const tp_frame *frame)
{
    switch (frame->type) {
    case TP_FRAME_DEFINITIONS:
        return true;
    case TP_FRAME_BATCH:
        return !(reader->gives_overview && reader->level != TP_INDEX_NO_LEVEL);
    case TP_FRAME_ALERTS:
    case TP_FRAME_REMOVED:
        return !reader->gives_overview;
    default: /* skip comes to no overview but the wanted one */
        return frame->type == TP_FRAME_OVERVIEW && reader->gives_overview &&
               reader->level != TP_INDEX_NO_LEVEL;
    }
}

/* Unpacks the frame that was seen and steps behind it. *type: TP_ITEM_…; 0: nothing to hand out. */
static tp_status take(tp_reader *reader, const tp_look *seen, tp_batch *batch, uint32_t *type,
                      tp_error *error)
{
    tp_status status = TP_OK;
    *type = 0;
    *batch = (tp_batch){.step = seen->frame.step,
                        .rank = reader->run.rank,
                        .attempt = reader->run.attempt,
                        .pp_stage = -1};
    if (is_passed_over(reader, &seen->frame)) {
        if (!is_out_of_limits(reader, &seen->frame)) {
            *type = seen->frame.type == TP_FRAME_BATCH ? TP_ITEM_BATCH : TP_ITEM_ALERTS;
        }
        reader->at.offset = seen->behind;
        return TP_OK;
    }
    if (has_payload(reader, &seen->frame)) {
        status =
            tp_frame_unpack(&seen->frame, reader->stored.data, reader->unpacker, &reader->payload);
        if (status == TP_OK) {
            status = take_payload(reader, seen->frame.type, batch, type);
        }
    } else if (seen->frame.type == TP_FRAME_CLOSE) {
        *type = TP_ITEM_CLOSE;
    }
    if (status == TP_ERR_NOMEM) {
        return tp_fail(error, status, "no memory to read %s", reader->path);
    }
    if (status != TP_OK) {
        fail_here(reader, error, status, "frame with senseless content", reader->at.offset);
    }
    reader->at.offset = seen->behind;
    return status;
}

tp_status tp_reader_open(tp_reader **out, const char *directory, tp_error *error)
{
    tp_look seen;
    uint64_t first;
    uint64_t last;
    tp_reader *reader = tp_calloc(1, sizeof *reader);
    if (reader == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory to open a journal");
    }
    reader->fd = -1;
    reader->level = TP_INDEX_NO_LEVEL;
    reader->last_step = UINT64_MAX;
    limit_segment(reader);
    tp_status status = tp_path_join(reader->folder, directory, "journal");
    if (status != TP_OK) {
        tp_fail(error, status, "path is too long: %.100s", directory);
        goto fail;
    }
    status = tp_segment_find(reader->folder, 0, &first, &last);
    if (status == TP_ERR_NOTFOUND) {
        snprintf(reader->folder, sizeof reader->folder, "%s", directory);
        status = tp_segment_find(reader->folder, 0, &first, &last);
    }
    if (status != TP_OK) {
        tp_fail(error, status,
                status == TP_ERR_NOTFOUND
                    ? "%s holds no journal; the directory of one run (TIME-rankN-RUN) does"
                    : "can't list %s",
                directory);
        goto fail;
    }
    reader->unpacker = ZSTD_createDCtx();
    if (reader->unpacker == NULL) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory to open a journal");
        goto fail;
    }
    if (tp_attempts_load(&reader->attempts, reader->folder) != TP_OK) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory to open a journal");
        goto fail;
    }
    status = enter(reader, first, error);
    if (status != TP_OK) {
        goto fail;
    }
    status = look(reader, &seen, error);
    if (status == TP_END) {
        status = tp_fail(error, TP_ERR_NOTFOUND, "%s holds no journal yet", directory);
    }
    if (status != TP_OK && status != TP_ERR_CORRUPT) {
        goto fail;
    }
    reader->at.offset = 0; /* reading begins with the header, and reports its damage */
    *out = reader;
    return TP_OK;
fail:
    tp_reader_close(&reader);
    return status;
}

tp_status tp_reader_seek(tp_reader *reader, tp_position position, tp_error *error)
{
    tp_look seen;
    tp_batch batch;
    uint32_t type;
    tp_status status = enter(reader, position.segment, error);
    if (status == TP_ERR_NOTFOUND) {
        return tp_fail(error, TP_ERR_ARGUMENT, "%s has no segment %llu", reader->folder,
                       (unsigned long long)position.segment);
    }
    while (status == TP_OK && reader->at.offset < position.offset) {
        status = look_here(reader, &seen, error);
        if (status == TP_ERR_CORRUPT) {
            status = tp_frame_find(reader->fd, reader->path, seen.behind, &reader->stored,
                                   &reader->at.offset, error);
        } else if (status == TP_OK && seen.frame.type == TP_FRAME_DEFINITIONS) {
            status = take(reader, &seen, &batch, &type, error);
            status = status == TP_ERR_CORRUPT ? TP_OK : status;
        } else if (status == TP_OK) {
            reader->at.offset = seen.behind;
        }
    }
    if (status == TP_END || (status == TP_OK && reader->at.offset != position.offset)) {
        status = fail_here(reader, error, TP_ERR_ARGUMENT, "no frame begins", position.offset);
    }
    if (status != TP_OK) {
        reader->at.offset = 0;
    }
    return status;
}

void tp_reader_limit(tp_reader *reader, uint64_t first, uint64_t last, uint32_t headers_only)
{
    reader->first_step = first;
    reader->last_step = last;
    reader->headers_only = headers_only != 0;
    reader->is_limited = reader->gives_overview || first > 0 || last < UINT64_MAX;
    limit_segment(reader);
}

void tp_reader_all_attempts(tp_reader *reader)
{
    reader->gives_all = true;
    limit_segment(reader);
}

void tp_reader_overview(tp_reader *reader, uint64_t width)
{
    reader->gives_overview = true;
    reader->is_limited = true;
    reader->width = width;
    reader->made.width = width == 0 ? UINT64_MAX : width;
}

static void give_made(tp_reader *reader, tp_item *item)
{
    tp_overviews_finish(&reader->made);
    item->type = TP_ITEM_OVERVIEW;
    item->overviews = tp_overviews_rows(&reader->made, 1, &item->overview_count);
    item->position = reader->at;
    reader->has_given = true;
}

tp_status tp_reader_next(tp_reader *reader, tp_item *item, tp_error *error)
{
    tp_look seen;
    *item = (tp_item){0};
    if (reader->has_given) {
        tp_overviews_clear(&reader->made);
        reader->has_given = false;
    }
    for (;;) {
        tp_status status = look(reader, &seen, error);
        if ((status == TP_END || status == SEGMENT_OVER) && reader->made.steps > 0) {
            give_made(reader, item);
            return reader->made.failed
                       ? tp_fail(error, TP_ERR_NOMEM, "no memory to read %s", reader->path)
                       : TP_OK;
        }
        if (status != TP_OK) {
            return status;
        }
        if (reader->at.offset == 0) {
            reader->at.offset = seen.behind;
            continue;
        }
        status = take(reader, &seen, &item->batch, &item->type, error);
        if (status == TP_OK && item->type == TP_ITEM_OVERVIEW) {
            item->overviews = (const tp_overview *)(const void *)reader->records.data;
            item->overview_count = reader->overview_count;
        }
        if (status != TP_OK || item->type != 0) {
            item->removed_last = item->type == TP_ITEM_REMOVED ? reader->removed_last : 0;
            item->position = reader->at;
            return status;
        }
    }
}

const tp_run_info *tp_reader_run(const tp_reader *reader)
{
    return &reader->run;
}

const tp_key *tp_reader_key(const tp_reader *reader, uint32_t key)
{
    return tp_definitions_key(&reader->definitions, key);
}

uint32_t tp_reader_key_count(const tp_reader *reader)
{
    return reader->definitions.keys.count;
}

const tp_key *tp_reader_next_key(const tp_reader *reader, uint64_t *place, uint32_t *key)
{
    return tp_definitions_next_key(&reader->definitions, place, key);
}

const int64_t *tp_reader_shape(const tp_reader *reader, uint32_t shape, uint32_t *ndim)
{
    return tp_definitions_shape(&reader->definitions, shape, ndim);
}

void tp_reader_close(tp_reader **reader)
{
    tp_reader *closing = *reader;
    if (closing == NULL) {
        return;
    }
    tp_file_close(closing->fd);
    ZSTD_freeDCtx(closing->unpacker);
    tp_definitions_free(&closing->definitions);
    tp_buf_free(&closing->stored);
    tp_buf_free(&closing->payload);
    tp_buf_free(&closing->records);
    tp_buf_free(&closing->arena);
    tp_index_free(&closing->index);
    tp_overviews_free(&closing->made);
    tp_attempts_free(&closing->attempts);
    tp_free(closing);
    *reader = NULL;
}
