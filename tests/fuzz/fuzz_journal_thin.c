/* Any bytes as a segment that is to lose its batches (journal_file.h): what is left is whole, and has
 * no step; and two of it make one. */
#include "journal_file.h"

#include "journal/thin.h"

/* How many alerts a reader finds; steps only where they may be. (What stays is not looked into, so
 * that it may be as senseless as it was.) */
static uint64_t read_alerts(bool is_thin, uint64_t *removed)
{
    tp_reader *reader;
    tp_item item;
    tp_error error;
    uint64_t alerts = 0;
    tp_status status;
    *removed = 0;
    if (tp_reader_open(&reader, directory, &error) != TP_OK) {
        check(!is_thin);
        return 0;
    }
    while ((status = tp_reader_next(reader, &item, &error)) != TP_END) {
        check(status != TP_ERR_NOMEM);
        if (status == TP_ERR_VERSION) {
            break;
        }
        check(status != TP_OK || !is_thin || item.type != TP_ITEM_BATCH);
        alerts += status == TP_OK && item.type == TP_ITEM_ALERTS;
        *removed += status == TP_OK && item.type == TP_ITEM_REMOVED;
    }
    tp_reader_close(&reader);
    return alerts;
}

/* A copy stands behind it. */
static void join(uint64_t alerts)
{
    char second[sizeof path];
    tp_buf bytes = TP_BUF_INIT;
    tp_removed one;
    tp_removed both;
    uint64_t removed;
    snprintf(second, sizeof second, "%s/000001.tpj", folder);
    check(tp_file_read(path, &bytes, NULL) == TP_OK);
    check(tp_file_replace(second, bytes.data, bytes.size, NULL) == TP_OK);
    tp_buf_free(&bytes);
    check(tp_segment_is_thin(folder, 0, &one));
    const tp_status status = tp_segment_join(folder, 0, 1, NULL);
    check(status == TP_OK || status == TP_END || status == TP_ERR_CORRUPT);
    check(tp_segment_is_thin(folder, 1, &both));
    check(tp_segment_is_thin(folder, 0, &one) == (status != TP_OK));
    if (status == TP_OK) {
        check(both.batches == 2 * one.batches && both.first_step == one.first_step &&
              both.last_step == one.last_step);
        check(read_alerts(true, &removed) <= 2 * alerts);
        check(removed == 1);
    }
    unlink(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t removed;
    tp_removed gone;
    if (size == 0) {
        return 0;
    }
    journal_file_begin(data, size);
    journal_file_finish();
    const uint64_t before = read_alerts(false, &removed);
    const tp_status status = tp_segment_thin(folder, 0, NULL);
    check(status == TP_OK || status == TP_END || status == TP_ERR_CORRUPT);
    if (status == TP_OK) {
        check(tp_segment_is_thin(folder, 0, &gone));
        check(read_alerts(true, &removed) <= before);
        check(removed == 1);
        check(tp_segment_thin(folder, 0, NULL) == TP_END);
        join(before);
        close(file); /* of the file that is gone */
        file = -1;
        unlink(path);
    }
    return 0;
}
