/* The small files in which followers remember how far they have come. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "check.h"
#include "journal/cursor.h"

static char directory[] = "/tmp/tp_cursor_XXXXXX";
static char path[64];

static const tp_cursor some = {.any = true,
                               .step = UINT64_C(0x1122334455667788),
                               .attempt = 9,
                               .position = {.segment = 12, .offset = UINT64_C(1) << 40}};

static void assert_cursor(const tp_cursor *expected, const void *blob, size_t size)
{
    tp_cursor cursor;
    tp_buf loaded = TP_BUF_INIT;
    tp_error error;
    assert_int_equal(tp_cursor_load(path, &cursor, &loaded, &error), TP_OK);
    assert_int_equal(cursor.any, expected->any);
    assert_int_equal(cursor.step, expected->step);
    assert_int_equal(cursor.attempt, expected->attempt);
    assert_int_equal(cursor.position.segment, expected->position.segment);
    assert_int_equal(cursor.position.offset, expected->position.offset);
    assert_int_equal(loaded.size, size);
    if (size > 0) {
        assert_memory_equal(loaded.data, blob, size);
    }
    tp_buf_free(&loaded);
}

static void remembers(void **state)
{
    (void)state;
    const tp_cursor none = {0};
    tp_buf blob = TP_BUF_INIT;
    tp_error error;
    assert_cursor(&none, NULL, 0);
    assert_int_equal(tp_cursor_store(path, &some, &blob, &error), TP_OK);
    assert_cursor(&some, NULL, 0);
    tp_buf_put(&blob, "offsets\0of files", 16);
    assert_int_equal(tp_cursor_store(path, &none, &blob, &error), TP_OK);
    assert_cursor(&none, "offsets\0of files", 16);
    tp_buf_free(&blob);
}

static void a_failed_store_leaves_the_old_cursor(void **state)
{
    (void)state;
    tp_buf blob = TP_BUF_INIT;
    tp_error error;
    tp_buf_put(&blob, "old", 3);
    assert_int_equal(tp_cursor_store(path, &some, &blob, &error), TP_OK);
    tp_buf_put(&blob, "new", 3);
    tp_file_fail_after(1, ENOSPC);
    assert_int_equal(tp_cursor_store(path, &some, &blob, &error), TP_ERR_NOSPACE);
    tp_file_fail_after(0, 0);
    tp_mem_fail_after(1);
    assert_int_equal(tp_cursor_store(path, &some, &blob, &error), TP_ERR_NOMEM);
    tp_mem_fail_after(0);
    assert_cursor(&some, "old", 3);

    tp_cursor cursor;
    tp_buf loaded = TP_BUF_INIT;
    for (unsigned long n = 1; n <= 2; n++) {
        tp_mem_fail_after(n);
        assert_int_equal(tp_cursor_load(path, &cursor, &loaded, &error), TP_ERR_NOMEM);
        tp_mem_fail_after(0);
    }
    tp_buf_free(&loaded);
    tp_buf_free(&blob);
}

static void damage_is_noticed(void **state)
{
    (void)state;
    tp_buf blob = TP_BUF_INIT;
    tp_buf file = TP_BUF_INIT;
    tp_buf loaded = TP_BUF_INIT;
    tp_cursor cursor;
    tp_error error;
    tp_buf_put(&blob, "blob", 4);
    assert_int_equal(tp_cursor_store(path, &some, &blob, &error), TP_OK);
    assert_int_equal(tp_file_read(path, &file, &error), TP_OK);
    for (size_t i = 0; i < file.size; i++) {
        file.data[i] ^= 0x10;
        assert_int_equal(tp_file_replace(path, file.data, file.size, &error), TP_OK);
        assert_int_equal(tp_cursor_load(path, &cursor, &loaded, &error), TP_ERR_CORRUPT);
        file.data[i] ^= 0x10;
        assert_int_equal(tp_file_replace(path, file.data, i, &error), TP_OK);
        assert_int_equal(tp_cursor_load(path, &cursor, &loaded, &error), TP_ERR_CORRUPT);
        assert_false(cursor.any);
    }
    tp_buf_free(&blob);
    tp_buf_free(&file);
    tp_buf_free(&loaded);
}

static int make_directory(void **state)
{
    (void)state;
    if (mkdtemp(directory) == NULL) {
        return -1;
    }
    snprintf(path, sizeof path, "%s/csv.cursor", directory);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(remembers),
        cmocka_unit_test(a_failed_store_leaves_the_old_cursor),
        cmocka_unit_test(damage_is_noticed),
    };
    return cmocka_run_group_tests_name("cursor", tests, make_directory, remove_directory);
}
