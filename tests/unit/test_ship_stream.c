/* Rows of a growing journal, at a server that may fail at any call, and with memory that may fail
 * at any request: each row is there once in the end. */
#include "journal_fixture.h"

#include "base/mem.h"
#include "journal/cursor.h"
#include "ship/stream.h"

#define STEPS 12
#define SERIES 5
#define LINES_MAX 1000

/* A server that keeps rows as lines of text, and the names of series as rows. */
typedef struct server {
    tp_buf lines, open_lines; /* there, and of the open transaction */
    tp_rows series, open_series;
    tp_ship_cursor cursor;
} server;

static server there;             /* outlives connections */
static unsigned long fails_at;   /* the n-th call from now on; 0: none */
static unsigned long calls_left; /* of those before it, after a run */
static unsigned long then_every; /* and so many calls after each failure the next; 0: never */

static tp_status call(tp_error *error)
{
    if (fails_at == 0 || --fails_at > 0) {
        return TP_OK;
    }
    fails_at = then_every;
    return tp_fail(error, TP_ERR_IO, "gone");
}

static void copy_row(tp_rows *to, const tp_rows *from, uint64_t row)
{
    const tp_cell *cells = tp_rows_get(from, row);
    for (uint32_t i = 0; i < tp_tables[from->table].column_count; i++) {
        if (cells[i].kind == TP_CELL_TEXT) {
            tp_rows_add_text(to, tp_rows_text(from, &cells[i]));
        } else {
            tp_rows_add_optional(to, cells[i].u.integer, cells[i].kind != TP_CELL_NULL);
        }
    }
    tp_rows_end(to);
}

static tp_status find_run(void *private, const tp_shipped_run *run, int64_t *number,
                          tp_ship_cursor *cursor, const tp_series_sink *known, tp_error *error)
{
    tp_rows row = {.table = TP_TABLE_SERIES};
    tp_status status = call(error);
    (void)private;
    (void)run;
    *number = 1;
    *cursor = there.cursor;
    for (uint64_t i = 0; status == TP_OK && i < there.series.count; i++) {
        tp_rows_clear(&row);
        copy_row(&row, &there.series, i);
        status =
            row.cells.failed || row.texts.failed ? TP_ERR_NOMEM : known->add(known->context, &row);
        if (status != TP_OK) {
            tp_fail(error, status, "no memory");
        }
    }
    tp_rows_free(&row);
    return status;
}

static tp_status begin(void *private, int64_t number, const tp_ship_cursor *cursor, tp_error *error)
{
    (void)private;
    assert_int_equal(number, 1);
    assert_memory_equal(cursor, &there.cursor, sizeof *cursor);
    tp_buf_clear(&there.open_lines);
    tp_rows_clear(&there.open_series);
    return call(error);
}

static void put_line(tp_buf *out, const tp_rows *rows, uint64_t row)
{
    const tp_table *table = &tp_tables[rows->table];
    const tp_cell *cells = tp_rows_get(rows, row);
    tp_buf_printf(out, "%s", table->name);
    for (uint32_t i = 0; i < table->column_count; i++) {
        switch (cells[i].kind) {
        case TP_CELL_INTEGER:
            assert_int_equal(table->columns[i].kind, TP_CELL_INTEGER);
            tp_buf_printf(out, "|%" PRId64, cells[i].u.integer);
            break;
        case TP_CELL_REAL:
            assert_int_equal(table->columns[i].kind, TP_CELL_REAL);
            tp_buf_printf(out, "|%a", cells[i].u.real);
            break;
        case TP_CELL_TEXT:
            assert_int_equal(table->columns[i].kind, TP_CELL_TEXT);
            tp_buf_printf(out, "|%s", tp_rows_text(rows, &cells[i]));
            break;
        default:
            assert_true(table->columns[i].nullable);
            tp_buf_printf(out, "|");
            break;
        }
    }
    tp_buf_printf(out, "\n");
}

static tp_status insert(void *private, int64_t number, const tp_rows *rows, tp_error *error)
{
    (void)private;
    (void)number;
    for (uint64_t i = 0; i < rows->count; i++) {
        put_line(&there.open_lines, rows, i);
        if (rows->table == TP_TABLE_SERIES) {
            copy_row(&there.open_series, rows, i);
        }
    }
    if (there.open_lines.failed || there.open_series.cells.failed ||
        there.open_series.texts.failed) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory");
    }
    return call(error);
}

static tp_status commit(void *private, int64_t number, const tp_ship_cursor *cursor,
                        tp_error *error)
{
    (void)private;
    (void)number;
    tp_status status = call(error);
    if (status == TP_OK) {
        tp_mem_fail_after(0); /* the server's own memory isn't meant */
        tp_buf_put(&there.lines, there.open_lines.data, there.open_lines.size);
        for (uint64_t i = 0; i < there.open_series.count; i++) {
            copy_row(&there.series, &there.open_series, i);
        }
        there.cursor = *cursor;
    }
    return status;
}

static const tp_backend fake = {
    .find_run = find_run,
    .begin = begin,
    .insert = insert,
    .commit = commit,
};

static void forget_server(void)
{
    tp_buf_free(&there.lines);
    tp_buf_free(&there.open_lines);
    tp_rows_free(&there.series);
    tp_rows_free(&there.open_series);
    there =
        (server){.series = {.table = TP_TABLE_SERIES}, .open_series = {.table = TP_TABLE_SERIES}};
}

static void append(fixture *f, uint64_t step)
{
    tp_record records[SERIES];
    tp_error error;
    for (uint32_t i = 0; i < SERIES; i++) {
        const double x = (double)((step * 7 + i * 3) % 11) - 5;
        records[i] = (tp_record){.state = TP_SLOT_DONE, .key = i, .order = i, .dtype = TP_F32};
        records[i].kind = TP_RECORD_STATS;
        records[i].micro_step = i % 2;
        records[i].u.stats = (tp_stats){.count = 1,
                                        .nan = (step + i) % 5 == 0,
                                        .min = x,
                                        .max = x,
                                        .finite_min = x,
                                        .finite_max = x,
                                        .sum_sq = x * x};
    }
    const tp_batch batch = {.step = step,
                            .rank = 3,
                            .attempt = 1,
                            .pp_stage = -1,
                            .flags = step == 6 ? TP_BATCH_PARTIAL : 0,
                            .count = step == 3 ? SERIES - 1 : SERIES,
                            .records = records};
    assert_int_equal(tp_journal_append_batch(f->journal, &batch, &error), TP_OK);
    if (step == 5) {
        tp_record alert = {.state = TP_SLOT_DONE, .key = 4, .kind = TP_RECORD_ALERT};
        alert.u.alert.rule = TP_RULE_ANOMALY_NAN;
        assert_int_equal(tp_journal_append_alerts(f->journal, step, &alert, 1, &error), TP_OK);
    }
}

static fixture *make_journal(uint64_t segment_bytes)
{
    static const int64_t dim = 2;
    fixture *f = fixture_new(1, segment_bytes);
    uint32_t id;
    for (uint32_t i = 0; i < SERIES; i++) {
        char name[16];
        snprintf(name, sizeof name, i == 2 ? "bad\xff" : "a.%u", i);
        const tp_key key = {.name = i == 4 ? "a.1" : name,
                            .slot = -1,
                            .quantity = 1 + i % 3,
                            .argument = i == 4 ? "mask" : NULL};
        assert_int_equal(tp_registry_add_key(f->registry, &key, &id), TP_OK);
    }
    assert_int_equal(tp_registry_add_shape(f->registry, 1, &dim, &id), TP_OK);
    return f;
}

/* Until the journal has no more; a failure is one of those that are planted, and is tried again. */
static void deliver(tp_stream *stream, tp_link *link, bool last, unsigned long mem_fails_at)
{
    for (;;) {
        tp_error error = {0};
        tp_mem_fail_after(mem_fails_at);
        const tp_status status = tp_stream_deliver(stream, link, last, &error);
        tp_mem_fail_after(0);
        if (status == TP_END) {
            return;
        }
        assert_true(status == TP_OK || status == TP_ERR_IO || status == TP_ERR_NOMEM);
        assert_true(status == TP_OK || error.code == status);
        if (status != TP_OK) {
            mem_fails_at = 0;
        }
    }
}

static int compare_lines(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All lines in an order of their own; the caller frees. */
static char *sorted(void)
{
    char *lines[LINES_MAX];
    size_t count = 0;
    tp_buf_put(&there.lines, "", 1);
    for (char *line = strtok((char *)there.lines.data, "\n"); line != NULL;
         line = strtok(NULL, "\n")) {
        assert_true(count < LINES_MAX);
        lines[count++] = line;
    }
    qsort(lines, count, sizeof *lines, compare_lines);
    tp_buf all = TP_BUF_INIT;
    for (size_t i = 0; i < count; i++) {
        tp_buf_printf(&all, "%s\n", lines[i]);
    }
    tp_buf_put(&all, "", 1);
    return (char *)all.data;
}

/* Delivers a journal as it grows, step by step where in_steps, with one failure. */
static char *run(uint64_t rollup_steps, bool in_steps, unsigned long call_fails,
                 unsigned long mem_fails, unsigned long mem_fails_in_step)
{
    const tp_database_config config = {.step_interval = 2, .rollup_steps = rollup_steps};
    tp_link link = {.backend = &fake};
    tp_stream *stream;
    tp_error error;
    forget_server();
    for (int i = 0; i < TP_TABLE_COUNT; i++) {
        link.rows[i].table = (tp_table_id)i;
    }
    fixture *f = make_journal(4096);
    assert_int_equal(tp_stream_new(&stream, f->directory, &config, &error), TP_OK);
    fails_at = call_fails;
    for (uint64_t step = 0; step < STEPS; step++) {
        append(f, step);
        if (in_steps) {
            deliver(stream, &link, false, step == mem_fails_in_step ? mem_fails : 0);
        }
    }
    deliver(stream, &link, true, 0);
    calls_left = fails_at;
    fails_at = 0;
    tp_stream_free(&stream);
    for (int i = 0; i < TP_TABLE_COUNT; i++) {
        tp_rows_free(&link.rows[i]);
    }
    fixture_close(f);
    fixture_free(f);
    return sorted();
}

static size_t count_lines(const char *text, const char *beginning)
{
    size_t count = 0;
    for (const char *at = strstr(text, beginning); at != NULL; at = strstr(at + 1, beginning)) {
        count += at == text || at[-1] == '\n';
    }
    return count;
}

static void test_rows(void **state)
{
    (void)state;
    char *lines = run(4, false, 0, 0, 0);
    assert_int_equal(count_lines(lines, "tp_series|"), SERIES);
    assert_int_equal(count_lines(lines, "tp_step|"), STEPS - 1);   /* 6 did not end */
    assert_int_equal(count_lines(lines, "tp_value|"), 5 * SERIES); /* 0 2 4 8 10 */
    assert_int_equal(count_lines(lines, "tp_rollup|"), STEPS / 4 * SERIES);
    assert_int_equal(count_lines(lines, "tp_alert|1|5|4|0|AnomalyNan||"), 1);
    assert_int_equal(count_lines(lines, "tp_series|2|bad\xef\xbf\xbd|"), 1);
    /* Series 1 has -2, 5, 1, -3 in steps 0 to 3, its norm is their magnitude or NaN in step 4. */
    assert_int_equal(
        count_lines(lines, "tp_rollup|1|1|0|3|4|0|0|0x1p+0|0x1.4p+2|0x1.8p+1|-0x1.8p+1|0x1.4p+2\n"),
        1);
    tp_free(lines);
}

static void test_a_server_that_fails(void **state)
{
    (void)state;
    for (uint64_t span = 0; span <= 4; span += 4) {
        char *expected = run(span, false, 0, 0, 0);
        bool has_failed = true;
        for (unsigned long n = 1; has_failed; n++) {
            char *found = run(span, true, n, 0, 0);
            assert_string_equal(found, expected);
            tp_free(found);
            has_failed = calls_left == 0;
        }
        tp_free(expected);
    }
}

/* Once a span of steps has been cut, it is cut again. */
static void test_a_server_that_fails_again_and_again(void **state)
{
    (void)state;
    char *expected = run(4, false, 0, 0, 0);
    for (then_every = 9; then_every < 40; then_every++) {
        char *found = run(4, true, then_every, 0, 0);
        assert_string_equal(found, expected);
        tp_free(found);
    }
    then_every = 0;
    tp_free(expected);
}

/* Another start in the same journal, whose ids are those of other keys. */
static void test_attempts(void **state)
{
    const tp_database_config config = {.step_interval = 1, .rollup_steps = 2};
    tp_link link = {.backend = &fake};
    tp_stream *stream;
    tp_error error;
    (void)state;
    forget_server();
    for (int i = 0; i < TP_TABLE_COUNT; i++) {
        link.rows[i].table = (tp_table_id)i;
    }
    fixture *f = fixture_new(1, 4096);
    assert_int_equal(tp_journal_close(&f->journal, &error), TP_OK);
    for (uint32_t attempt = 0; attempt < 2; attempt++) {
        tp_run_info info = *fixture_run();
        tp_registry *registry;
        uint32_t id;
        info.attempt = attempt;
        assert_int_equal(tp_registry_new(&registry), TP_OK);
        for (uint32_t i = 0; i < 2; i++) {
            const tp_key key = {.name = i == attempt ? "one" : "two", .slot = -1, .quantity = 4};
            assert_int_equal(tp_registry_add_key(registry, &key, &id), TP_OK);
        }
        assert_int_equal(tp_registry_add_shape(registry, 0, NULL, &id), TP_OK);
        assert_int_equal(tp_journal_open(&f->journal, f->directory, &info, registry, 0, &error),
                         TP_OK);
        for (uint64_t step = 3 * attempt; step < 3 * attempt + 3; step++) {
            tp_record record = {.state = TP_SLOT_DONE, .kind = TP_RECORD_STATS, .dtype = TP_F32};
            record.u.stats.sum_sq = attempt == 0 ? 4 : 9;
            const tp_batch batch = {
                .step = step, .rank = 3, .attempt = attempt, .count = 1, .records = &record};
            assert_int_equal(tp_journal_append_batch(f->journal, &batch, &error), TP_OK);
        }
        assert_int_equal(tp_journal_close(&f->journal, &error), TP_OK);
        tp_registry_free(registry);
    }
    assert_int_equal(tp_stream_new(&stream, f->directory, &config, &error), TP_OK);
    deliver(stream, &link, true, 0);
    tp_stream_free(&stream);
    for (int i = 0; i < TP_TABLE_COUNT; i++) {
        tp_rows_free(&link.rows[i]);
    }
    fixture_free(f);
    char *lines = sorted();
    /* Key 0 is "one" first, and then "two"; norms are 2 and 3. */
    assert_int_equal(count_lines(lines, "tp_series|0|one|"), 1);
    assert_int_equal(count_lines(lines, "tp_series|1|two|"), 1);
    assert_int_equal(count_lines(lines, "tp_series|"), 2);
    for (uint32_t step = 0; step < 6; step++) {
        char line[80];
        snprintf(line, sizeof line, "tp_value|%u|%u|%u|", step / 3, step, step / 3);
        assert_int_equal(count_lines(lines, line), 1);
    }
    assert_int_equal(count_lines(lines, "tp_rollup|0|0|0|1|2|0|0|0x1p+1|0x1p+1|0x1p+1|"), 1);
    assert_int_equal(count_lines(lines, "tp_rollup|0|0|2|2|1|0|0|0x1p+1|0x1p+1|0x1p+1|"), 1);
    assert_int_equal(count_lines(lines, "tp_rollup|1|1|3|3|1|0|0|0x1.8p+1|0x1.8p+1|0x1.8p+1|"), 1);
    assert_int_equal(count_lines(lines, "tp_rollup|1|1|4|5|2|0|0|0x1.8p+1|0x1.8p+1|0x1.8p+1|"), 1);
    assert_int_equal(count_lines(lines, "tp_rollup|"), 4);
    tp_free(lines);
}

/* What is delivered the journal's writer may remove; not what a roll-up has to be made from yet. */
static void test_it_tells_how_far_it_has_come(void **state)
{
    (void)state;
    for (uint64_t span = 0; span <= 4; span += 4) {
        const tp_database_config config = {.step_interval = 1, .rollup_steps = span};
        tp_link link = {.backend = &fake, .server_hash = 0x1234abcd};
        tp_stream *stream;
        tp_error error;
        char path[TP_PATH_MAX];
        uint64_t begins[STEPS]; /* segments in which the steps lie */
        forget_server();
        for (int i = 0; i < TP_TABLE_COUNT; i++) {
            link.rows[i].table = (tp_table_id)i;
        }
        fixture *f = make_journal(600);
        assert_int_equal(tp_path_join(path, f->directory, "ship/passed-1234abcd.cursor"), TP_OK);
        assert_int_equal(tp_stream_new(&stream, f->directory, &config, &error), TP_OK);
        for (uint64_t step = 0; step < STEPS; step++) {
            tp_cursor cursor;
            tp_buf blob = TP_BUF_INIT;
            append(f, step);
            begins[step] = tp_journal_position(f->journal).segment;
            deliver(stream, &link, false, 0);
            assert_int_equal(tp_cursor_load(path, &cursor, &blob, NULL), TP_OK);
            assert_true(cursor.any);
            /* A step that did not end is no part of a delivery. */
            const uint64_t needed = span > 0 ? step / span * span : step == 6 ? step - 1 : step;
            const uint64_t before = needed > 0 && span > 0 ? begins[needed - 1] : begins[needed];
            assert_in_range(cursor.position.segment, before, begins[needed]);
            tp_buf_free(&blob);
        }
        assert_true(begins[STEPS - 1] > 3);
        tp_stream_free(&stream);
        for (int i = 0; i < TP_TABLE_COUNT; i++) {
            tp_rows_free(&link.rows[i]);
        }
        fixture_close(f);
        fixture_free(f);
    }
    forget_server();
}

static void test_no_memory(void **state)
{
    (void)state;
    char *expected = run(4, false, 0, 0, 0);
    for (unsigned long n = 1; n < 150; n++) {
        char *found = run(4, true, 0, n, n % STEPS);
        assert_string_equal(found, expected);
        tp_free(found);
    }
    tp_free(expected);
    forget_server();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_a_server_that_fails),
        cmocka_unit_test(test_a_server_that_fails_again_and_again),
        cmocka_unit_test(test_attempts),
        cmocka_unit_test(test_it_tells_how_far_it_has_come),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
