/* Any bytes as the one segment of a journal. The first byte says how: bit 0: the checksums of header
 * and frames are made right first, so that what lies behind them is reached; bit 1: the file grows
 * in two steps while it is read. Included by one target each. */
#ifndef TP_FUZZ_JOURNAL_FILE_H
#define TP_FUZZ_JOURNAL_FILE_H

#include "driver.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/mem.h"
#include "journal/frame.h"
#include "journal/writer.h"
#include "tensorprobe/reader.h"

static char directory[] = "/tmp/tp_fuzz_XXXXXX";
static char folder[64];
static char path[96];
static int file = -1;
static uint8_t *content; /* of the file */
static size_t content_size;

static void check(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void clean_up(void)
{
    free(content);
    unlink(path);
    rmdir(folder);
    rmdir(directory);
}

static void make_directory(void)
{
    check(mkdtemp(directory) != NULL);
    snprintf(folder, sizeof folder, "%s/journal", directory);
    snprintf(path, sizeof path, "%s/000000.tpj", folder);
    atexit(clean_up);
}

static void put_u32(uint8_t *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
}

static void sign(uint8_t *data, size_t size)
{
    size_t at = TP_SEGMENT_HEADER_SIZE;
    if (size < at) {
        return;
    }
    put_u32(data + at - 4, tp_crc32c(0, data, at - 4));
    while (size - at >= TP_FRAME_HEADER_SIZE) {
        uint8_t *frame = data + at;
        size_t left = size - at - TP_FRAME_HEADER_SIZE;
        uint32_t stored = tp_get_u32(frame + 8);
        put_u32(frame + 24, (uint32_t)at);
        put_u32(frame + 28, 0);
        put_u32(frame + 32,
                tp_crc32c(0, frame + TP_FRAME_HEADER_SIZE, stored < left ? stored : left));
        put_u32(frame + 36, tp_crc32c(0, frame, 36));
        if (stored > left) {
            return;
        }
        at += TP_FRAME_HEADER_SIZE + stored;
    }
}

static void grow(size_t size)
{
    check(pwrite(file, content, size, 0) == (ssize_t)size && ftruncate(file, (off_t)size) == 0);
}

/* Makes the file of the input, which isn't empty; returns how much of it is there at first. */
static size_t journal_file_begin(const uint8_t *data, size_t size)
{
    if (folder[0] == '\0') {
        make_directory();
    }
    if (file < 0) {
        check(tp_dir_make(folder, NULL) == TP_OK);
        file = open(path, O_RDWR | O_CREAT, 0644);
        check(file >= 0);
    }
    free(content);
    content_size = size - 1;
    content = malloc(size);
    check(content != NULL);
    memcpy(content, data + 1, content_size);
    if ((data[0] & 1) != 0) {
        sign(content, content_size);
    }
    const size_t first = (data[0] & 2) != 0 ? size / 2 : size - 1;
    grow(first);
    return first;
}

/* The rest of the file; returns its size. */
static size_t journal_file_finish(void)
{
    grow(content_size);
    return content_size;
}

/* A small journal with all kinds of frames. */
size_t tp_fuzz_seed(uint8_t *data, size_t capacity)
{
    tp_registry *registry;
    tp_journal *journal;
    tp_record records[3] = {{.state = TP_SLOT_DONE, .kind = TP_RECORD_STATS}};
    const tp_run_info run = {.run_id = "fuzz"};
    const int64_t dims[] = {3, 4};
    tp_buf whole = TP_BUF_INIT;
    uint64_t histogram[] = {0, 0, 2, 5, 6}; /* of two bins */
    uint32_t id;
    make_directory();
    check(tp_registry_new(&registry) == TP_OK);
    check(tp_journal_open(&journal, directory, &run, registry, 0, NULL) == TP_OK);
    for (uint32_t step = 0; step < 4; step++) {
        const tp_key key = {.name = step % 2 == 0 ? "fc1" : "fc2", .slot = (int32_t)step};
        tp_batch batch = {.step = step, .count = 3, .records = records};
        if (step % 2 == 0) {
            batch.arena = (const uint8_t *)histogram;
            batch.arena_size = sizeof histogram;
        }
        records[1].flags = step == 0 ? TP_RECORD_HISTOGRAM : 0;
        check(tp_registry_add_key(registry, &key, &records[step % 3].key) == TP_OK);
        check(tp_registry_add_shape(registry, step % 3, dims, &id) == TP_OK);
        records[step % 3].shape = id;
        batch.flags = step == 2 ? TP_BATCH_GAP : 0;
        check(tp_journal_append_batch(journal, &batch, NULL) == TP_OK);
        check(tp_journal_append_alerts(journal, step, records, 1, NULL) == TP_OK);
    }
    check(tp_journal_close(&journal, NULL) == TP_OK);
    tp_registry_free(registry);
    check(tp_file_read(path, &whole, NULL) == TP_OK && whole.size < capacity);
    data[0] = 3;
    memcpy(data + 1, whole.data, whole.size);
    size_t size = 1 + whole.size;
    tp_buf_free(&whole);
    return size;
}

#endif
