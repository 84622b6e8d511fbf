#include "arrow/array.h"

#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"

#define BUFFERS_MAX 3

struct tp_shared {
    atomic_uint holders;
    void *bytes;
};

/* What an array's private_data points to. Children and dictionary may be moved out by the consumer;
 * the places where they stood stay ours. */
typedef struct array_memory {
    const void *buffers[BUFFERS_MAX];
    void *owned[BUFFERS_MAX];
    tp_shared *shared[BUFFERS_MAX];
    struct ArrowArray dictionary;
    struct ArrowArray **children; /* the places lie behind the pointers */
} array_memory;

typedef struct schema_memory {
    struct ArrowSchema dictionary;
    struct ArrowSchema **children;
} schema_memory;

tp_shared *tp_shared_new(tp_buf *buf)
{
    tp_shared *shared = tp_calloc(1, sizeof *shared);
    if (shared != NULL) {
        atomic_init(&shared->holders, 1);
        shared->bytes = buf->data;
        *buf = (tp_buf)TP_BUF_INIT;
    }
    return shared;
}

tp_shared *tp_shared_hold(tp_shared *shared)
{
    atomic_fetch_add_explicit(&shared->holders, 1, memory_order_relaxed);
    return shared;
}

void tp_shared_drop(tp_shared *shared)
{
    if (shared != NULL &&
        atomic_fetch_sub_explicit(&shared->holders, 1, memory_order_acq_rel) == 1) {
        tp_free(shared->bytes);
        tp_free(shared);
    }
}

static void release_array(struct ArrowArray *array)
{
    array_memory *memory = array->private_data;
    for (int64_t i = 0; i < array->n_children; i++) {
        if (array->children[i]->release != NULL) {
            array->children[i]->release(array->children[i]);
        }
    }
    if (memory->dictionary.release != NULL) {
        memory->dictionary.release(&memory->dictionary);
    }
    for (int i = 0; i < BUFFERS_MAX; i++) {
        tp_free(memory->owned[i]);
        tp_shared_drop(memory->shared[i]);
    }
    tp_free(memory->children);
    tp_free(memory);
    array->release = NULL;
}

tp_status tp_array_new(struct ArrowArray *out, int64_t length, uint32_t buffers, uint32_t children,
                       bool dictionary)
{
    array_memory *memory = tp_calloc(1, sizeof *memory);
    if (memory == NULL) {
        return TP_ERR_NOMEM;
    }
    if (children > 0) {
        memory->children =
            tp_calloc(children, sizeof(struct ArrowArray *) + sizeof(struct ArrowArray));
        if (memory->children == NULL) {
            tp_free(memory);
            return TP_ERR_NOMEM;
        }
        struct ArrowArray *places = (struct ArrowArray *)(void *)(memory->children + children);
        for (uint32_t i = 0; i < children; i++) {
            memory->children[i] = &places[i];
        }
    }
    *out = (struct ArrowArray){.length = length,
                               .n_buffers = buffers,
                               .n_children = children,
                               .buffers = memory->buffers,
                               .children = memory->children,
                               .dictionary = dictionary ? &memory->dictionary : NULL,
                               .release = release_array,
                               .private_data = memory};
    return TP_OK;
}

void tp_array_own(struct ArrowArray *array, uint32_t index, tp_buf *buf)
{
    array_memory *memory = array->private_data;
    memory->owned[index] = buf->data;
    memory->buffers[index] = buf->data;
    *buf = (tp_buf)TP_BUF_INIT;
}

void tp_array_share(struct ArrowArray *array, uint32_t index, tp_shared *shared)
{
    array_memory *memory = array->private_data;
    memory->shared[index] = tp_shared_hold(shared);
    memory->buffers[index] = shared->bytes;
}

static void release_schema(struct ArrowSchema *schema)
{
    schema_memory *memory = schema->private_data;
    for (int64_t i = 0; i < schema->n_children; i++) {
        if (schema->children[i]->release != NULL) {
            schema->children[i]->release(schema->children[i]);
        }
    }
    if (memory->dictionary.release != NULL) {
        memory->dictionary.release(&memory->dictionary);
    }
    tp_free(memory->children);
    tp_free(memory);
    schema->release = NULL;
}

tp_status tp_schema_new(struct ArrowSchema *out, const char *format, const char *name,
                        uint32_t children, bool dictionary)
{
    schema_memory *memory = tp_calloc(1, sizeof *memory);
    if (memory == NULL) {
        return TP_ERR_NOMEM;
    }
    if (children > 0) {
        memory->children =
            tp_calloc(children, sizeof(struct ArrowSchema *) + sizeof(struct ArrowSchema));
        if (memory->children == NULL) {
            tp_free(memory);
            return TP_ERR_NOMEM;
        }
        struct ArrowSchema *places = (struct ArrowSchema *)(void *)(memory->children + children);
        for (uint32_t i = 0; i < children; i++) {
            memory->children[i] = &places[i];
        }
    }
    *out = (struct ArrowSchema){.format = format,
                                .name = name,
                                .flags = ARROW_FLAG_NULLABLE,
                                .n_children = children,
                                .children = memory->children,
                                .dictionary = dictionary ? &memory->dictionary : NULL,
                                .release = release_schema,
                                .private_data = memory};
    return TP_OK;
}
