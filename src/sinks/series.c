#include "sinks/series.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

bool tp_has_micro_step(const tp_sink_options *options, uint32_t quantity)
{
    return quantity == TP_ACTIVATION || quantity == TP_ACTIVATION_GRAD ||
           (quantity == TP_GRAD_UNREDUCED && options->micro_gradients);
}

tp_columns tp_columns_of(uint32_t quantity, const tp_sink_options *options)
{
    static const uint32_t value[] = {TP_OP_ID};
    return quantity == TP_SCALAR ? (tp_columns){value, 1}
                                 : (tp_columns){options->ops, options->op_count};
}

double tp_column_value(const tp_record *record, uint32_t op, uint32_t ndim)
{
    return op == TP_OP_ID && ndim > 0 ? (double)NAN : tp_stats_op(&record->u.stats, op);
}

const char *tp_tag_kind(uint32_t quantity)
{
    switch (quantity) {
    case TP_GRAD_UNREDUCED:
        return "acc_grad";
    case TP_GRAD_REDUCED:
        return "post_grad";
    default:
        return tp_quantity_name(quantity);
    }
}

void tp_series_tag(const tp_sink_options *options, const tp_key *key, const tp_record *record,
                   char tag[TP_TAG_MAX])
{
    const uint32_t rank = options->rank;
    char row[TP_ROW_NAME_MAX];
    char micro[16] = "";
    const char *kind = tp_tag_kind(key->quantity);
    tp_row_name(key, record->call, row, sizeof row);
    if (tp_has_micro_step(options, key->quantity)) {
        snprintf(micro, sizeof micro, ":%" PRIu32, record->micro_step);
    }
    if (key->quantity == TP_SCALAR) { /* of the run, not of a chunk of the model */
        snprintf(tag, TP_TAG_MAX, "%s/rank%" PRIu32 "/scalar", row, rank);
        return;
    }
    if (key->quantity == TP_COMM) {
        snprintf(tag, TP_TAG_MAX, "%s/rank%" PRIu32 "/%s_%" PRId32, key->name, rank,
                 tp_role_name(key->role), key->slot);
        return;
    }
    snprintf(tag, TP_TAG_MAX, "%" PRId32 ":%s%s/rank%" PRIu32 "/%s", key->vpp_stage, row, micro,
             rank, kind != NULL ? kind : "?");
}

/* Most series are a key's only one: these need no search. */
#define FIRST_MAX (UINT32_C(1) << 22)

static bool is_first(const tp_series *series)
{
    return series->call == 0 && series->micro_step == 0 && series->key < FIRST_MAX;
}

const uint8_t *tp_blocks_find(const tp_blocks *blocks, const tp_series *series, size_t *size)
{
    uint32_t offset = 0;
    if (is_first(series)) {
        const uint32_t *first = (const uint32_t *)(const void *)blocks->first.data;
        if (series->key >= blocks->first.size / sizeof *first || first[series->key] == 0) {
            return NULL;
        }
        offset = first[series->key] - 1;
    } else if (tp_map_get(&blocks->index, series, sizeof *series, &offset) != TP_OK) {
        return NULL;
    }
    const uint8_t *block = blocks->bytes.data + offset;
    *size = tp_get_u32(block);
    return block + 4;
}

static tp_status set_first(tp_blocks *blocks, uint32_t key, uint32_t offset)
{
    const size_t needed = (key + (size_t)1) * sizeof offset;
    if (blocks->first.size < needed) {
        const size_t before = blocks->first.size;
        uint8_t *room = tp_buf_extend(&blocks->first, needed - before);
        if (room == NULL) {
            blocks->first.failed = false;
            return TP_ERR_NOMEM;
        }
        memset(room, 0, needed - before);
    }
    ((uint32_t *)(void *)blocks->first.data)[key] = offset + 1;
    return TP_OK;
}

tp_status tp_blocks_add(tp_blocks *blocks, const tp_series *series, const tp_buf *block)
{
    size_t offset = blocks->bytes.size;
    if (block->failed || offset >= UINT32_MAX || block->size > UINT32_MAX) {
        return TP_ERR_NOMEM;
    }
    tp_buf_put_u32(&blocks->bytes, (uint32_t)block->size);
    tp_buf_put(&blocks->bytes, block->data, block->size);
    if (blocks->bytes.failed) {
        blocks->bytes.failed = false;
        blocks->bytes.size = offset;
        return TP_ERR_NOMEM;
    }
    return is_first(series) ? set_first(blocks, series->key, (uint32_t)offset)
                            : tp_map_set(&blocks->index, series, sizeof *series, (uint32_t)offset);
}

void tp_blocks_free(tp_blocks *blocks)
{
    tp_map_free(&blocks->index);
    tp_buf_free(&blocks->first);
    tp_buf_free(&blocks->bytes);
}
