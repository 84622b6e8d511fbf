#include "base/map.h"

#include <string.h>

#include "base/mem.h"

struct tp_map_entry {
    uint8_t *key; /* NULL: free */
    size_t size;
    uint64_t hash;
    uint32_t value;
};

static uint64_t hash_of(const uint8_t *key, size_t size)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ key[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* The entry of the key, or the free one where it belongs. The map is never full. */
static struct tp_map_entry *find(const tp_map *map, const void *key, size_t size, uint64_t hash)
{
    size_t i = (size_t)hash & (map->capacity - 1);
    for (;; i = (i + 1) & (map->capacity - 1)) {
        struct tp_map_entry *entry = &map->entries[i];
        if (entry->key == NULL ||
            (entry->hash == hash && entry->size == size && memcmp(entry->key, key, size) == 0)) {
            return entry;
        }
    }
}

tp_status tp_map_get(const tp_map *map, const void *key, size_t size, uint32_t *value)
{
    if (map->capacity == 0) {
        return TP_ERR_NOTFOUND;
    }
    const struct tp_map_entry *entry = find(map, key, size, hash_of(key, size));
    if (entry->key == NULL) {
        return TP_ERR_NOTFOUND;
    }
    *value = entry->value;
    return TP_OK;
}

static tp_status grow(tp_map *map)
{
    tp_map bigger = {NULL, map->capacity == 0 ? 64 : map->capacity * 2, map->count};
    bigger.entries = tp_calloc(bigger.capacity, sizeof *bigger.entries);
    if (bigger.entries == NULL) {
        return TP_ERR_NOMEM;
    }
    for (size_t i = 0; i < map->capacity; i++) {
        const struct tp_map_entry *entry = &map->entries[i];
        if (entry->key != NULL) {
            *find(&bigger, entry->key, entry->size, entry->hash) = *entry;
        }
    }
    tp_free(map->entries);
    *map = bigger;
    return TP_OK;
}

tp_status tp_map_set(tp_map *map, const void *key, size_t size, uint32_t value)
{
    if ((map->count + 1) * 4 > map->capacity * 3) {
        tp_status status = grow(map);
        if (status != TP_OK) {
            return status;
        }
    }
    uint64_t hash = hash_of(key, size);
    struct tp_map_entry *entry = find(map, key, size, hash);
    if (entry->key == NULL) {
        uint8_t *copy = tp_alloc(size);
        if (copy == NULL) {
            return TP_ERR_NOMEM;
        }
        memcpy(copy, key, size);
        *entry = (struct tp_map_entry){copy, size, hash, 0};
        map->count++;
    }
    entry->value = value;
    return TP_OK;
}

void tp_map_free(tp_map *map)
{
    for (size_t i = 0; i < map->capacity; i++) {
        tp_free(map->entries[i].key);
    }
    tp_free(map->entries);
    *map = (tp_map)TP_MAP_INIT;
}
