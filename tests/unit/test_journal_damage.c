/* What a reader makes of journals that were cut off, overwritten, or never were journals. */
#include "journal_fixture.h"

#include "base/crc32c.h"

#define END_MARK (TP_FRAME_HEADER_SIZE + TP_FRAME_TRAILER_SIZE) /* the last frame of a segment */

static void segment_path(char path[TP_PATH_MAX], const fixture *f, uint64_t segment)
{
    assert_int_equal(tp_segment_path(path, f->folder, segment), TP_OK);
}

/* A small journal in one segment, and its bytes. */
static fixture *small_journal(uint64_t seed, char path[TP_PATH_MAX], tp_buf *file)
{
    fixture *f = fixture_new(seed, 0);
    fixture_step(f, 3);
    fixture_step(f, 3);
    fixture_define(f, 2);
    fixture_step(f, 3);
    fixture_close(f);
    segment_path(path, f, 0);
    assert_int_equal(tp_file_read(path, file, NULL), TP_OK);
    f->items[f->count - 1].end = (tp_position){0, file->size};
    return f;
}

static void torn_tails_are_no_damage(void **state)
{
    (void)state;
    char path[TP_PATH_MAX];
    tp_buf file = TP_BUF_INIT;
    tp_error error;
    tp_item item;
    fixture *f = small_journal(1000, path, &file);
    for (int zeros = 0; zeros <= 1; zeros++) {
        for (size_t cut = TP_SEGMENT_HEADER_SIZE; cut < file.size; cut++) {
            size_t i = 0;
            size_t whole = cut; /* zeros may happen to be right */
            uint8_t *torn = calloc(1, file.size + 100);
            assert_non_null(torn);
            memcpy(torn, file.data, cut);
            while (zeros && whole < file.size && file.data[whole] == 0) {
                whole++;
            }
            write_file(path, torn, zeros ? file.size + 100 : cut);
            free(torn);
            tp_reader *reader = fixture_reader(f);
            for (; i < f->count && f->items[i].end.offset <= whole; i++) {
                assert_int_equal(tp_reader_next(reader, &item, &error), TP_OK);
                assert_item(&item, &f->items[i]);
            }
            assert_int_equal(tp_reader_next(reader, &item, &error), TP_END);
            assert_int_equal(tp_reader_next(reader, &item, &error), TP_END);

            /* The writer, which has cut its failed write back, does it again. */
            write_file(path, file.data, file.size);
            assert_reads_back(reader, f, i);
            tp_reader_close(&reader);
        }
    }
    tp_buf_free(&file);
    fixture_free(f);
}

/* The process died in the middle of a write, and the run was started again. */
static void torn_tails_before_another_segment_are_no_damage(void **state)
{
    (void)state;
    char path[TP_PATH_MAX];
    tp_buf file = TP_BUF_INIT;
    tp_error error;
    tp_item item;
    fixture *f = small_journal(1100, path, &file);
    size_t old = f->count;
    fixture_open(f, 0);
    fixture_step(f, 3);
    fixture_close(f);
    for (size_t cut = 0; cut < file.size; cut++) {
        write_file(path, file.data, cut);
        tp_reader *reader = fixture_reader(f);
        for (size_t i = 0; i < old && f->items[i].end.offset <= cut; i++) {
            assert_int_equal(tp_reader_next(reader, &item, &error), TP_OK);
            assert_item(&item, &f->items[i]);
        }
        assert_reads_back(reader, f, old);
        tp_reader_close(&reader);
    }
    tp_buf_free(&file);
    fixture_free(f);
}

static void a_journal_without_a_whole_header_is_not_there_yet(void **state)
{
    (void)state;
    char path[TP_PATH_MAX];
    tp_buf file = TP_BUF_INIT;
    tp_error error;
    fixture *f = small_journal(1200, path, &file);
    tp_reader *reader;
    for (size_t cut = 0; cut < TP_SEGMENT_HEADER_SIZE; cut++) {
        write_file(path, file.data, cut);
        assert_int_equal(tp_reader_open(&reader, f->directory, &error), TP_ERR_NOTFOUND);
    }
    assert_int_equal(tp_reader_open(&reader, f->folder, &error), TP_ERR_NOTFOUND);
    write_file(path, file.data, TP_SEGMENT_HEADER_SIZE);
    assert_int_equal(tp_reader_open(&reader, f->folder, &error), TP_OK);
    write_file(path, file.data, file.size);
    assert_reads_back(reader, f, 0);
    tp_reader_close(&reader);
    assert_int_equal(tp_reader_open(&reader, "/nonexistent", &error), TP_ERR_NOTFOUND);
    assert_int_equal(error.code, TP_ERR_NOTFOUND);
    tp_buf_free(&file);
    fixture_free(f);
}

/* Reads all there is. Every item must be one that was written, in order; *corrupt counts what was
 * reported. Returns how many were missing. */
static size_t read_damaged(const fixture *f, const char *path, unsigned *corrupt)
{
    size_t i = 0;
    size_t found = 0;
    *corrupt = 0;
    tp_reader *reader = fixture_reader(f);
    for (;;) {
        tp_item item;
        tp_error error;
        tp_status status = tp_reader_next(reader, &item, &error);
        if (status == TP_END) {
            break;
        }
        if (status == TP_ERR_CORRUPT) {
            (*corrupt)++;
            assert_int_equal(error.code, TP_ERR_CORRUPT);
            assert_string_equal(error.file, path);
            assert_non_null(strstr(error.message, "at byte "));
            continue;
        }
        assert_int_equal(status, TP_OK);
        while (i < f->count && !item_is(&item, &f->items[i])) {
            i++;
        }
        assert_true(i < f->count); /* nothing else than what was written */
        i++;
        found++;
    }
    tp_reader_close(&reader);
    return f->count - found;
}

static void one_flipped_bit_costs_one_frame(void **state)
{
    (void)state;
    char path[TP_PATH_MAX];
    tp_buf file = TP_BUF_INIT;
    fixture *f = small_journal(1300, path, &file);
    size_t close_mark = file.size - END_MARK;
    for (size_t i = 0; i < file.size; i++) {
        unsigned corrupt;
        uint8_t bit = (uint8_t)(1u << random_u64(&f->random) % 8);
        file.data[i] ^= bit;
        write_file(path, file.data, file.size);
        size_t missing = read_damaged(f, path, &corrupt);
        if (i < TP_SEGMENT_HEADER_SIZE) {
            assert_int_equal(missing, 0);
            assert_int_equal(corrupt, 1);
        } else if (i < close_mark) {
            assert_in_range(missing, 0, 1); /* 0: definitions, overviews or the index */
            assert_int_equal(corrupt, 1);
        } else { /* the end of all looks as if the process had died there */
            assert_int_equal(missing, 1);
            assert_int_equal(corrupt, 0);
        }
        file.data[i] ^= bit;
    }
    tp_buf_free(&file);
    fixture_free(f);
}

/* The last step of a full segment is not a torn tail. */
static void damage_at_the_end_of_a_full_segment_is_reported(void **state)
{
    (void)state;
    char path[TP_PATH_MAX];
    tp_buf file = TP_BUF_INIT;
    fixture *f = fixture_new(1400, 1);
    for (int step = 0; step < 5; step++) {
        fixture_step(f, 3);
    }
    fixture_close(f);
    segment_path(path, f, f->items[1].end.segment);
    assert_int_equal(tp_file_read(path, &file, NULL), TP_OK);
    for (size_t i = 0; i < file.size - END_MARK; i++) {
        unsigned corrupt;
        file.data[i] ^= 1;
        write_file(path, file.data, file.size);
        assert_in_range(read_damaged(f, path, &corrupt), 0, 1);
        assert_int_equal(corrupt, 1);
        file.data[i] ^= 1;
    }
    tp_buf_free(&file);
    fixture_free(f);
}

/* Names that went down with a damaged frame are unknown, not wrong; the next segment has them again. */
static void lost_names_come_back_with_the_next_segment(void **state)
{
    (void)state;
    char path[TP_PATH_MAX];
    tp_buf file = TP_BUF_INIT;
    tp_error error;
    tp_item item;
    fixture *f = small_journal(1500, path, &file);
    size_t old = f->count;
    fixture_open(f, 0);
    fixture_step(f, 3);
    fixture_close(f);
    file.data[TP_SEGMENT_HEADER_SIZE] ^= 1; /* the first definitions */
    write_file(path, file.data, file.size);
    tp_reader *reader = fixture_reader(f);
    assert_int_equal(tp_reader_next(reader, &item, &error), TP_ERR_CORRUPT);
    for (size_t i = 0; i < old; i++) {
        assert_int_equal(tp_reader_next(reader, &item, &error), TP_OK);
        assert_item(&item, &f->items[i]);
        assert_null(tp_reader_key(reader, 0));
    }
    assert_non_null(tp_reader_key(reader, f->items[old - 1].keys - 1));
    assert_reads_back(reader, f, old);
    tp_reader_close(&reader);
    tp_buf_free(&file);
    fixture_free(f);
}

/* Replaces the CRC that ends the size bytes at offset. */
static void sign(tp_buf *file, size_t offset, size_t size)
{
    uint32_t crc = tp_crc32c(0, file->data + offset, size - 4);
    for (size_t i = 0; i < 4; i++) {
        file->data[offset + size - 4 + i] = (uint8_t)(crc >> (8 * i));
    }
}

static void later_versions(void **state)
{
    (void)state;
    char path[TP_PATH_MAX];
    tp_buf file = TP_BUF_INIT;
    tp_error error;
    fixture *f = small_journal(1600, path, &file);
    tp_reader *reader;

    file.data[10] = 7; /* a later minor version */
    sign(&file, 0, TP_SEGMENT_HEADER_SIZE);
    write_file(path, file.data, file.size);
    reader = fixture_reader(f);
    assert_reads_back(reader, f, 0);
    tp_reader_close(&reader);

    size_t close_mark = file.size - END_MARK;
    file.data[close_mark + 4] = 200; /* a type of frame that we don't know */
    sign(&file, close_mark, TP_FRAME_HEADER_SIZE);
    write_file(path, file.data, file.size);
    reader = fixture_reader(f);
    f->count--;
    assert_reads_back(reader, f, 0);
    tp_reader_close(&reader);

    file.data[8] = 2; /* a later major version */
    sign(&file, 0, TP_SEGMENT_HEADER_SIZE);
    write_file(path, file.data, file.size);
    assert_int_equal(tp_reader_open(&reader, f->directory, &error), TP_ERR_VERSION);
    assert_string_equal(error.file, path);
    tp_buf_free(&file);
    fixture_free(f);
}

/* A header of 4 more bytes, batches with a longer header and longer records, definitions with more
 * fields and of another kind: what a later minor version may write. */
static void longer_structures_of_later_minor_versions(void **state)
{
    (void)state;
    tp_error error;
    tp_item item;
    char path[TP_PATH_MAX];
    tp_buf file = TP_BUF_INIT;
    tp_buf payload = TP_BUF_INIT;
    const uint64_t count = 5;
    const uint32_t record_size = 200;
    fixture *f = fixture_new(1700, 0);
    ZSTD_CCtx *packer = ZSTD_createCCtx();
    assert_non_null(packer);
    fixture_close(f);

    tp_segment_header_put(&file, fixture_run(), 0);
    tp_buf_put_u32(&file, 0);
    file.data[12] += 4;
    sign(&file, 0, TP_SEGMENT_HEADER_SIZE + 4);

    tp_buf_put_u32(&payload, 16); /* an entry of an unknown kind */
    tp_buf_put_u16(&payload, 99);
    tp_buf_put_u16(&payload, 0);
    tp_buf_put_u64(&payload, 1);
    tp_buf_put_u32(&payload, 12 + 24 + 3 + 1 + 7); /* a key with 7 bytes more */
    tp_buf_put_u16(&payload, 1);
    tp_buf_put_u16(&payload, 0);
    tp_buf_put_u32(&payload, 4);
    tp_buf_put_u32(&payload, 2);
    tp_buf_put_u32(&payload, UINT32_MAX);
    tp_buf_put_u32(&payload, TP_GRAD_REDUCED);
    tp_buf_put_u32(&payload, TP_ROLE_NONE);
    tp_buf_put_u32(&payload, 3);
    tp_buf_put_u32(&payload, 1);
    tp_buf_put(&payload, "fc1fFUTURE!", 11);
    assert_int_equal(tp_frame_put(&file, TP_FRAME_DEFINITIONS, 1, file.size, &payload, packer),
                     TP_OK);

    tp_buf_clear(&payload);
    tp_buf_put_u32(&payload, 120);
    tp_buf_put_u32(&payload, record_size);
    for (uint64_t field = 0; field < 11; field++) {
        tp_buf_put_u64(&payload, 1000 + field); /* flags, in the upper half of one, become 0 */
    }
    tp_buf_put_u64(&payload, count);
    tp_buf_put_u64(&payload, 5); /* of the arena */
    tp_buf_put_u64(&payload, UINT64_MAX);
    for (uint64_t i = 0; i < count * record_size; i++) {
        uint8_t byte = (uint8_t)(i % count * 11 + i / count);
        tp_buf_put(&payload, &byte, 1);
    }
    tp_buf_put(&payload, "arenaFUTURE", 11);
    assert_int_equal(tp_frame_put(&file, TP_FRAME_BATCH, 1000, file.size, &payload, packer), TP_OK);
    segment_path(path, f, 0);
    write_file(path, file.data, file.size);

    tp_reader *reader = fixture_reader(f);
    assert_int_equal(tp_reader_next(reader, &item, &error), TP_OK);
    assert_int_equal(item.type, TP_ITEM_BATCH);
    assert_int_equal(item.batch.step, 1000);
    assert_int_equal(item.batch.count, count);
    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *bytes = (const uint8_t *)&item.batch.records[i];
        for (uint64_t p = 0; p < sizeof(tp_record); p++) {
            assert_int_equal(bytes[p], (uint8_t)(i * 11 + p));
        }
    }
    assert_int_equal(item.batch.arena_size, 5);
    assert_memory_equal(item.batch.arena, "arena", 5);
    assert_int_equal(tp_reader_key_count(reader), 5);
    assert_null(tp_reader_key(reader, 0));
    const tp_key *key = tp_reader_key(reader, 4);
    assert_non_null(key);
    assert_string_equal(key->name, "fc1");
    assert_string_equal(key->global_name, "f");
    assert_int_equal(key->vpp_stage, 2);
    assert_int_equal(key->slot, -1);
    tp_reader_close(&reader);
    ZSTD_freeCCtx(packer);
    tp_buf_free(&file);
    tp_buf_free(&payload);
    fixture_free(f);
}

/* A batch as minor version 0 wrote it, and two whose arena doesn't fit. */
static void batches_with_and_without_an_arena(void **state)
{
    (void)state;
    static const struct {
        uint32_t header_size;
        uint64_t arena_size;
        tp_status status;
    } cases[] = {{104, 0, TP_OK},
                 {112, 24, TP_OK},
                 {112, 25, TP_ERR_CORRUPT},
                 {112, UINT64_MAX - 7, TP_ERR_CORRUPT}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        tp_error error;
        tp_item item;
        char path[TP_PATH_MAX];
        tp_buf file = TP_BUF_INIT;
        tp_buf payload = TP_BUF_INIT;
        fixture *f = fixture_new(1800, 0);
        ZSTD_CCtx *packer = ZSTD_createCCtx();
        assert_non_null(packer);
        fixture_close(f);
        tp_segment_header_put(&file, fixture_run(), 0);
        tp_buf_put_u32(&payload, cases[c].header_size);
        tp_buf_put_u32(&payload, sizeof(tp_record));
        for (uint64_t field = 0; field < 11; field++) {
            tp_buf_put_u64(&payload, 7);
        }
        tp_buf_put_u64(&payload, 2); /* records */
        if (cases[c].header_size > 104) {
            tp_buf_put_u64(&payload, cases[c].arena_size);
        }
        for (uint64_t i = 0; i < 2 * sizeof(tp_record) + 24; i++) {
            tp_buf_put(&payload, "r", 1);
        }
        assert_int_equal(tp_frame_put(&file, TP_FRAME_BATCH, 7, file.size, &payload, packer),
                         TP_OK);
        segment_path(path, f, 0);
        write_file(path, file.data, file.size);
        tp_reader *reader = fixture_reader(f);
        assert_int_equal(tp_reader_next(reader, &item, &error), cases[c].status);
        if (cases[c].status == TP_OK) {
            assert_int_equal(item.batch.count, 2);
            assert_int_equal(item.batch.arena_size, cases[c].arena_size);
        }
        assert_int_equal(tp_reader_next(reader, &item, &error), TP_END);
        tp_reader_close(&reader);
        ZSTD_freeCCtx(packer);
        tp_buf_free(&payload);
        tp_buf_free(&file);
        fixture_free(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(torn_tails_are_no_damage),
        cmocka_unit_test(torn_tails_before_another_segment_are_no_damage),
        cmocka_unit_test(a_journal_without_a_whole_header_is_not_there_yet),
        cmocka_unit_test(one_flipped_bit_costs_one_frame),
        cmocka_unit_test(damage_at_the_end_of_a_full_segment_is_reported),
        cmocka_unit_test(lost_names_come_back_with_the_next_segment),
        cmocka_unit_test(later_versions),
        cmocka_unit_test(longer_structures_of_later_minor_versions),
        cmocka_unit_test(batches_with_and_without_an_arena),
    };
    return cmocka_run_group_tests_name("damage", tests, NULL, NULL);
}
