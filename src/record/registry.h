/* Names of series and shapes of tensors, each with a small number. Append-only: ids count from 0 in
 * order of definition, what is handed out stays valid until the registry is freed. */
#ifndef TP_RECORD_REGISTRY_H
#define TP_RECORD_REGISTRY_H

#include "tensorprobe/record.h"

typedef struct tp_registry tp_registry;

tp_status tp_registry_new(tp_registry **out);
void tp_registry_free(tp_registry *registry); /* accepts NULL */

/* From now on calls added with each new key or shape before anybody has its id; one call at a time.
 * Not beside calls that add. */
void tp_registry_watch(tp_registry *registry, void (*added)(void *watcher), void *watcher);

/* The id of an equal key or shape, or a new one. Strings are copied. Any thread. */
tp_status tp_registry_add_key(tp_registry *registry, const tp_key *key, uint32_t *id);
tp_status tp_registry_add_shape(tp_registry *registry, uint32_t ndim, const int64_t *dims,
                                uint32_t *id);

/* NULL when the id is unknown. Any thread. */
const tp_key *tp_registry_key(const tp_registry *registry, uint32_t id);
const int64_t *tp_registry_shape(const tp_registry *registry, uint32_t id, uint32_t *ndim);

uint32_t tp_registry_key_count(const tp_registry *registry);
uint32_t tp_registry_shape_count(const tp_registry *registry);

#endif
