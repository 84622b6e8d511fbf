#include "sinks/merged.h"

void tp_merged_clear(tp_merged *merged)
{
    tp_map_free(&merged->index);
    tp_buf_clear(&merged->records);
    merged->count = 0;
}

static tp_record *record_at(const tp_merged *merged, uint32_t number)
{
    return (tp_record *)(void *)merged->records.data + number;
}

tp_status tp_merged_add(tp_merged *merged, const void *name, size_t size, const tp_record *record,
                        tp_error *error)
{
    uint32_t number;
    if (tp_map_get(&merged->index, name, size, &number) == TP_OK) {
        tp_stats_merge(&record_at(merged, number)->u.stats, &record->u.stats);
        return TP_OK;
    }
    tp_record *added = tp_buf_extend(&merged->records, sizeof *added);
    if (added == NULL || tp_map_set(&merged->index, name, size, merged->count) != TP_OK) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for the tensors of collectives");
    }
    *added = *record;
    added->call = 0;
    added->micro_step = 0;
    added->flags = 0;
    merged->count++;
    return TP_OK;
}

const tp_record *tp_merged_record(const tp_merged *merged, uint32_t number)
{
    return record_at(merged, number);
}

void tp_merged_free(tp_merged *merged)
{
    tp_map_free(&merged->index);
    tp_buf_free(&merged->records);
}
