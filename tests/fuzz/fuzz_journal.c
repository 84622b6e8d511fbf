/* Any bytes as a journal: see journal_file.h for the first byte. Reading must end, go forward only,
 * and find again by seeking what it found by reading. */
#include "journal_file.h"

static volatile uint64_t touched; /* keeps reads from being left out */

static uint64_t sum_of(const tp_histogram *histogram)
{
    uint64_t sum = 0;
    for (uint32_t b = 0; b < histogram->bin_count; b++) {
        sum += histogram->bins[b];
    }
    return sum;
}

/* Reads every byte that an item points to, so that a sanitizer sees a wrong one. */
static void touch(const tp_reader *reader, const tp_item *item)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; item->batch.records != NULL && i < item->batch.count; i++) {
        const tp_record *record = &item->batch.records[i];
        for (size_t w = 0; w < sizeof record->u.words / sizeof record->u.words[0]; w++) {
            sum += record->u.words[w];
        }
        tp_histogram histogram = {0};
        if (tp_batch_histogram(&item->batch, record, &histogram) == TP_OK) {
            sum += sum_of(&histogram);
        }
        if (tp_batch_exponents(&item->batch, record, &histogram) == TP_OK) {
            sum += sum_of(&histogram);
        }
        const tp_key *key = tp_reader_key(reader, record->key);
        sum += key != NULL ? strlen(key->name) + strlen(key->global_name) : 0;
        uint32_t ndim = 0;
        const int64_t *dims = tp_reader_shape(reader, record->shape, &ndim);
        for (uint32_t d = 0; dims != NULL && d < ndim; d++) {
            sum += (uint64_t)dims[d];
        }
    }
    touched += sum;
}

/* Reads on to the end; *last is the last item. */
static void read_on(tp_reader *reader, size_t size, tp_item *last)
{
    tp_item item;
    tp_error error;
    for (size_t calls = 0;; calls++) {
        check(calls <= size);
        tp_status status = tp_reader_next(reader, &item, &error);
        if (status == TP_END || status == TP_ERR_VERSION) {
            return;
        }
        check(status == TP_OK || status == TP_ERR_CORRUPT);
        if (status == TP_OK) {
            check(item.position.offset > last->position.offset && item.position.offset <= size);
            touch(reader, &item);
            *last = item;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tp_reader *reader;
    tp_error error;
    tp_item last = {0};
    if (size == 0) {
        return 0;
    }
    size_t first = journal_file_begin(data, size);
    tp_status status = tp_reader_open(&reader, directory, &error);
    if (status == TP_OK) {
        read_on(reader, first, &last);
        size = journal_file_finish();
        read_on(reader, size, &last);
        if (last.type != 0) {
            check(tp_reader_seek(reader, last.position, &error) == TP_OK);
            check(tp_reader_next(reader, &last, &error) != TP_OK);
        }
        tp_reader_close(&reader);
    } else {
        check(status == TP_ERR_NOTFOUND || status == TP_ERR_VERSION);
    }
    return 0;
}
