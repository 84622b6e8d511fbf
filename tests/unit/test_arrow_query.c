/* Streams of tables: who owns what, what two attempts share, and every way out of a lack of memory. */
#include "journal_fixture.h"

#include "arrow/query.h"
#include "base/mem.h"

static tp_query *query_of(const char *directory, uint32_t table)
{
    tp_query_options options = tp_query_options_defaults(table);
    tp_query *query = NULL;
    tp_error error;
    options.directories = &directory;
    options.directory_count = 1;
    options.batch_rows = 7;
    assert_int_equal(tp_query_new(&query, &options, &error), TP_OK);
    return query;
}

static void add_key(tp_registry *registry, const char *name, uint32_t quantity, uint32_t *id)
{
    const tp_key key = {.name = name, .quantity = quantity, .slot = -1};
    assert_int_equal(tp_registry_add_key(registry, &key, id), TP_OK);
}

static void append(fixture *f, uint64_t step, uint32_t key, double value)
{
    tp_error error;
    tp_record record = {
        .state = TP_SLOT_DONE, .key = key, .kind = TP_RECORD_STATS, .u.stats.min = value};
    const tp_batch batch = {.step = step, .count = 1, .records = &record};
    assert_int_equal(tp_journal_append_batch(f->journal, &batch, &error), TP_OK);
}

/* The text of a dictionary's column in a row. */
static void assert_text(const struct ArrowArray *column, int64_t row, const char *expected)
{
    const int32_t number = ((const int32_t *)column->buffers[1])[row];
    const int32_t *offsets = column->dictionary->buffers[1];
    const char *bytes = column->dictionary->buffers[2];
    const size_t size = (size_t)(offsets[number + 1] - offsets[number]);
    assert_int_equal(size, strlen(expected));
    assert_memory_equal(bytes + offsets[number], expected, size);
}

static struct ArrowArray *child(const struct ArrowArray *array, uint32_t table, const char *name)
{
    for (uint32_t i = 0; tp_column_at(table, i) != NULL; i++) {
        if (strcmp(tp_column_name(tp_column_at(table, i)), name) == 0) {
            return array->children[i];
        }
    }
    fail_msg("no column %s", name);
    return NULL;
}

/* An id means something else in the second attempt, and one name comes again. */
static void keys_of_two_attempts(void **state)
{
    (void)state;
    fixture *f = fixture_new(1, 0);
    uint32_t id;
    add_key(f->registry, "a", TP_ACTIVATION, &id);
    append(f, 0, id, 1);
    add_key(f->registry, "b\xff\xed\xa0\x80\xe5", TP_ACTIVATION, &id);
    append(f, 1, id, 2);
    fixture_close(f);
    tp_registry_free(f->registry);
    assert_int_equal(tp_registry_new(&f->registry), TP_OK);
    fixture_open(f, 0);
    add_key(f->registry, "c", TP_ACTIVATION, &id);
    append(f, 2, id, 3);
    add_key(f->registry, "a", TP_ACTIVATION, &id);
    append(f, 3, id, 4);
    add_key(f->registry, "a", TP_EXP_AVG, &id);
    append(f, 4, id, 5);
    fixture_close(f);

    struct ArrowArrayStream stream;
    struct ArrowArray array;
    tp_query *query = query_of(f->directory, TP_TABLE_KEYS);
    assert_int_equal(tp_query_stream(query, &stream), TP_OK);
    assert_int_equal(stream.get_next(&stream, &array), 0);
    assert_int_equal(array.length, 4);
    const struct ArrowArray *names = child(&array, TP_TABLE_KEYS, "name");
    assert_text(names, 0, "a");
    /* A byte of no character, a surrogate's three, and a character that ends early. */
    assert_text(names, 1, "b\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    assert_text(names, 2, "c");
    assert_text(names, 3, "a");
    array.release(&array);
    assert_int_equal(stream.get_next(&stream, &array), 0);
    assert_null(array.release);
    stream.release(&stream);
    tp_query_drop(query);

    query = query_of(f->directory, TP_TABLE_SERIES);
    assert_int_equal(tp_query_stream(query, &stream), TP_OK);
    assert_int_equal(stream.get_next(&stream, &array), 0);
    assert_int_equal(array.length, 5);
    names = child(&array, TP_TABLE_SERIES, "name");
    const double *smallest = child(&array, TP_TABLE_SERIES, "min")->buffers[1];
    static const char *const expected[] = {"a", NULL, "c", "a", "a"};
    for (int64_t i = 0; i < 5; i++) {
        assert_true(smallest[i] == (double)(i + 1));
        if (expected[i] != NULL) {
            assert_text(names, i, expected[i]);
        }
    }
    array.release(&array);
    stream.release(&stream);
    tp_query_drop(query);
    fixture_free(f);
}

/* A consumer may take a column out and let go of the rest. */
static void a_moved_column_stays(void **state)
{
    (void)state;
    fixture *f = fixture_new(1, 0);
    uint32_t id;
    add_key(f->registry, "a", TP_ACTIVATION, &id);
    append(f, 0, id, 1);
    fixture_close(f);
    struct ArrowArrayStream stream;
    struct ArrowArray array;
    tp_query *query = query_of(f->directory, TP_TABLE_SERIES);
    assert_int_equal(tp_query_stream(query, &stream), TP_OK);
    tp_query_drop(query); /* the stream holds it */
    assert_int_equal(stream.get_next(&stream, &array), 0);
    struct ArrowArray *place = child(&array, TP_TABLE_SERIES, "name");
    struct ArrowArray moved = *place;
    place->release = NULL;
    array.release(&array);
    assert_null(array.release);
    stream.release(&stream);
    assert_null(stream.release);
    assert_text(&moved, 0, "a");
    moved.release(&moved);
    fixture_free(f);
}

/* Rows of a table, -1 when anything failed. What was begun is released in either case. */
static int64_t count_rows(const char *directory, uint32_t table)
{
    tp_query_options options = tp_query_options_defaults(table);
    tp_query *query = NULL;
    struct ArrowArrayStream stream;
    struct ArrowSchema schema;
    tp_error error;
    int64_t rows = 0;
    options.directories = &directory;
    options.directory_count = 1;
    options.batch_rows = 7;
    if (tp_query_new(&query, &options, &error) != TP_OK) {
        return -1;
    }
    const tp_status status = tp_query_stream(query, &stream);
    tp_query_drop(query);
    if (status != TP_OK) {
        return -1;
    }
    if (stream.get_schema(&stream, &schema) != 0) {
        stream.release(&stream);
        return -1;
    }
    schema.release(&schema);
    while (rows >= 0) {
        struct ArrowArray array;
        if (stream.get_next(&stream, &array) != 0) {
            assert_non_null(stream.get_last_error(&stream));
            assert_null(array.release);
            assert_int_not_equal(stream.get_next(&stream, &array), 0); /* it doesn't recover */
            rows = -1;
        } else if (array.release == NULL) {
            break;
        } else {
            rows += array.length;
            array.release(&array);
        }
    }
    stream.release(&stream);
    return rows;
}

static void lack_of_memory(void **state)
{
    (void)state;
    fixture *f = fixture_new(1, 0);
    for (uint32_t step = 0; step < 3; step++) {
        for (uint32_t i = 0; i < 5; i++) {
            char name[16];
            uint32_t id;
            snprintf(name, sizeof name, "key%u", i + step);
            add_key(f->registry, name, i == 0 ? TP_GRAD_REDUCED : TP_ACTIVATION, &id);
            append(f, step, id, i);
        }
    }
    fixture_close(f);
    static const int64_t expected[] = {
        [TP_TABLE_RUNS] = 1,     [TP_TABLE_KEYS] = 9,   [TP_TABLE_SERIES] = 15,
        [TP_TABLE_ALERTS] = 0,   [TP_TABLE_STEPS] = 15, [TP_TABLE_GAPS] = 0,
        [TP_TABLE_OVERVIEW] = 9, [TP_TABLE_MERGED] = 3, [TP_TABLE_EXPONENTS] = 0};
    for (uint32_t table = TP_TABLE_RUNS; table <= TP_TABLE_COUNT; table++) {
        unsigned long n = 1;
        int64_t rows = -1;
        for (; rows < 0; n++) {
            tp_mem_fail_after(n);
            rows = count_rows(f->directory, table);
            tp_mem_fail_after(0);
        }
        assert_int_equal(rows, expected[table]);
        assert_true(n > 10);
    }
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_two_attempts),
        cmocka_unit_test(a_moved_column_stays),
        cmocka_unit_test(lack_of_memory),
    };
    return cmocka_run_group_tests_name("arrow", tests, NULL, NULL);
}
