#include "memo.h"

#include <string.h>

#include "base/mem.h"

#define FIRST_CAPACITY 256u

static uint32_t hash(const PyObject *tensor, uint32_t mask)
{
    const uint64_t address = (uint64_t)(uintptr_t)tensor;
    return (uint32_t)((address * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & mask;
}

/* The place in the index of this tensor's entry, or the free one where it belongs. */
static uint32_t place_of(const memo_table *memo, const PyObject *tensor)
{
    const uint32_t mask = memo->index_size - 1;
    uint32_t place = hash(tensor, mask);
    while (memo->index[place] != 0 && memo->entries[memo->index[place] - 1].tensor != tensor) {
        place = (place + 1) & mask;
    }
    return place;
}

memo_entry *memo_find(memo_table *memo, PyObject *tensor, int64_t version)
{
    if (memo->count == 0) {
        return NULL;
    }
    const uint32_t number = memo->index[place_of(memo, tensor)];
    if (number == 0) {
        return NULL;
    }
    memo_entry *entry = &memo->entries[number - 1];
    /* The address alone is not enough: it may have been given to a new tensor. */
    if (entry->version != version || PyWeakref_GetObject(entry->weakref) != tensor) {
        return NULL;
    }
    return entry;
}

static bool grow(memo_table *memo)
{
    const uint32_t capacity = memo->capacity == 0 ? FIRST_CAPACITY : memo->capacity * 2;
    uint32_t *index = tp_calloc((size_t)capacity * 2, sizeof(*index));
    if (index == NULL) {
        return false;
    }
    memo_entry *entries = tp_realloc(memo->entries, capacity * sizeof(*entries));
    if (entries == NULL) {
        tp_free(index);
        return false;
    }
    tp_free(memo->index);
    memo->entries = entries;
    memo->capacity = capacity;
    memo->index = index;
    memo->index_size = capacity * 2;
    for (uint32_t i = 0; i < memo->count; i++) {
        memo->index[place_of(memo, memo->entries[i].tensor)] = i + 1;
    }
    return true;
}

memo_entry *memo_add(memo_table *memo, PyObject *tensor, int64_t version, const tp_stats *stats)
{
    if (memo->count == memo->capacity && !grow(memo)) {
        return NULL;
    }
    PyObject *weakref = PyWeakref_NewRef(tensor, NULL);
    if (weakref == NULL) {
        PyErr_Clear();
        return NULL;
    }
    const uint32_t place = place_of(memo, tensor);
    memo_entry *entry = NULL;
    if (memo->index[place] != 0) {
        entry = &memo->entries[memo->index[place] - 1];
        PyObject *old_weakref = entry->weakref;
        PyObject *old_hook = entry->hook;
        entry->weakref = weakref;
        entry->hook = NULL;
        Py_DECREF(old_weakref);
        Py_XDECREF(old_hook);
    } else {
        entry = &memo->entries[memo->count++];
        memo->index[place] = memo->count;
        entry->tensor = tensor;
        entry->weakref = weakref;
        entry->hook = NULL;
    }
    entry->version = version;
    entry->stats = *stats;
    entry->step = NULL;
    return entry;
}

void memo_clear(memo_table *memo)
{
    if (memo->count == 0) {
        return;
    }
    /* Dropping a hook can free other objects, but nothing that comes back here: hooks have no
     * finalizers of their own. */
    for (uint32_t i = 0; i < memo->count; i++) {
        Py_CLEAR(memo->entries[i].weakref);
        Py_CLEAR(memo->entries[i].hook);
    }
    memo->count = 0;
    memset(memo->index, 0, memo->index_size * sizeof(*memo->index));
}

void memo_free(memo_table *memo)
{
    memo_clear(memo);
    tp_free(memo->entries);
    tp_free(memo->index);
    memset(memo, 0, sizeof(*memo));
}
