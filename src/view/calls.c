#include "view/calls.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "tensorprobe/reader.h"

const tp_call *tp_calls_at(const tp_calls *calls, uint64_t number)
{
    return (const tp_call *)(const void *)calls->calls.data + number;
}

static tp_call_rank *rank_at(const tp_calls *calls, uint32_t number)
{
    return (tp_call_rank *)(void *)calls->ranks.data + number;
}

const tp_call_rank *tp_calls_rank(const tp_calls *calls, uint32_t number)
{
    return rank_at(calls, number);
}

const char *tp_calls_text(const tp_calls *calls, uint32_t text)
{
    const uint32_t *offsets = (const uint32_t *)(const void *)calls->offsets.data;
    return (const char *)calls->texts.data + offsets[text];
}

bool tp_call_is_pair(const tp_call *call)
{
    return call->call.op == TP_COLLECTIVE_OP_SEND || call->call.op == TP_COLLECTIVE_OP_RECV;
}

bool tp_group_has(const char *group, uint32_t rank)
{
    const char *colon = strrchr(group, ':');
    char *text = NULL;
    for (const char *at = colon != NULL ? colon + 1 : group; *at >= '0' && *at <= '9';) {
        const unsigned long first = strtoul(at, &text, 10);
        unsigned long last = first;
        unsigned long step = 1;
        if (*text == '-') {
            last = strtoul(text + 1, &text, 10);
            step = *text == '/' ? strtoul(text + 1, &text, 10) : 1;
        }
        if (rank >= first && rank <= last && step > 0 && (rank - first) % step == 0) {
            return true;
        }
        at = *text == ',' ? text + 1 : text;
    }
    return false;
}

static tp_status add_text(tp_calls *calls, const char *text, uint32_t *number)
{
    const size_t size = strlen(text) + 1;
    if (tp_map_get(&calls->text_index, text, size, number) == TP_OK) {
        return TP_OK;
    }
    *number = (uint32_t)(calls->offsets.size / sizeof(uint32_t));
    tp_buf_put_u32(&calls->offsets, (uint32_t)calls->texts.size);
    tp_buf_put(&calls->texts, text, size);
    return calls->texts.failed || calls->offsets.failed
               ? TP_ERR_NOMEM
               : tp_map_set(&calls->text_index, text, size, *number);
}

/* What stands in the buffer from here on belongs to an attempt that another one followed. */
static void begin_attempt(tp_calls *calls, tp_call_rank *rank, uint32_t attempt, size_t first)
{
    if (attempt != rank->attempt) {
        calls->calls.size = first;
        *rank = (tp_call_rank){.rank = rank->rank, .attempt = attempt, .has_box = rank->has_box};
    }
}

static tp_status add_call(tp_calls *calls, const tp_reader *reader, const tp_batch *batch,
                          const tp_record *record)
{
    const tp_collective *call = &record->u.collective;
    const tp_key *key = tp_reader_key(reader, record->key);
    if (key == NULL) {
        return TP_OK; /* its definition was damaged */
    }
    tp_call added;
    memset(&added, 0, sizeof added);
    added.rank = batch->rank;
    added.dtype = record->dtype;
    added.step = batch->step;
    added.call = *call;
    const int64_t *dims = tp_reader_shape(reader, record->shape, &added.ndim);
    for (uint32_t i = 0; dims != NULL && i < added.ndim && i < TP_CALL_DIMS; i++) {
        added.dims[i] = dims[i];
    }
    const tp_key *location =
        call->location > 0 ? tp_reader_key(reader, (uint32_t)(call->location - 1)) : NULL;
    tp_status status = add_text(calls, key->name, &added.name);
    if (status == TP_OK) {
        status = add_text(calls, key->global_name, &added.group);
    }
    if (status == TP_OK && location != NULL) {
        added.has_location = true;
        status = add_text(calls, location->name, &added.location);
    }
    tp_buf_put(&calls->calls, &added, sizeof added);
    return calls->calls.failed ? TP_ERR_NOMEM : status;
}

/* Where the rank is after the last record of this batch. */
static tp_status note_last(tp_calls *calls, const tp_reader *reader, const tp_batch *batch,
                           tp_call_rank *rank)
{
    char row[1024];
    const tp_record *last = NULL;
    rank->partial = (batch->flags & TP_BATCH_PARTIAL) != 0;
    for (uint64_t i = 0; batch->records != NULL && i < batch->count; i++) {
        if (last == NULL || batch->records[i].order >= last->order) {
            last = &batch->records[i];
        }
    }
    const tp_key *key = last != NULL ? tp_reader_key(reader, last->key) : NULL;
    if (key == NULL) {
        return TP_OK;
    }
    tp_row_name(key, last->call, row, sizeof row);
    rank->has_last = true;
    rank->last_step = batch->step;
    rank->micro_step = last->micro_step;
    return add_text(calls, row, &rank->last);
}

static tp_status load_batch(tp_calls *calls, const tp_reader *reader, const tp_batch *batch,
                            tp_call_rank *rank, size_t first)
{
    begin_attempt(calls, rank, batch->attempt, first);
    tp_status status = TP_OK;
    for (uint64_t i = 0; status == TP_OK && batch->records != NULL && i < batch->count; i++) {
        if (batch->records[i].kind == TP_RECORD_COLLECTIVE) {
            status = add_call(calls, reader, batch, &batch->records[i]);
        }
    }
    return status == TP_OK ? note_last(calls, reader, batch, rank) : status;
}

static tp_status load(tp_calls *calls, tp_reader *reader, tp_call_rank *rank, tp_error *error)
{
    const size_t first = calls->calls.size;
    tp_item item;
    tp_status status;
    while ((status = tp_reader_next(reader, &item, error)) != TP_END) {
        if (status == TP_ERR_CORRUPT) {
            calls->damaged++;
            continue;
        }
        if (status == TP_OK && item.type == TP_ITEM_BATCH) {
            rank->closed = false;
            status = load_batch(calls, reader, &item.batch, rank, first);
        } else if (status == TP_OK && item.type == TP_ITEM_CLOSE) {
            rank->closed = true;
        }
        if (status != TP_OK) {
            return status == TP_ERR_NOMEM ? tp_fail(error, status, "no memory for the calls")
                                          : status;
        }
    }
    return TP_OK;
}

static tp_status load_journal(tp_calls *calls, const char *directory, const char *first_run,
                              uint64_t first_step, uint64_t last_step, char run[64],
                              tp_error *error)
{
    char box[TP_PATH_MAX];
    tp_reader *reader = NULL;
    tp_status status = tp_reader_open(&reader, directory, error);
    if (status != TP_OK) {
        return status;
    }
    const tp_run_info *info = tp_reader_run(reader);
    tp_call_rank rank = {.rank = info->rank, .attempt = info->attempt};
    rank.has_box = tp_path_join(box, directory, "box") == TP_OK && tp_file_has(box, 0);
    snprintf(run, 64, "%s", info->run_id);
    if (first_run[0] != '\0' && strcmp(first_run, run) != 0) {
        status = tp_fail(error, TP_ERR_ARGUMENT,
                         "%s is of run %.63s, others are of run %.63s: name the directories of one",
                         directory, run, first_run);
    }
    for (uint32_t i = 0; status == TP_OK && i < calls->rank_count; i++) {
        if (rank_at(calls, i)->rank == rank.rank) {
            status = tp_fail(error, TP_ERR_ARGUMENT, "%s is a second journal of rank %u", directory,
                             rank.rank);
        }
    }
    tp_reader_limit(reader, first_step, last_step, 0);
    if (status == TP_OK) {
        status = load(calls, reader, &rank, error);
    }
    tp_reader_close(&reader);
    if (status == TP_OK) {
        tp_buf_put(&calls->ranks, &rank, sizeof rank);
        calls->rank_count++;
        if (calls->ranks.failed) {
            status = tp_fail(error, TP_ERR_NOMEM, "no memory for the ranks");
        }
    }
    return status;
}

static int compare_numbers(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_calls(const void *x, const void *y)
{
    const tp_call *a = x;
    const tp_call *b = y;
    int order = compare_numbers(tp_call_is_pair(a), tp_call_is_pair(b));
    order = order != 0 ? order : compare_numbers(a->group, b->group);
    order = order != 0 ? order : compare_numbers(a->call.sequence, b->call.sequence);
    order = order != 0 ? order : compare_numbers(a->rank, b->rank);
    order = order != 0 ? order : compare_numbers(a->call.op, b->call.op);
    order = order != 0 ? order : compare_numbers((uint32_t)a->call.peer, (uint32_t)b->call.peer);
    order = order != 0 ? order : compare_numbers(a->call.tag, b->call.tag);
    return order != 0 ? order : compare_numbers(a->call.flags, b->call.flags); /* LATE is last */
}

static int compare_ranks(const void *x, const void *y)
{
    return compare_numbers(((const tp_call_rank *)x)->rank, ((const tp_call_rank *)y)->rank);
}

/* Of a call that two steps have, the later record tells all but the step of the first. */
static void join_late(tp_calls *calls)
{
    tp_call *all = (tp_call *)(void *)calls->calls.data;
    uint64_t kept = 0;
    for (uint64_t i = 0; i < calls->count; i++) {
        tp_call *before = kept > 0 ? &all[kept - 1] : NULL;
        if ((all[i].call.flags & TP_COLLECTIVE_LATE) != 0 && before != NULL &&
            before->rank == all[i].rank && before->group == all[i].group &&
            before->call.issue_ns == all[i].call.issue_ns) {
            before->call = all[i].call;
        } else {
            all[kept++] = all[i];
        }
    }
    calls->count = kept;
}

tp_status tp_calls_load(tp_calls *out, const tp_journals *journals, uint64_t first_step,
                        uint64_t last_step, tp_error *error)
{
    char first_run[64] = "";
    char run[64] = "";
    tp_status status = TP_OK;
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; status == TP_OK && i < journals->count; i++) {
        status = load_journal(out, journals->directories[i], first_run, first_step, last_step, run,
                              error);
        memcpy(first_run, run, sizeof run);
    }
    if (status != TP_OK) {
        return status;
    }
    out->count = out->calls.size / sizeof(tp_call);
    if (out->count > 0) {
        qsort(out->calls.data, out->count, sizeof(tp_call), compare_calls);
        join_late(out);
    }
    qsort(out->ranks.data, out->rank_count, sizeof(tp_call_rank), compare_ranks);
    return TP_OK;
}

void tp_calls_free(tp_calls *calls)
{
    tp_buf_free(&calls->calls);
    tp_buf_free(&calls->ranks);
    tp_buf_free(&calls->texts);
    tp_buf_free(&calls->offsets);
    tp_map_free(&calls->text_index);
}
