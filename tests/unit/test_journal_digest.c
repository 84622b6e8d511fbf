/* Digests of a segment with calls and micro steps, against brute force; single words of its
 * records; and payloads that are not what they should be. */
#include <math.h>

#include "journal_fixture.h"

#include "journal/digest.h"
#include "journal/segment.h"

#define KEYS 900
#define CALLS 3
#define RECORDS 6000 /* a batch of more than 1 MiB */
#define STEPS 21     /* spans of 16 and of 5 */
#define SCALAR 7     /* the key of what is logged */

static double number(fixture *f)
{
    return (double)(int64_t)random_u64(&f->random) * exp2(-(double)(random_u64(&f->random) % 90));
}

static void fill(fixture *f, tp_record *record, uint32_t step)
{
    tp_stats *stats = &record->u.stats;
    uint64_t *words = (uint64_t *)(void *)record;
    for (size_t w = 0; w < sizeof *record / 8; w++) {
        words[w] = random_u64(&f->random);
    }
    record->state = random_u64(&f->random) % 16 == 0 ? TP_SLOT_RESERVED : TP_SLOT_DONE;
    record->kind = random_u64(&f->random) % 16 == 0 ? TP_RECORD_COLLECTIVE : TP_RECORD_STATS;
    record->key = (uint32_t)(random_u64(&f->random) % (step < 18 ? KEYS - 5 : KEYS));
    record->call = (uint32_t)(random_u64(&f->random) % CALLS);
    record->flags = 0;
    stats->count = 1 + random_u64(&f->random) % 9;
    stats->nan = random_u64(&f->random) % 512 == 0;
    stats->pos_inf = random_u64(&f->random) % 512 == 0;
    stats->neg_inf = random_u64(&f->random) % 512 == 0;
    stats->zeros = random_u64(&f->random) % 3;
    double *const numbers[] = {&stats->min,     &stats->max, &stats->finite_min, &stats->finite_max,
                               &stats->abs_max, &stats->sum, &stats->sum_abs};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        *numbers[i] = number(f);
    }
    stats->sum_sq = fabs(number(f));
    stats->m2 = fabs(number(f));
    stats->sq_exp = 0;
}

typedef struct large {
    fixture *f;
    tp_record *records; /* [STEPS][RECORDS] */
    tp_segment file;
    tp_index index;
    uint64_t offsets[TP_DIGEST_OF_STAT + TP_DIGEST_STATS];
} large;

static void make(large *l)
{
    tp_error error;
    uint32_t id;
    l->f = fixture_new(11, 0);
    l->records = calloc((size_t)STEPS * RECORDS, sizeof *l->records);
    assert_non_null(l->records);
    for (uint32_t i = 0; i < KEYS; i++) {
        char name[32];
        snprintf(name, sizeof name, "fc%u", (unsigned)i);
        const tp_key key = {.name = name,
                            .slot = -1,
                            .quantity = i == SCALAR ? TP_SCALAR : TP_ACTIVATION,
                            .role = i == SCALAR ? TP_ROLE_NONE : TP_ROLE_OUTPUT};
        assert_int_equal(tp_registry_add_key(l->f->registry, &key, &id), TP_OK);
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        tp_record *records = l->records + (size_t)step * RECORDS;
        for (uint32_t i = 0; i < RECORDS; i++) {
            fill(l->f, &records[i], step);
        }
        const tp_batch batch = {.step = 100 + step, .count = RECORDS, .records = records};
        assert_int_equal(tp_journal_append_batch(l->f->journal, &batch, &error), TP_OK);
    }
    assert_int_equal(tp_journal_close(&l->f->journal, &error), TP_OK);
    l->file = (tp_segment){.fd = -1};
    assert_int_equal(tp_segment_open(&l->file, l->f->folder, 0), TP_OK);
    tp_index_load(&l->index, &l->file);
    for (uint64_t i = 0; i < tp_index_count(&l->index); i++) {
        const tp_index_entry *entry = tp_index_at(&l->index, i);
        if (entry->type == TP_FRAME_DIGEST) {
            l->offsets[entry->level] = entry->offset;
        }
    }
}

static void free_large(large *l)
{
    tp_segment_close(&l->file);
    tp_index_free(&l->index);
    free(l->records);
    fixture_free(l->f);
}

static void read_part(large *l, uint32_t part)
{
    assert_true(l->offsets[part] > 0);
    assert_true(tp_segment_read(&l->file, l->offsets[part], TP_FRAME_DIGEST));
}

/* By the definition: with operations of the library's on one record, and in order of values. */
static tp_digest_value extremes(const large *l, const tp_digest_row *row, uint32_t stat,
                                uint32_t first, uint32_t end)
{
    tp_digest_value found = tp_digest_none();
    for (size_t i = (size_t)first * RECORDS; i < (size_t)end * RECORDS; i++) {
        const tp_record *record = &l->records[i];
        const tp_stats *stats = &record->u.stats;
        if (record->kind != TP_RECORD_STATS || record->state != TP_SLOT_DONE ||
            record->key != row->key || record->call != row->call) {
            continue;
        }
        const bool has_sign = stat == TP_DIGEST_MEAN || stat >= TP_DIGEST_MIN;
        const double values[] = {sqrt(stats->sum_sq),
                                 stats->abs_max,
                                 stats->sum / (double)stats->count,
                                 sqrt(stats->m2 / (double)stats->count),
                                 stats->finite_min,
                                 stats->finite_max,
                                 (double)stats->zeros / (double)stats->count};
        const float value = stats->nan > 0       ? (float)NAN
                            : stats->pos_inf > 0 ? (float)INFINITY
                            : stats->neg_inf > 0 ? (float)(has_sign ? -INFINITY : INFINITY)
                                                 : (float)values[stat];
        if (tp_digest_is_none(found)) {
            found = (tp_digest_value){value, value};
        } else if (isnan(value) || isnan(found.low)) {
            found = (tp_digest_value){(float)NAN, (float)NAN};
        } else {
            found.low = value < found.low ? value : found.low;
            found.high = value > found.high ? value : found.high;
        }
    }
    return found;
}

static bool is_same(float a, float b)
{
    return a == b || (isnan(a) && isnan(b));
}

static void digests_are_the_extremes_of_the_records(void **state)
{
    large *l = *state;
    tp_digest digest = {.rows = 0};
    tp_buf rows = TP_BUF_INIT;
    tp_buf values = TP_BUF_INIT;
    read_part(l, TP_DIGEST_OF_STEPS);
    assert_int_equal(tp_digest_get_steps(&l->file.payload, &digest), TP_OK);
    assert_int_equal(digest.steps.size / sizeof(tp_digest_step), STEPS);
    assert_int_equal(digest.rows, KEYS * CALLS);
    read_part(l, TP_DIGEST_OF_ROWS);
    assert_int_equal(tp_digest_get_rows(&l->file.payload, &digest, &rows), TP_OK);
    const tp_digest_scalar *scalars = (const tp_digest_scalar *)(const void *)digest.scalars.data;
    const tp_digest_row *row = (const tp_digest_row *)(const void *)rows.data;
    for (size_t i = 0; i < digest.scalars.size / sizeof *scalars; i++) {
        assert_int_equal(row[scalars[i].row].key, SCALAR);
    }
    for (uint32_t stat = 0; stat < TP_DIGEST_STATS; stat++) {
        read_part(l, TP_DIGEST_OF_STAT + stat);
        assert_int_equal(tp_digest_get_values(&l->file.payload, 2, digest.rows, &values), TP_OK);
        const tp_digest_value *found = (const tp_digest_value *)(const void *)values.data;
        for (uint32_t i = stat; i < digest.rows; i += 97) {
            for (uint32_t span = 0; span < 2; span++) {
                const tp_digest_value right =
                    extremes(l, &row[i], stat, span * 16, span == 0 ? 16 : STEPS);
                const tp_digest_value *one = &found[(size_t)span * digest.rows + i];
                assert_int_equal(tp_digest_is_none(*one), tp_digest_is_none(right));
                assert_true(is_same(one->low, right.low) && is_same(one->high, right.high));
            }
        }
    }
    tp_digest_free(&digest);
    tp_buf_free(&rows);
    tp_buf_free(&values);
}

static void words_are_those_of_the_records(void **state)
{
    large *l = *state;
    tp_buf records = TP_BUF_INIT;
    uint32_t step = 0;
    for (uint64_t i = 0; i < tp_index_count(&l->index); i++) {
        const tp_index_entry *entry = tp_index_at(&l->index, i);
        uint64_t count;
        if (entry->type != TP_FRAME_BATCH) {
            continue;
        }
        /* State, key, kind and flags; what extremes are made of, which are stored as differences,
         * or the sum of squares. */
        const uint32_t words = 0x19 | (step % 2 == 0 ? 0x3e000 : 0x200000);
        assert_true(tp_segment_read_words(&l->file, entry->offset, words, &records, &count));
        assert_int_equal(count, RECORDS);
        for (uint32_t r = 0; r < RECORDS; r++) {
            const uint64_t *found = (const uint64_t *)(const void *)records.data + (size_t)r * 24;
            const uint64_t *right =
                (const uint64_t *)(const void *)(l->records + (size_t)step * RECORDS + r);
            for (uint32_t w = 0; w < 24; w++) {
                assert_true((words >> w & 1) == 0 || found[w] == right[w]);
            }
        }
        step++;
    }
    assert_int_equal(step, STEPS);
    tp_buf_free(&records);
}

/* Whatever the bytes are, what is taken in of them is sound. */
static void senseless_payloads_are_refused(void **state)
{
    large *l = *state;
    tp_buf rows = TP_BUF_INIT;
    tp_digest digest = {.rows = 0};
    for (uint32_t part = 0; part < 3; part++) {
        read_part(l, part);
        tp_buf whole = TP_BUF_INIT;
        tp_buf_put_buf(&whole, &l->file.payload);
        for (uint32_t i = 0; i < 400; i++) {
            tp_buf damaged = TP_BUF_INIT;
            tp_buf_put(&damaged, whole.data,
                       i % 4 == 0 ? random_u64(&l->f->random) % whole.size : whole.size);
            for (uint32_t k = 0; k < 3 && damaged.size > 0; k++) {
                const size_t near = i % 2 == 0 ? 64 : damaged.size;
                const size_t at = random_u64(&l->f->random) % near;
                if (at < damaged.size) {
                    damaged.data[at] = (uint8_t)random_u64(&l->f->random);
                }
            }
            tp_digest other = {.rows = 0};
            if (part == TP_DIGEST_OF_STEPS && tp_digest_get_steps(&damaged, &other) == TP_OK) {
                const tp_digest_span *spans =
                    (const tp_digest_span *)(const void *)other.spans.data;
                uint64_t steps = 0;
                for (size_t s = 0; s < other.spans.size / sizeof *spans; s++) {
                    assert_true(spans[s].rows <= other.rows);
                    steps += spans[s].steps;
                }
                assert_int_equal(steps, other.steps.size / sizeof(tp_digest_step));
            }
            digest.rows = KEYS * CALLS;
            (void)tp_digest_get_rows(&damaged, &digest, &rows);
            (void)tp_digest_get_values(&damaged, 2, KEYS * CALLS, &rows);
            tp_digest_free(&other);
            tp_buf_free(&damaged);
        }
        tp_buf_free(&whole);
    }
    tp_buf_free(&rows);
}

static int set_up(void **state)
{
    static large l;
    make(&l);
    *state = &l;
    return 0;
}

static int tear_down(void **state)
{
    free_large(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_are_the_extremes_of_the_records),
        cmocka_unit_test(words_are_those_of_the_records),
        cmocka_unit_test(senseless_payloads_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
