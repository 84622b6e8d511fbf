#include "arrow/strings.h"

#include <string.h>

#include "base/text.h"

static void put_characters(tp_buf *bytes, const char *text)
{
    while (*text != '\0') {
        const char *end = text;
        size_t size;
        while (*end != '\0' && (size = tp_text_character(end)) > 0) {
            end += size;
        }
        tp_buf_put(bytes, text, (size_t)(end - text));
        if (*end != '\0') {
            tp_buf_put(bytes, TP_TEXT_REPLACEMENT, sizeof TP_TEXT_REPLACEMENT - 1);
            end++;
        }
        text = end;
    }
}

static tp_status append(tp_strings *strings, const char *text)
{
    const size_t before = strings->bytes.size;
    if (strings->offsets.size == 0) {
        tp_buf_put_u32(&strings->offsets, 0);
    }
    put_characters(&strings->bytes, text);
    const bool fits = strings->bytes.size <= INT32_MAX && strings->count < INT32_MAX;
    tp_buf_put_u32(&strings->offsets, (uint32_t)strings->bytes.size);
    if (strings->bytes.failed || strings->offsets.failed || !fits) {
        strings->bytes.size = before;
        return fits ? TP_ERR_NOMEM : TP_ERR_UNSUPPORTED;
    }
    strings->count++;
    return TP_OK;
}

/* Where an address is, or would be, among the identities. The table is never full. */
static tp_identity *place_of(const tp_strings *strings, const void *address)
{
    tp_identity *table = (tp_identity *)(void *)strings->identities.data;
    const uint64_t mask = strings->identities.size / sizeof *table - 1;
    uint64_t place = ((uintptr_t)address * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & mask;
    while (table[place].address != NULL && table[place].address != address) {
        place = (place + 1) & mask;
    }
    return &table[place];
}

/* Twice as many places, a power of two. */
static tp_status grow(tp_strings *strings)
{
    tp_buf old = strings->identities;
    const tp_identity *table = (const tp_identity *)(const void *)old.data;
    const size_t size = old.size > 0 ? 2 * old.size : 64 * sizeof *table;
    tp_buf larger = TP_BUF_INIT;
    void *room = tp_buf_extend(&larger, size);
    if (room == NULL) {
        return TP_ERR_NOMEM;
    }
    memset(room, 0, size);
    strings->identities = larger;
    for (size_t i = 0; i < old.size / sizeof *table; i++) {
        if (table[i].address != NULL) {
            *place_of(strings, table[i].address) = table[i];
        }
    }
    tp_buf_free(&old);
    return TP_OK;
}

static tp_status identify(tp_strings *strings, const void *address, int32_t number)
{
    if (2 * (strings->identity_count + UINT64_C(1)) * sizeof(tp_identity) >
        strings->identities.size) {
        const tp_status status = grow(strings);
        if (status != TP_OK) {
            return status;
        }
    }
    tp_identity *place = place_of(strings, address);
    strings->identity_count += place->address == NULL;
    *place = (tp_identity){address, number};
    return TP_OK;
}

tp_status tp_strings_find(const tp_strings *strings, const void *identity, int32_t *number)
{
    if (strings->identity_count == 0) {
        return TP_ERR_NOTFOUND;
    }
    const tp_identity *place = place_of(strings, identity);
    *number = place->number;
    return place->address != NULL ? TP_OK : TP_ERR_NOTFOUND;
}

tp_status tp_strings_add(tp_strings *strings, const char *text, const void *identity,
                         int32_t *number)
{
    const size_t size = strlen(text);
    uint32_t found = strings->count;
    tp_status status = tp_map_get(&strings->texts, text, size, &found);
    if (status == TP_ERR_NOTFOUND) {
        found = strings->count;
        status = append(strings, text);
        if (status == TP_OK) {
            status = tp_map_set(&strings->texts, text, size, found);
        }
    }
    if (status == TP_OK && identity != NULL) {
        status = identify(strings, identity, (int32_t)found);
    }
    *number = (int32_t)found;
    return status;
}

void tp_strings_forget(tp_strings *strings)
{
    tp_buf_free(&strings->identities);
    strings->identity_count = 0;
}

/* Copies what there is into memory for readers. */
static tp_shared *copy(const tp_buf *from)
{
    tp_buf bytes = TP_BUF_INIT;
    tp_buf_put_buf(&bytes, from);
    tp_shared *shared = bytes.failed ? NULL : tp_shared_new(&bytes);
    tp_buf_free(&bytes);
    return shared;
}

static tp_status renew(tp_strings *strings)
{
    tp_shared *offsets = copy(&strings->offsets);
    tp_shared *bytes = copy(&strings->bytes);
    if (offsets == NULL || bytes == NULL) {
        tp_shared_drop(offsets);
        tp_shared_drop(bytes);
        return TP_ERR_NOMEM;
    }
    tp_shared_drop(strings->shared_offsets);
    tp_shared_drop(strings->shared_bytes);
    strings->shared_offsets = offsets;
    strings->shared_bytes = bytes;
    strings->shared_count = strings->count;
    return TP_OK;
}

tp_status tp_strings_array(tp_strings *strings, struct ArrowArray *out)
{
    tp_status status = TP_OK;
    if (strings->shared_offsets == NULL || strings->shared_count != strings->count) {
        status = renew(strings);
    }
    if (status == TP_OK) {
        status = tp_array_new(out, strings->count, 3, 0, false);
    }
    if (status == TP_OK) {
        tp_array_share(out, 1, strings->shared_offsets);
        tp_array_share(out, 2, strings->shared_bytes);
    }
    return status;
}

void tp_strings_free(tp_strings *strings)
{
    tp_map_free(&strings->texts);
    tp_buf_free(&strings->identities);
    tp_buf_free(&strings->offsets);
    tp_buf_free(&strings->bytes);
    tp_shared_drop(strings->shared_offsets);
    tp_shared_drop(strings->shared_bytes);
    *strings = (tp_strings){0};
}
