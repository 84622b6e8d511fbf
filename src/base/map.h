/* A hash map from byte strings to 32-bit numbers (FNV-1a, open addressing). Keys are copied. */
#ifndef TP_BASE_MAP_H
#define TP_BASE_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "tensorprobe/status.h"

typedef struct tp_map {
    struct tp_map_entry *entries;
    size_t capacity; /* a power of two, or 0 */
    size_t count;
} tp_map;

#define TP_MAP_INIT                                                                                \
    {                                                                                              \
        NULL, 0, 0                                                                                 \
    }

/* TP_OK and *value, or TP_ERR_NOTFOUND. */
tp_status tp_map_get(const tp_map *map, const void *key, size_t size, uint32_t *value);

/* Adds or replaces. TP_ERR_NOMEM leaves the map as it was. */
tp_status tp_map_set(tp_map *map, const void *key, size_t size, uint32_t value);

void tp_map_free(tp_map *map);

#endif
