#include "record/registry.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/buf.h"
#include "base/map.h"
#include "base/mem.h"

/* Entries live in blocks that never move, so that readers need no lock: block b holds
 * FIRST_BLOCK << b entries, which is room for all 32-bit ids. */
#define FIRST_BLOCK 64u
#define BLOCKS 26

typedef struct shape_entry {
    uint32_t ndim;
    int64_t dims[];
} shape_entry;

typedef struct table {
    void **blocks[BLOCKS];
    atomic_uint count;
} table;

struct tp_registry {
    pthread_mutex_t lock; /* of adding; looking up takes none */
    tp_map key_ids;
    tp_map shape_ids;
    table keys;   /* tp_key * */
    table shapes; /* shape_entry * */
    void (*added)(void *watcher);
    void *watcher;
};

static uint32_t block_of(uint32_t id, uint32_t *offset)
{
    uint32_t block = 0;
    uint32_t start = 0;
    while (id - start >= FIRST_BLOCK << block) {
        start += FIRST_BLOCK << block;
        block++;
    }
    *offset = id - start;
    return block;
}

static void *table_get(const table *t, uint32_t id)
{
    uint32_t offset;
    if (id >= atomic_load_explicit(&t->count, memory_order_acquire)) {
        return NULL;
    }
    uint32_t block = block_of(id, &offset);
    return t->blocks[block][offset];
}

/* Makes room for the next entry. */
static tp_status table_reserve(table *t)
{
    uint32_t offset;
    uint32_t block = block_of(atomic_load(&t->count), &offset);
    if (block >= BLOCKS) {
        return TP_ERR_NOMEM;
    }
    if (t->blocks[block] == NULL) {
        t->blocks[block] = tp_calloc((size_t)FIRST_BLOCK << block, sizeof(void *));
        if (t->blocks[block] == NULL) {
            return TP_ERR_NOMEM;
        }
    }
    return TP_OK;
}

static uint32_t table_push(table *t, void *entry)
{
    uint32_t offset;
    uint32_t id = atomic_load(&t->count);
    uint32_t block = block_of(id, &offset);
    t->blocks[block][offset] = entry;
    atomic_store_explicit(&t->count, id + 1, memory_order_release);
    return id;
}

static void table_free(table *t)
{
    uint32_t count = atomic_load(&t->count);
    for (uint32_t id = 0; id < count; id++) {
        tp_free(table_get(t, id));
    }
    for (uint32_t block = 0; block < BLOCKS; block++) {
        tp_free(t->blocks[block]);
    }
}

tp_status tp_registry_new(tp_registry **out)
{
    tp_registry *registry = tp_calloc(1, sizeof *registry);
    if (registry == NULL) {
        return TP_ERR_NOMEM;
    }
    if (pthread_mutex_init(&registry->lock, NULL) != 0) {
        tp_free(registry);
        return TP_ERR_NOMEM;
    }
    *out = registry;
    return TP_OK;
}

void tp_registry_free(tp_registry *registry)
{
    if (registry == NULL) {
        return;
    }
    table_free(&registry->keys);
    table_free(&registry->shapes);
    tp_map_free(&registry->key_ids);
    tp_map_free(&registry->shape_ids);
    pthread_mutex_destroy(&registry->lock);
    tp_free(registry);
}

typedef struct key_entry {
    tp_key key;
    tp_span span;
    tp_range ranges[];
} key_entry;

/* A copy of the key with its ranges and strings behind it, in one piece of memory. */
static tp_key *copy_key(const tp_key *key)
{
    const char *global = key->global_name != NULL ? key->global_name : key->name;
    const size_t name_size = strlen(key->name) + 1;
    const size_t global_size = strlen(global) + 1;
    const size_t argument_size = key->argument != NULL ? strlen(key->argument) + 1 : 0;
    const uint32_t ndim = key->span != NULL ? key->span->ndim : 0;
    key_entry *copy = tp_alloc(sizeof *copy + ndim * sizeof copy->ranges[0] + name_size +
                               global_size + argument_size);
    if (copy == NULL) {
        return NULL;
    }
    char *strings = (char *)(copy->ranges + ndim);
    memcpy(strings, key->name, name_size);
    memcpy(strings + name_size, global, global_size);
    copy->key = *key;
    copy->key.name = strings;
    copy->key.global_name = strings + name_size;
    if (key->argument != NULL) {
        copy->key.argument =
            memcpy(strings + name_size + global_size, key->argument, argument_size);
    }
    if (key->span != NULL) {
        copy->span = *key->span;
        copy->span.ranges = copy->ranges;
        copy->key.span = &copy->span;
    }
    if (ndim > 0) {
        memcpy(copy->ranges, key->span->ranges, ndim * sizeof copy->ranges[0]);
    }
    return &copy->key;
}

static void identify_span(tp_buf *bytes, const tp_span *span)
{
    if (span != NULL) {
        tp_buf_put_u32(bytes, span->kind);
        tp_buf_put_u32(bytes, span->copies);
        tp_buf_put_u32(bytes, span->copy);
        tp_buf_put(bytes, span->ranges, span->ndim * sizeof span->ranges[0]);
    }
}

/* The bytes by which equal keys are equal. */
static void identify_key(tp_buf *bytes, const tp_key *key)
{
    const char *global = key->global_name != NULL ? key->global_name : key->name;
    tp_buf_put_u32(bytes, (uint32_t)key->vpp_stage);
    tp_buf_put_u32(bytes, (uint32_t)key->slot);
    tp_buf_put_u32(bytes, key->quantity);
    tp_buf_put_u32(bytes, key->role);
    tp_buf_put(bytes, key->name, strlen(key->name) + 1);
    tp_buf_put(bytes, global, strlen(global) + 1);
    tp_buf_put_u32(bytes, key->argument != NULL);
    if (key->argument != NULL) {
        tp_buf_put(bytes, key->argument, strlen(key->argument) + 1);
    }
    identify_span(bytes, key->span);
}

void tp_registry_watch(tp_registry *registry, void (*added)(void *watcher), void *watcher)
{
    registry->added = added;
    registry->watcher = watcher;
}

/* Looks identity up in ids; adds entry (owned by the table from then on) when it is new. */
static tp_status add(tp_registry *registry, tp_map *ids, table *t, const void *identity,
                     size_t size, void *(*make)(const void *), const void *what, uint32_t *id)
{
    pthread_mutex_lock(&registry->lock);
    tp_status status = tp_map_get(ids, identity, size, id);
    if (status == TP_OK) {
        goto unlock;
    }
    status = table_reserve(t);
    if (status != TP_OK) {
        goto unlock;
    }
    void *entry = make(what);
    if (entry == NULL) {
        status = TP_ERR_NOMEM;
        goto unlock;
    }
    status = tp_map_set(ids, identity, size, atomic_load(&t->count));
    if (status != TP_OK) {
        tp_free(entry);
        goto unlock;
    }
    *id = table_push(t, entry);
    if (registry->added != NULL) {
        registry->added(registry->watcher);
    }
unlock:
    pthread_mutex_unlock(&registry->lock);
    return status;
}

static void *make_key(const void *key)
{
    return copy_key(key);
}

tp_status tp_registry_add_key(tp_registry *registry, const tp_key *key, uint32_t *id)
{
    tp_buf identity = TP_BUF_INIT;
    if (key->name == NULL || (key->span != NULL && key->span->ndim > TP_MAX_DIMS)) {
        return TP_ERR_ARGUMENT;
    }
    identify_key(&identity, key);
    tp_status status = identity.failed ? TP_ERR_NOMEM
                                       : add(registry, &registry->key_ids, &registry->keys,
                                             identity.data, identity.size, make_key, key, id);
    tp_buf_free(&identity);
    return status;
}

typedef struct shape_request {
    uint32_t ndim;
    const int64_t *dims;
} shape_request;

static void *make_shape(const void *what)
{
    const shape_request *request = what;
    shape_entry *entry = tp_alloc(sizeof *entry + request->ndim * sizeof entry->dims[0]);
    if (entry != NULL) {
        entry->ndim = request->ndim;
        if (request->ndim > 0) {
            memcpy(entry->dims, request->dims, request->ndim * sizeof entry->dims[0]);
        }
    }
    return entry;
}

tp_status tp_registry_add_shape(tp_registry *registry, uint32_t ndim, const int64_t *dims,
                                uint32_t *id)
{
    const shape_request request = {ndim, dims};
    int64_t identity[TP_MAX_DIMS + 1];
    if (ndim > TP_MAX_DIMS) {
        return TP_ERR_ARGUMENT;
    }
    identity[0] = ndim;
    if (ndim > 0) {
        memcpy(identity + 1, dims, ndim * sizeof dims[0]);
    }
    return add(registry, &registry->shape_ids, &registry->shapes, identity,
               (ndim + 1) * sizeof identity[0], make_shape, &request, id);
}

const tp_key *tp_registry_key(const tp_registry *registry, uint32_t id)
{
    return table_get(&registry->keys, id);
}

const int64_t *tp_registry_shape(const tp_registry *registry, uint32_t id, uint32_t *ndim)
{
    const shape_entry *entry = table_get(&registry->shapes, id);
    if (entry == NULL) {
        return NULL;
    }
    *ndim = entry->ndim;
    return entry->dims;
}

uint32_t tp_registry_key_count(const tp_registry *registry)
{
    return atomic_load_explicit(&registry->keys.count, memory_order_acquire);
}

uint32_t tp_registry_shape_count(const tp_registry *registry)
{
    return atomic_load_explicit(&registry->shapes.count, memory_order_acquire);
}
