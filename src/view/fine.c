#include "view/fine.h"

#include <pthread.h>

#include "base/mem.h"

#define CELL_BYTES (sizeof(float) + 1)

typedef struct entry {
    uint64_t block;
    uint64_t used; /* when it was, last */
    uint32_t stat;
    uint32_t first;
    uint32_t count;
    uint32_t width;
    uint8_t *bytes; /* values, then codes */
} entry;

struct tp_fine {
    pthread_mutex_t mutex;
    tp_buf entries;
    uint64_t clock;
    size_t size;
    size_t limit;
};

tp_fine *tp_fine_new(size_t bytes)
{
    tp_fine *fine = tp_calloc(1, sizeof *fine);
    if (fine != NULL) {
        fine->limit = bytes;
        pthread_mutex_init(&fine->mutex, NULL);
    }
    return fine;
}

static entry *entries_of(const tp_fine *fine, size_t *count)
{
    *count = fine->entries.size / sizeof(entry);
    return (entry *)(void *)fine->entries.data;
}

void tp_fine_free(tp_fine *fine)
{
    size_t count;
    if (fine == NULL) {
        return;
    }
    entry *entries = entries_of(fine, &count);
    for (size_t i = 0; i < count; i++) {
        tp_free(entries[i].bytes);
    }
    tp_buf_free(&fine->entries);
    pthread_mutex_destroy(&fine->mutex);
    tp_free(fine);
}

static size_t size_of(const entry *one)
{
    return (size_t)one->count * one->width * CELL_BYTES;
}

static void drop(tp_fine *fine, size_t index)
{
    size_t count;
    entry *entries = entries_of(fine, &count);
    fine->size -= size_of(&entries[index]);
    tp_free(entries[index].bytes);
    entries[index] = entries[count - 1];
    fine->entries.size -= sizeof *entries;
}

/* What was used the longest time ago goes, until so many bytes find room. */
static void make_room(tp_fine *fine, size_t bytes)
{
    size_t count;
    entry *entries = entries_of(fine, &count);
    while (count > 0 && fine->size + bytes > fine->limit) {
        size_t oldest = 0;
        for (size_t i = 1; i < count; i++) {
            oldest = entries[i].used < entries[oldest].used ? i : oldest;
        }
        drop(fine, oldest);
        entries = entries_of(fine, &count);
    }
}

void tp_fine_put(tp_fine *fine, uint64_t block, uint32_t stat, uint32_t first, uint32_t count,
                 uint32_t width, const float *values, const int8_t *codes)
{
    entry one = {.block = block, .stat = stat, .first = first, .count = count, .width = width};
    const size_t cells = (size_t)count * width;
    tp_buf bytes = TP_BUF_INIT;
    tp_buf_put(&bytes, values, cells * sizeof *values);
    tp_buf_put(&bytes, codes, cells);
    if (bytes.failed || cells == 0 || size_of(&one) > fine->limit) {
        tp_buf_free(&bytes);
        return;
    }
    one.bytes = bytes.data;
    pthread_mutex_lock(&fine->mutex);
    make_room(fine, size_of(&one));
    one.used = ++fine->clock;
    tp_buf_put(&fine->entries, &one, sizeof one);
    if (fine->entries.failed) {
        fine->entries.failed = false; /* those that are there are good */
        tp_free(one.bytes);
    } else {
        fine->size += size_of(&one);
    }
    pthread_mutex_unlock(&fine->mutex);
}

bool tp_fine_read(tp_fine *fine, uint64_t block, uint32_t stat, uint32_t first, uint32_t count,
                  tp_grid_view *view)
{
    size_t total;
    bool found = false;
    pthread_mutex_lock(&fine->mutex);
    entry *entries = entries_of(fine, &total);
    for (size_t i = 0; i < total && !found; i++) {
        entry *one = &entries[i];
        found = one->block == block && one->stat == stat && one->first <= first &&
                first - one->first + count <= one->count;
        if (found && view != NULL) {
            const size_t begin = (size_t)(first - one->first) * one->width;
            const size_t cells = (size_t)count * one->width;
            const uint8_t *codes =
                one->bytes + (size_t)one->count * one->width * sizeof(float) + begin;
            one->used = ++fine->clock;
            view->width = one->width;
            tp_buf_put(&view->bytes, one->bytes + begin * sizeof(float), cells * sizeof(float));
            tp_buf_put(&view->bytes, codes, cells);
            found = !view->bytes.failed;
        }
    }
    pthread_mutex_unlock(&fine->mutex);
    return found;
}
