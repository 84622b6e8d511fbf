#include "journal/definitions.h"

#include <string.h>

#include "base/mem.h"

#define ENTRY_KEY 1
#define ENTRY_SHAPE 2
#define ENTRY_HEADER_SIZE 12u /* length, kind, 0, id */
#define KEY_BODY_SIZE 24u     /* before the strings */
#define SPAN_SIZE 16u         /* before the ranges */
#define RANGE_SIZE 24u
#define SHAPE_BODY_SIZE 4u /* before the dimensions */

typedef struct tp_definition {
    struct tp_definition *older; /* an earlier meaning of the id, kept for who holds its pointers */
    uint64_t segment;            /* number (of those begun) in which it was last defined */
    uint32_t id;
    tp_key key;
    tp_span span;
    uint32_t ndim;
    uint32_t body_size;
    const uint8_t *body; /* as stored: equal bytes, equal meaning */
    int64_t dims[];      /* of a shape, or ranges and strings of a key; then the body */
} tp_definition;

static uint32_t size_of_span(const tp_span *span)
{
    return span == NULL ? 0 : SPAN_SIZE + RANGE_SIZE * span->ndim;
}

static void put_span(tp_buf *out, const tp_span *span)
{
    tp_buf_put_u32(out, span->kind);
    tp_buf_put_u32(out, span->ndim);
    tp_buf_put_u32(out, span->copies);
    tp_buf_put_u32(out, span->copy);
    for (uint32_t i = 0; i < span->ndim; i++) {
        tp_buf_put_u64(out, (uint64_t)span->ranges[i].start);
        tp_buf_put_u64(out, (uint64_t)span->ranges[i].length);
        tp_buf_put_u64(out, (uint64_t)span->ranges[i].full);
    }
}

void tp_definitions_put(tp_buf *out, const tp_registry *registry, uint32_t key_from,
                        uint32_t key_to, uint32_t shape_from, uint32_t shape_to)
{
    for (uint32_t id = key_from; id < key_to; id++) {
        const tp_key *key = tp_registry_key(registry, id);
        const char *global_name = key->global_name != NULL ? key->global_name : key->name;
        uint32_t name_size = (uint32_t)strlen(key->name);
        uint32_t global_size = (uint32_t)strlen(global_name);
        uint32_t argument_size = key->argument == NULL ? 0 : (uint32_t)strlen(key->argument);
        static const tp_span none = {0};
        const tp_span *span = key->span == NULL && argument_size > 0 ? &none : key->span;
        tp_buf_put_u32(out, ENTRY_HEADER_SIZE + KEY_BODY_SIZE + name_size + global_size +
                                size_of_span(span) + argument_size);
        tp_buf_put_u16(out, ENTRY_KEY);
        tp_buf_put_u16(out, 0);
        tp_buf_put_u32(out, id);
        tp_buf_put_u32(out, (uint32_t)key->vpp_stage);
        tp_buf_put_u32(out, (uint32_t)key->slot);
        tp_buf_put_u32(out, key->quantity);
        tp_buf_put_u32(out, key->role);
        tp_buf_put_u32(out, name_size);
        tp_buf_put_u32(out, global_size);
        tp_buf_put(out, key->name, name_size);
        tp_buf_put(out, global_name, global_size);
        if (span != NULL) {
            put_span(out, span);
        }
        if (argument_size > 0) {
            tp_buf_put(out, key->argument, argument_size);
        }
    }
    for (uint32_t id = shape_from; id < shape_to; id++) {
        uint32_t ndim = 0;
        const int64_t *dims = tp_registry_shape(registry, id, &ndim);
        tp_buf_put_u32(out, ENTRY_HEADER_SIZE + SHAPE_BODY_SIZE + 8 * ndim);
        tp_buf_put_u16(out, ENTRY_SHAPE);
        tp_buf_put_u16(out, 0);
        tp_buf_put_u32(out, id);
        tp_buf_put_u32(out, ndim);
        for (uint32_t i = 0; i < ndim; i++) {
            tp_buf_put_u64(out, (uint64_t)dims[i]);
        }
    }
}

static tp_definition **place_of(const tp_definition_table *table, uint32_t id)
{
    tp_definition **latest = (tp_definition **)(void *)table->latest.data;
    uint32_t index;
    /* Ids are given from 0 on: without damage each is its own place. */
    if (id < table->latest.size / sizeof *latest && latest[id]->id == id) {
        return latest + id;
    }
    if (tp_map_get(&table->places, &id, sizeof id, &index) != TP_OK) {
        return NULL;
    }
    return latest + index;
}

static tp_definition *make(const uint8_t *body, uint32_t body_size, uint32_t ndim,
                           uint32_t strings_size)
{
    tp_definition *made =
        tp_calloc(1, sizeof *made + ndim * sizeof made->dims[0] + strings_size + body_size);
    if (made != NULL) {
        uint8_t *copy = (uint8_t *)(made->dims + ndim) + strings_size;
        memcpy(copy, body, body_size);
        made->body = copy;
        made->body_size = body_size;
        made->ndim = ndim;
    }
    return made;
}

/* The span behind the strings, NULL: there is none. TP_ERR_CORRUPT. */
static tp_status find_span(const uint8_t *body, uint32_t size, uint32_t at, const uint8_t **span)
{
    *span = size - at >= SPAN_SIZE ? body + at : NULL;
    if (*span == NULL) {
        return TP_OK;
    }
    const uint32_t ndim = tp_get_u32(*span + 4);
    return ndim <= TP_MAX_DIMS && RANGE_SIZE * ndim <= size - at - SPAN_SIZE ? TP_OK
                                                                             : TP_ERR_CORRUPT;
}

static void read_span(tp_definition *made, const uint8_t *span)
{
    tp_range *ranges = (tp_range *)made->dims;
    made->span = (tp_span){.kind = tp_get_u32(span),
                           .ndim = tp_get_u32(span + 4),
                           .copies = tp_get_u32(span + 8),
                           .copy = tp_get_u32(span + 12),
                           .ranges = ranges};
    for (uint32_t i = 0; i < made->span.ndim; i++) {
        const uint8_t *range = span + SPAN_SIZE + RANGE_SIZE * i;
        ranges[i] = (tp_range){(int64_t)tp_get_u64(range), (int64_t)tp_get_u64(range + 8),
                               (int64_t)tp_get_u64(range + 16)};
    }
    /* In front of an argument there may be one that says nothing. */
    made->key.span =
        made->span.kind == TP_SPAN_WHOLE && made->span.copies == 0 ? NULL : &made->span;
}

static tp_status make_key(const uint8_t *body, uint32_t size, tp_definition **out)
{
    if (size < KEY_BODY_SIZE) {
        return TP_ERR_CORRUPT;
    }
    uint32_t name_size = tp_get_u32(body + 16);
    uint32_t global_size = tp_get_u32(body + 20);
    if (name_size > size - KEY_BODY_SIZE || global_size > size - KEY_BODY_SIZE - name_size) {
        return TP_ERR_CORRUPT;
    }
    const uint8_t *span;
    if (find_span(body, size, KEY_BODY_SIZE + name_size + global_size, &span) != TP_OK) {
        return TP_ERR_CORRUPT;
    }
    const uint32_t words = span == NULL ? 0 : 3 * tp_get_u32(span + 4);
    const uint8_t *argument = span == NULL ? body + size : span + SPAN_SIZE + 8 * words;
    const uint32_t argument_size = (uint32_t)(body + size - argument);
    tp_definition *made = make(body, size, words, name_size + global_size + argument_size + 3);
    if (made == NULL) {
        return TP_ERR_NOMEM;
    }
    char *strings = (char *)(made->dims + words); /* zeroed: the terminators are there */
    memcpy(strings, body + KEY_BODY_SIZE, name_size);
    memcpy(strings + name_size + 1, body + KEY_BODY_SIZE + name_size, global_size);
    made->key = (tp_key){.name = strings,
                         .global_name = strings + name_size + 1,
                         .vpp_stage = (int32_t)tp_get_u32(body),
                         .slot = (int32_t)tp_get_u32(body + 4),
                         .quantity = tp_get_u32(body + 8),
                         .role = tp_get_u32(body + 12)};
    if (argument_size > 0) {
        char *copy = strings + name_size + global_size + 2;
        made->key.argument = memcpy(copy, argument, argument_size);
    }
    if (span != NULL) {
        read_span(made, span);
    }
    *out = made;
    return TP_OK;
}

static tp_status make_shape(const uint8_t *body, uint32_t size, tp_definition **out)
{
    if (size < SHAPE_BODY_SIZE) {
        return TP_ERR_CORRUPT;
    }
    uint32_t ndim = tp_get_u32(body);
    if (ndim > TP_MAX_DIMS || 8 * ndim > size - SHAPE_BODY_SIZE) {
        return TP_ERR_CORRUPT;
    }
    tp_definition *made = make(body, size, ndim, 0);
    if (made == NULL) {
        return TP_ERR_NOMEM;
    }
    for (uint32_t i = 0; i < ndim; i++) {
        made->dims[i] = (int64_t)tp_get_u64(body + SHAPE_BODY_SIZE + 8 * i);
    }
    *out = made;
    return TP_OK;
}

static tp_status table_take(tp_definition_table *table, uint64_t segment, uint32_t id,
                            const uint8_t *body, uint32_t size,
                            tp_status (*parse)(const uint8_t *, uint32_t, tp_definition **))
{
    tp_definition **place = place_of(table, id);
    tp_definition *made = NULL;
    if (place == NULL || (*place)->body_size != size || memcmp((*place)->body, body, size) != 0) {
        tp_status status = parse(body, size, &made);
        if (status != TP_OK) {
            return status;
        }
        made->id = id;
    }
    if (place == NULL) {
        size_t before = table->latest.size;
        tp_buf_put(&table->latest, &made, sizeof(tp_definition *));
        if (table->latest.failed ||
            tp_map_set(&table->places, &id, sizeof id,
                       (uint32_t)(before / sizeof(tp_definition *))) != TP_OK) {
            table->latest.size = before;
            table->latest.failed = false;
            tp_free(made);
            return TP_ERR_NOMEM;
        }
        place = place_of(table, id);
    } else if (made != NULL) {
        made->older = *place;
        *place = made;
    }
    (*place)->segment = segment;
    table->count = id >= table->count ? id + 1 : table->count;
    return TP_OK;
}

static const tp_definition *table_get(const tp_definition_table *table, uint64_t segment,
                                      uint32_t id)
{
    tp_definition *const *place = place_of(table, id);
    return place != NULL && (*place)->segment == segment ? *place : NULL;
}

static void table_free(tp_definition_table *table)
{
    tp_definition **latest = (tp_definition **)(void *)table->latest.data;
    for (size_t i = 0; i < table->latest.size / sizeof(tp_definition *); i++) {
        tp_definition *definition = latest[i];
        while (definition != NULL) {
            tp_definition *older = definition->older;
            tp_free(definition);
            definition = older;
        }
    }
    tp_buf_free(&table->latest);
    tp_map_free(&table->places);
}

void tp_definitions_free(tp_definitions *definitions)
{
    table_free(&definitions->keys);
    table_free(&definitions->shapes);
}

void tp_definitions_begin(tp_definitions *definitions)
{
    definitions->segments++;
    definitions->keys.count = 0;
    definitions->shapes.count = 0;
}

tp_status tp_definitions_get(tp_definitions *definitions, const tp_buf *payload)
{
    size_t offset = 0;
    while (offset < payload->size) {
        const uint8_t *entry = payload->data + offset;
        size_t left = payload->size - offset;
        if (left < ENTRY_HEADER_SIZE) {
            return TP_ERR_CORRUPT;
        }
        uint32_t length = tp_get_u32(entry);
        uint32_t id = tp_get_u32(entry + 8);
        if (length < ENTRY_HEADER_SIZE || length > left || id == UINT32_MAX) {
            return TP_ERR_CORRUPT;
        }
        tp_status status = TP_OK;
        const uint8_t *body = entry + ENTRY_HEADER_SIZE;
        uint32_t body_size = length - ENTRY_HEADER_SIZE;
        switch (tp_get_u16(entry + 4)) {
        case ENTRY_KEY:
            status = table_take(&definitions->keys, definitions->segments, id, body, body_size,
                                make_key);
            break;
        case ENTRY_SHAPE:
            status = table_take(&definitions->shapes, definitions->segments, id, body, body_size,
                                make_shape);
            break;
        default: /* of a later version */
            break;
        }
        if (status != TP_OK) {
            return status;
        }
        offset += length;
    }
    return TP_OK;
}

const tp_key *tp_definitions_key(const tp_definitions *definitions, uint32_t id)
{
    const tp_definition *found = table_get(&definitions->keys, definitions->segments, id);
    return found != NULL ? &found->key : NULL;
}

const tp_key *tp_definitions_next_key(const tp_definitions *definitions, uint64_t *place,
                                      uint32_t *id)
{
    const tp_buf *latest = &definitions->keys.latest;
    tp_definition *const *all = (tp_definition **)(void *)latest->data;
    while (*place < latest->size / sizeof(tp_definition *)) {
        const tp_definition *definition = all[(*place)++];
        if (definition->segment == definitions->segments) {
            *id = definition->id;
            return &definition->key;
        }
    }
    return NULL;
}

const int64_t *tp_definitions_shape(const tp_definitions *definitions, uint32_t id, uint32_t *ndim)
{
    const tp_definition *found = table_get(&definitions->shapes, definitions->segments, id);
    if (found == NULL) {
        return NULL;
    }
    *ndim = found->ndim;
    return found->dims;
}
