/* What the tests of the journal share: a random journal that remembers what it was given, and the
 * comparison of that with what a reader hands out. */
#ifndef TP_TESTS_JOURNAL_FIXTURE_H
#define TP_TESTS_JOURNAL_FIXTURE_H

#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "journal/frame.h"
#include "journal/writer.h"
#include "tensorprobe/reader.h"

#define MAX_ITEMS 1000
#define RUN_ID "Nov30_18-07-39-a1b2"

typedef struct written {
    uint32_t type; /* TP_ITEM_… */
    tp_batch batch;
    tp_record *records;
    uint8_t *arena;
    uint32_t keys; /* defined by then */
    tp_position end;
} written;

typedef struct fixture {
    char directory[64];
    char folder[TP_PATH_MAX];
    uint64_t random;
    tp_registry *registry;
    tp_journal *journal;
    written items[MAX_ITEMS];
    size_t count;
} fixture;

/* splitmix64 */
static inline uint64_t random_u64(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline const tp_run_info *fixture_run(void)
{
    static const tp_run_info run = {
        .run_id = RUN_ID, .rank = 3, .attempt = 1, .start_wall_ns = INT64_C(1764526059123456789)};
    return &run;
}

static inline void fixture_open(fixture *f, uint64_t segment_bytes)
{
    tp_error error;
    assert_int_equal(tp_journal_open(&f->journal, f->directory, fixture_run(), f->registry,
                                     segment_bytes, &error),
                     TP_OK);
}

static inline fixture *fixture_new(uint64_t seed, uint64_t segment_bytes)
{
    static uint64_t printed;
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    if (seed != printed) {
        printf("seed %" PRIu64 "\n", seed);
        printed = seed;
    }
    f->random = seed;
    strcpy(f->directory, "/tmp/tp_journal_XXXXXX");
    assert_non_null(mkdtemp(f->directory));
    assert_int_equal(tp_path_join(f->folder, f->directory, "journal"), TP_OK);
    assert_int_equal(tp_registry_new(&f->registry), TP_OK);
    fixture_open(f, segment_bytes);
    return f;
}

/* A folder with the files in it. */
static inline void fixture_remove(const char *folder)
{
    char path[TP_PATH_MAX];
    DIR *listing = opendir(folder);
    for (const struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
        if (entry->d_name[0] != '.') {
            assert_int_equal(tp_path_join(path, folder, entry->d_name), TP_OK);
            unlink(path);
        }
    }
    if (listing != NULL) {
        closedir(listing);
    }
    rmdir(folder);
}

static inline void fixture_free(fixture *f)
{
    char ship[TP_PATH_MAX];
    assert_int_equal(tp_path_join(ship, f->directory, "ship"), TP_OK);
    fixture_remove(f->folder);
    fixture_remove(ship);
    rmdir(f->directory);
    for (size_t i = 0; i < f->count; i++) {
        free(f->items[i].records);
        free(f->items[i].arena);
    }
    tp_registry_free(f->registry);
    free(f);
}

/* A few new names and shapes; at least one is known afterwards. */
static inline void fixture_define(fixture *f, uint32_t most)
{
    uint32_t id;
    for (uint64_t n = 1 + random_u64(&f->random) % most; n > 0; n--) {
        char name[64];
        char global_name[64];
        uint64_t r = random_u64(&f->random);
        int64_t dims[TP_MAX_DIMS];
        uint32_t ndim = (uint32_t)(r % 5 == 4 ? TP_MAX_DIMS : r % 5);
        snprintf(name, sizeof name, "blöcke.%u.mlp.fc%u", (unsigned)(r % 1000),
                 (unsigned)(r >> 60));
        snprintf(global_name, sizeof global_name, "blöcke.%u.mlp", (unsigned)(r % 100));
        const tp_key key = {.name = r % 17 == 0 ? "" : name,
                            .global_name = r % 3 == 0 ? NULL : global_name,
                            .vpp_stage = (int32_t)(r >> 8 & 7),
                            .slot = (int32_t)(r >> 12 & 3) - 1,
                            .quantity = 1 + (uint32_t)(r >> 16 & 7),
                            .role = (uint32_t)(r >> 20 & 1)};
        assert_int_equal(tp_registry_add_key(f->registry, &key, &id), TP_OK);
        for (uint32_t i = 0; i < ndim; i++) {
            dims[i] = (int64_t)(random_u64(&f->random) >> (i % 60));
        }
        assert_int_equal(tp_registry_add_shape(f->registry, ndim, dims, &id), TP_OK);
    }
}

/* The next item, not yet appended: a step or alerts with random bytes in every field. */
static inline written *fixture_make(fixture *f, uint32_t type, uint64_t most_records)
{
    uint32_t keys = tp_registry_key_count(f->registry);
    uint32_t shapes = tp_registry_shape_count(f->registry);
    assert_true(f->count < MAX_ITEMS);
    written *item = &f->items[f->count];
    uint64_t *fields = (uint64_t *)(void *)&item->batch;
    for (size_t i = 0; i < sizeof item->batch / 8; i++) {
        fields[i] = random_u64(&f->random);
    }
    item->type = type;
    item->batch.flags = random_u64(&f->random) % 8 == 0 && type == TP_ITEM_BATCH
                            ? TP_BATCH_GAP
                            : random_u64(&f->random) & TP_BATCH_PARTIAL;
    if (type == TP_ITEM_ALERTS) {
        item->batch = (tp_batch){
            .step = item->batch.step, .rank = 3, .attempt = 1, .pp_stage = -1, .flags = 0};
    }
    item->batch.records = NULL;
    item->batch.arena = NULL;
    item->batch.arena_size = 0;
    if ((item->batch.flags & TP_BATCH_GAP) == 0) {
        item->batch.count = random_u64(&f->random) % (most_records + 1);
        item->records = malloc(sizeof(tp_record) * (item->batch.count + 1));
        assert_non_null(item->records);
        item->batch.records = item->records;
        for (size_t i = 0; i < item->batch.count; i++) {
            tp_record *record = &item->records[i];
            uint64_t *words = (uint64_t *)(void *)record;
            for (size_t w = 0; w < sizeof *record / 8; w++) {
                words[w] = random_u64(&f->random) >> (8 * (w % 8));
            }
            record->state = random_u64(&f->random) % 2 == 0 ? TP_SLOT_RESERVED : TP_SLOT_DONE;
            record->key = (uint32_t)(random_u64(&f->random) % keys);
            record->shape = (uint32_t)(random_u64(&f->random) % shapes);
        }
    }
    if (item->records != NULL && type == TP_ITEM_BATCH && random_u64(&f->random) % 3 == 0) {
        item->batch.arena_size = 8 * (1 + random_u64(&f->random) % 100);
        item->arena = malloc(item->batch.arena_size);
        assert_non_null(item->arena);
        for (size_t i = 0; i < item->batch.arena_size; i++) {
            item->arena[i] = (uint8_t)random_u64(&f->random);
        }
        item->batch.arena = item->arena;
    }
    item->keys = keys;
    return item;
}

/* Appends what fixture_make has made; it counts as written when that succeeds. */
static inline tp_status fixture_append(fixture *f, tp_error *error)
{
    written *item = &f->items[f->count];
    tp_status status = item->type == TP_ITEM_BATCH
                           ? tp_journal_append_batch(f->journal, &item->batch, error)
                           : tp_journal_append_alerts(f->journal, item->batch.step, item->records,
                                                      item->batch.count, error);
    if (status == TP_OK) {
        item->end = tp_journal_position(f->journal);
        f->count++;
    }
    return status;
}

/* One step, which may bring new names, and now and then alerts behind it. */
static inline void fixture_step(fixture *f, uint64_t most_records)
{
    tp_error error;
    if (tp_registry_key_count(f->registry) == 0 || random_u64(&f->random) % 4 == 0) {
        fixture_define(f, 5);
    }
    fixture_make(f, TP_ITEM_BATCH, most_records);
    assert_int_equal(fixture_append(f, &error), TP_OK);
    if (random_u64(&f->random) % 4 == 0) {
        fixture_make(f, TP_ITEM_ALERTS, 3);
        assert_int_equal(fixture_append(f, &error), TP_OK);
    }
}

static inline void fixture_close(fixture *f)
{
    tp_error error;
    assert_true(f->count < MAX_ITEMS);
    f->items[f->count] = (written){.type = TP_ITEM_CLOSE};
    f->items[f->count++].keys = tp_registry_key_count(f->registry);
    assert_int_equal(tp_journal_close(&f->journal, &error), TP_OK);
    assert_null(f->journal);
}

/* Whether the item is this one, to the last bit. */
static inline int item_is(const tp_item *item, const written *expected)
{
    if (item->type != expected->type) {
        return 0;
    }
    if (item->type == TP_ITEM_CLOSE) {
        return 1;
    }
    tp_batch batch = item->batch;
    batch.records = expected->batch.records;
    batch.arena = expected->batch.arena;
    if (memcmp(&batch, &expected->batch, sizeof batch) != 0) {
        return 0;
    }
    if (batch.arena_size > 0 &&
        memcmp(item->batch.arena, expected->batch.arena, batch.arena_size) != 0) {
        return 0;
    }
    return expected->records == NULL
               ? item->batch.records == NULL
               : batch.count == 0 || memcmp(item->batch.records, expected->records,
                                            batch.count * sizeof(tp_record)) == 0;
}

static inline void assert_item(const tp_item *item, const written *expected)
{
    assert_true(item_is(item, expected));
    if (item->type != TP_ITEM_CLOSE) {
        assert_int_equal(item->position.segment, expected->end.segment);
        assert_int_equal(item->position.offset, expected->end.offset);
    }
}

/* The reader knows the first `keys` names and shapes as the registry has them, and no more than the
 * registry. */
static inline void assert_definitions(const tp_reader *reader, const fixture *f, uint32_t keys)
{
    assert_in_range(tp_reader_key_count(reader), keys, tp_registry_key_count(f->registry));
    for (uint32_t id = 0; id < tp_reader_key_count(reader); id++) {
        const tp_key *key = tp_reader_key(reader, id);
        const tp_key *expected = tp_registry_key(f->registry, id);
        assert_non_null(key);
        assert_string_equal(key->name, expected->name);
        assert_string_equal(key->global_name,
                            expected->global_name != NULL ? expected->global_name : expected->name);
        assert_int_equal(key->vpp_stage, expected->vpp_stage);
        assert_int_equal(key->slot, expected->slot);
        assert_int_equal(key->quantity, expected->quantity);
        assert_int_equal(key->role, expected->role);
    }
    assert_null(tp_reader_key(reader, tp_reader_key_count(reader)));
}

static inline void assert_shapes(const tp_reader *reader, const fixture *f, const tp_item *item)
{
    for (uint64_t i = 0; item->batch.records != NULL && i < item->batch.count; i++) {
        uint32_t ndim;
        uint32_t expected_ndim;
        uint32_t id = item->batch.records[i].shape;
        const int64_t *dims = tp_reader_shape(reader, id, &ndim);
        const int64_t *expected = tp_registry_shape(f->registry, id, &expected_ndim);
        assert_non_null(dims);
        assert_int_equal(ndim, expected_ndim);
        assert_memory_equal(dims, expected, ndim * sizeof *dims);
    }
}

/* Everything that was written, in order, and then the end. */
static inline void assert_reads_back(tp_reader *reader, const fixture *f, size_t from)
{
    tp_error error;
    tp_item item;
    for (size_t i = from; i < f->count; i++) {
        assert_int_equal(tp_reader_next(reader, &item, &error), TP_OK);
        assert_item(&item, &f->items[i]);
        assert_definitions(reader, f, f->items[i].keys);
        assert_shapes(reader, f, &item);
    }
    assert_int_equal(tp_reader_next(reader, &item, &error), TP_END);
    assert_int_equal(tp_reader_next(reader, &item, &error), TP_END);
}

static inline tp_reader *fixture_reader(const fixture *f)
{
    tp_error error;
    tp_reader *reader;
    assert_int_equal(tp_reader_open(&reader, f->directory, &error), TP_OK);
    return reader;
}

/* Gives the file this content, in place: for a file emptied first ext4 would wait for the disk. */
static inline void write_file(const char *path, const void *bytes, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, size), size);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    assert_int_equal(close(fd), 0);
}

#endif
