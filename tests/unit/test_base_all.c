/* The small things that everything stands on. */
#include "check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "base/file.h"
#include "base/map.h"
#include "base/mem.h"

static void test_crc32c(void **state)
{
    (void)state;
    /* RFC 3720, appendix B.4, and the check value of the CRC catalogue. */
    uint8_t bytes[32];
    assert_int_equal(tp_crc32c(0, "123456789", 9), 0xe3069283);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(tp_crc32c(0, bytes, sizeof bytes), 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(tp_crc32c(0, bytes, sizeof bytes), 0x62a8ab43);
    for (uint8_t i = 0; i < 32; i++) {
        bytes[i] = i;
    }
    assert_int_equal(tp_crc32c(0, bytes, sizeof bytes), 0x46dd794e);
    for (size_t cut = 0; cut <= sizeof bytes; cut++) {
        uint32_t crc = tp_crc32c(0, bytes, cut);
        assert_int_equal(tp_crc32c(crc, bytes + cut, sizeof bytes - cut), 0x46dd794e);
    }
}

static void test_buf(void **state)
{
    (void)state;
    tp_buf buf = TP_BUF_INIT;
    tp_buf_put_u16(&buf, 0x1234);
    tp_buf_put_u32(&buf, 0x89abcdef);
    tp_buf_put_u64(&buf, UINT64_C(0x0123456789abcdef));
    assert_int_equal(buf.size, 14);
    assert_int_equal(buf.data[0], 0x34); /* little-endian */
    assert_int_equal(tp_get_u16(buf.data), 0x1234);
    assert_int_equal(tp_get_u32(buf.data + 2), 0x89abcdef);
    assert_int_equal(tp_get_u64(buf.data + 6), UINT64_C(0x0123456789abcdef));
    tp_buf_clear(&buf);
    for (int i = 0; i < 200; i++) { /* across the first capacity, with and without growing */
        tp_buf_printf(&buf, "%d,", i % 10);
    }
    assert_int_equal(buf.size, 400);
    assert_memory_equal(buf.data + 390, "5,6,7,8,9,", 10);
    assert_null(tp_buf_extend(&buf, SIZE_MAX - 10));
    assert_true(buf.failed);
    tp_buf_clear(&buf);
    tp_mem_fail_after(1);
    tp_buf_put(&buf, "x", 1); /* fits: asks for nothing */
    assert_false(buf.failed);
    assert_null(tp_buf_extend(&buf, 100000));
    tp_buf_put(&buf, "x", 1); /* a failure is remembered */
    tp_mem_fail_after(0);
    assert_true(buf.failed);
    tp_buf_free(&buf);
}

static void test_map(void **state)
{
    (void)state;
    tp_map map = TP_MAP_INIT;
    uint32_t value;
    assert_int_equal(tp_map_get(&map, "a", 1, &value), TP_ERR_NOTFOUND);
    for (uint32_t i = 0; i < 5000; i++) {
        assert_int_equal(tp_map_set(&map, &i, sizeof i, i * 7), TP_OK);
    }
    for (uint32_t i = 0; i < 5000; i++) {
        assert_int_equal(tp_map_get(&map, &i, sizeof i, &value), TP_OK);
        assert_int_equal(value, i * 7);
    }
    uint32_t three = 3;
    assert_int_equal(tp_map_set(&map, &three, sizeof three, 1), TP_OK);
    assert_int_equal(tp_map_get(&map, &three, sizeof three, &value), TP_OK);
    assert_int_equal(value, 1);
    assert_int_equal(map.count, 5000);
    assert_int_equal(tp_map_set(&map, "", 0, 9), TP_OK); /* an empty key is a key */
    assert_int_equal(tp_map_get(&map, "", 0, &value), TP_OK);
    assert_int_equal(value, 9);
    tp_map_free(&map);
    for (unsigned long n = 1; n < 4; n++) {
        tp_mem_fail_after(n);
        tp_status status = tp_map_set(&map, "ab", 2, 5);
        tp_mem_fail_after(0);
        assert_int_equal(status, n < 3 ? TP_ERR_NOMEM : TP_OK);
        assert_int_equal(tp_map_set(&map, "ab", 2, 6), TP_OK);
        assert_int_equal(tp_map_get(&map, "ab", 2, &value), TP_OK);
        assert_int_equal(value, 6);
        tp_map_free(&map);
    }
}

static void test_files(void **state)
{
    (void)state;
    char base[] = "/tmp/tp-base-XXXXXX";
    char deep[TP_PATH_MAX];
    char path[TP_PATH_MAX];
    tp_error error;
    tp_buf buf = TP_BUF_INIT;
    int fd;
    uint64_t size;
    assert_non_null(mkdtemp(base));
    assert_int_equal(tp_path_join(deep, base, "a/b/c"), TP_OK);
    assert_int_equal(tp_dir_make(deep, &error), TP_OK);
    assert_int_equal(tp_dir_make(deep, &error), TP_OK);
    assert_int_equal(tp_path_join(path, deep, "file"), TP_OK);
    assert_int_equal(tp_file_read(path, &buf, &error), TP_ERR_NOTFOUND);
    assert_non_null(strstr(error.message, path));
    assert_int_equal(tp_file_append(path, &fd, &size, &error), TP_OK);
    assert_int_equal(size, 0);
    assert_int_equal(tp_file_write(fd, path, "hello", 5, &error), TP_OK);
    tp_file_fail_after(1, ENOSPC);
    assert_int_equal(tp_file_write(fd, path, " world", 6, &error), TP_ERR_NOSPACE);
    tp_file_fail_after(0, 0);
    assert_int_equal(tp_file_read(path, &buf, &error), TP_OK);
    assert_int_equal(buf.size, 8); /* half of it got through */
    assert_int_equal(tp_file_truncate(fd, path, 5, &error), TP_OK);
    tp_file_close(fd);
    assert_int_equal(tp_file_append(path, &fd, &size, &error), TP_OK);
    assert_int_equal(size, 5);
    tp_file_close(fd);
    assert_int_equal(tp_file_replace(path, "new", 3, &error), TP_OK);
    tp_file_fail_after(1, EIO);
    assert_int_equal(tp_file_replace(path, "newer", 5, &error), TP_ERR_IO);
    tp_file_fail_after(0, 0);
    assert_int_equal(tp_file_read(path, &buf, &error), TP_OK);
    assert_memory_equal(buf.data, "new", 3); /* the old content, whole */
    assert_int_equal(buf.size, 3);
    assert_int_equal(tp_file_read_at_most("/dev/zero", 20000, &buf, &error), TP_OK);
    assert_int_equal(buf.size, 20000);
    assert_int_equal(tp_dir_make(path, &error), TP_ERR_IO); /* a file stands there */
    assert_int_equal(tp_path_join(deep, path, "below"), TP_OK);
    assert_int_equal(tp_dir_make(deep, &error), TP_ERR_IO);
    assert_int_equal(tp_file_read(base, &buf, &error), TP_ERR_IO);
    tp_buf_free(&buf);
    unlink(path);
    for (const char *part = "a/b/c"; part != NULL; part = strcmp(part, "a/b/c") == 0 ? "a/b"
                                                          : strcmp(part, "a/b") == 0 ? "a"
                                                                                     : NULL) {
        tp_path_join(path, base, part);
        assert_int_equal(rmdir(path), 0);
    }
    assert_int_equal(rmdir(base), 0);
}

static void test_error_format(void **state)
{
    (void)state;
    char text[128];
    tp_error error;
    assert_int_equal(tp_fail(&error, TP_ERR_CONFIG, "must be %d", 5), TP_ERR_CONFIG);
    assert_string_equal(tp_error_format(&error, text, sizeof text), "must be 5");
    strcpy(error.field, "ops[1]");
    error.line = 3;
    error.column = 7;
    assert_string_equal(tp_error_format(&error, text, sizeof text),
                        "configuration:3:7: ops[1]: must be 5");
    strcpy(error.file, "c.json");
    assert_string_equal(tp_error_format(&error, text, 12), "c.json:3:7:");
    assert_int_equal(tp_fail(NULL, TP_ERR_IO, "unheard"), TP_ERR_IO);
    assert_string_equal(tp_status_name(TP_ERR_NOSPACE), "TP_ERR_NOSPACE");
}

/* Read between two readings of the system's clock, often enough for it to rely on the counter. */
static void test_quick_clock(void **state)
{
    (void)state;
    const uint64_t microsecond = 1000;
    tp_quick_clock clock = {0};
    uint64_t last = 0;
    const uint64_t begin = tp_clock_monotonic();
    for (uint64_t after = begin; after - begin < 5000 * microsecond;) {
        const uint64_t before = tp_clock_monotonic();
        const uint64_t now = tp_quick_clock_read(&clock);
        after = tp_clock_monotonic();
        assert_true(now + microsecond >= before && now <= after + microsecond);
        assert_true(now >= last);
        last = now;
    }
}

/* What is known of the counter's rate is wrong, as after a rest of the machine: a reading later it
 * isn't any more. */
static void test_quick_clock_recovers(void **state)
{
    (void)state;
    const uint64_t millisecond = 1000000;
    tp_quick_clock clock = {0};
    const uint64_t begin = tp_clock_monotonic();
    while (tp_clock_monotonic() - begin < 3 * millisecond) {
        tp_quick_clock_read(&clock);
    }
    clock.counter -= clock.counter / 2;
    clock.ns -= millisecond;
    tp_quick_clock_read(&clock);
    while (tp_clock_monotonic() - begin < 8 * millisecond) {
        tp_quick_clock_read(&clock);
    }
    const uint64_t before = tp_clock_monotonic();
    const uint64_t now = tp_quick_clock_read(&clock);
    assert_true(now + 1000 >= before && now <= tp_clock_monotonic() + 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c),
        cmocka_unit_test(test_buf),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_error_format),
        cmocka_unit_test(test_quick_clock),
        cmocka_unit_test(test_quick_clock_recovers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
