#include "monitor/learn.h"

#include "base/clock.h"
#include "tensorprobe/reader.h"

#define STEPS 64 /* more than a default window has */
#define LIMIT_NS UINT64_C(500000000)

/* The step's records with the numbers that keys and shapes have in our registry. */
static tp_status translate(tp_registry *registry, const tp_reader *reader, const tp_batch *batch,
                           tp_buf *records)
{
    tp_buf_clear(records);
    for (uint64_t i = 0; i < batch->count; i++) {
        tp_record record = batch->records[i];
        const tp_key *key = tp_reader_key(reader, record.key);
        if (key == NULL) {
            continue; /* its definition is damaged */
        }
        uint32_t ndim;
        const int64_t *dims = tp_reader_shape(reader, record.shape, &ndim);
        tp_status status = tp_registry_add_key(registry, key, &record.key);
        if (status == TP_OK && dims != NULL) {
            status = tp_registry_add_shape(registry, ndim, dims, &record.shape);
        }
        if (status != TP_OK) {
            return status;
        }
        tp_buf_put(records, &record, sizeof record);
    }
    return records->failed ? TP_ERR_NOMEM : TP_OK;
}

void tp_learn(tp_rules *rules, tp_registry *registry, const char *directory, uint64_t step)
{
    const uint64_t until = tp_clock_monotonic() + LIMIT_NS;
    tp_buf records = TP_BUF_INIT;
    tp_buf alerts = TP_BUF_INIT;
    tp_reader *reader = NULL;
    if (step == 0 || tp_reader_open(&reader, directory, NULL) != TP_OK) {
        return;
    }
    tp_reader_limit(reader, step > STEPS ? step - STEPS : 0, step - 1, 0);
    while (tp_clock_monotonic() < until) {
        tp_item item;
        tp_error error;
        tp_status status = tp_reader_next(reader, &item, &error);
        if (status == TP_ERR_CORRUPT) {
            continue;
        }
        if (status == TP_OK && item.type == TP_ITEM_BATCH && item.batch.records != NULL) {
            tp_batch batch = item.batch;
            status = translate(registry, reader, &item.batch, &records);
            batch.records = (const void *)records.data;
            batch.count = records.size / sizeof(tp_record);
            if (status == TP_OK) {
                tp_buf_clear(&alerts);
                status = tp_rules_check(rules, &batch, &alerts);
            }
        }
        if (status != TP_OK) {
            break;
        }
    }
    tp_reader_close(&reader);
    tp_buf_free(&records);
    tp_buf_free(&alerts);
}
