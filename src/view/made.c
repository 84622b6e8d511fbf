/* A segment of a large journal that has no digest: of an older version, or of a run that was killed
 * and went on; or one whose steps a later attempt has repeated. It is made of the records. */
#include "view/brief_parts.h"
#include "view/causes.h"

static const tp_key *key_of(const void *reader, uint32_t key)
{
    return tp_reader_key(reader, key);
}

/* Takes in a step that stands behind this offset. */
static tp_status take_batch(tp_view_run *run, tp_view_rank *rank, uint64_t segment,
                            tp_digests *digests, const tp_batch *batch, uint64_t before)
{
    tp_brief *brief = rank->brief;
    uint64_t offset = 0; /* not found: it is looked for by those who read it */
    uint32_t row = (uint32_t)(digests->rows.size / sizeof(tp_digest_row));
    tp_status status = TP_OK;
    (void)tp_segment_find_batch(&brief->file, before, &offset);
    tp_digests_add(digests, batch, offset, key_of, rank->reader);
    if (digests->failed) {
        return TP_ERR_NOMEM;
    }
    pthread_rwlock_wrlock(&run->lock);
    for (; row < digests->rows.size / sizeof(tp_digest_row) && status == TP_OK; row++) {
        const tp_digest_row *one = (const tp_digest_row *)(const void *)digests->rows.data + row;
        status = tp_brief_add_row(run, rank, one, tp_reader_key(rank->reader, one->key));
    }
    if (status == TP_OK) {
        status = tp_brief_add_step(
            rank, segment,
            (const tp_digest_step *)(const void *)(digests->steps.data + digests->steps.size) - 1);
    }
    run->version++;
    pthread_rwlock_unlock(&run->lock);
    return status;
}

/* Reads the segment to its end. */
static tp_status read_steps(tp_view_run *run, tp_view_rank *rank, uint64_t segment,
                            tp_digests *digests)
{
    uint64_t before = 0;
    tp_item item;
    tp_status status = tp_reader_seek(rank->reader, (tp_position){segment, 0}, NULL);
    while (status == TP_OK || status == TP_ERR_CORRUPT) {
        status = tp_reader_next(rank->reader, &item, NULL);
        rank->damaged = rank->damaged || status == TP_ERR_CORRUPT;
        if (status != TP_OK) {
            continue;
        }
        if (item.position.segment != segment) {
            break;
        }
        if (item.type == TP_ITEM_BATCH) {
            status = take_batch(run, rank, segment, digests, &item.batch, before);
        } else if (item.type == TP_ITEM_ALERTS) {
            pthread_rwlock_wrlock(&run->lock);
            status = tp_view_take_alerts(run, rank, &item.batch);
            pthread_rwlock_unlock(&run->lock);
        }
        before = item.position.offset;
    }
    return status == TP_END ? TP_OK : status;
}

tp_status tp_brief_make(tp_view_run *run, tp_view_rank *rank, tp_brief_segment *one)
{
    tp_brief *brief = rank->brief;
    tp_digests digests = {.failed = false};
    tp_status status = tp_segment_open(&brief->file, brief->folder, one->number);
    if (status == TP_OK) {
        status = tp_brief_begin_vocabulary(brief);
    }
    if (status == TP_OK) {
        status = read_steps(run, rank, one->number, &digests);
    }
    tp_digests_finish(&digests);
    if (status == TP_OK && digests.failed) {
        status = TP_ERR_NOMEM;
    }
    if (status == TP_OK && digests.steps.size > 0) {
        one->is_made = true;
        one->rows = (uint32_t)(digests.rows.size / sizeof(tp_digest_row));
        one->vocabulary = (uint32_t)(brief->vocabularies.size / sizeof(tp_vocabulary)) - 1;
        one->made_spans = digests.spans;
        one->made_values = digests.values;
        digests.spans = (tp_buf)TP_BUF_INIT;
        digests.values = (tp_buf)TP_BUF_INIT;
        brief->made += one->made_values.size;
        pthread_rwlock_wrlock(&run->lock);
        status = tp_brief_add_segment(rank, one, &one->made_spans, &digests.scalars);
        pthread_rwlock_unlock(&run->lock);
    }
    tp_digests_free(&digests);
    return status;
}
