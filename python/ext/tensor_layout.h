/* A tensor's memory, shape and strides, read where torch keeps them. python/tensorprobe/_layout.py
 * finds the places and tells what they are good for; DLPack has the last word. */
#ifndef TP_EXT_TENSOR_LAYOUT_H
#define TP_EXT_TENSOR_LAYOUT_H

#include <string.h>

#include "core.h"
#include "tensorprobe/tensor.h"

/* Looks for the places, and leaves state->layout.known false unless all it finds there is what
 * DLPack's table says. Never leaves a Python error set. */
void tensor_layout_learn(core_state *state);

static inline uint64_t layout_word(const char *object, uint16_t place)
{
    uint64_t word;
    memcpy(&word, object + place, sizeof(word));
    return word;
}

static inline const char *layout_address(const char *object, uint16_t place)
{
    const char *address;
    memcpy(&address, object + place, sizeof(address));
    return address;
}

static inline uint16_t layout_dtype(const tensor_layout *layout, const char *impl)
{
    uint16_t number;
    memcpy(&number, impl + layout->dtype, sizeof(number));
    return number;
}

/* False: this isn't a tensor of the kind that is known, or its dtype isn't; *data is not touched.
 * tensor: not of a type that takes over dispatch. */
static inline bool tensor_layout_read(const tensor_layout *layout, const PyObject *tensor,
                                      tp_tensor *data)
{
    const char *impl = layout_address((const char *)tensor, layout->object);
    if (impl == NULL || layout_word(impl, layout->keys) != layout->key_set) {
        return false;
    }
    const uint16_t number = layout_dtype(layout, impl);
    const uint32_t dtype = number < LAYOUT_DTYPES ? layout->dtypes[number].dtype : TP_DTYPE_NONE;
    const uint64_t ndim = layout_word(impl, layout->ndim);
    if (dtype == TP_DTYPE_NONE || ndim > LAYOUT_DIMS) {
        return false;
    }
    const char *memory = layout_address(layout_address(impl, layout->storage), layout->memory);
    const uint64_t offset = layout_word(impl, layout->offset) * layout->dtypes[number].size;
    data->data = memory == NULL ? NULL : memory + offset;
    data->shape = (const int64_t *)(const void *)(impl + layout->sizes);
    data->strides = (const int64_t *)(const void *)(impl + layout->strides);
    data->dtype = dtype;
    data->ndim = (uint32_t)ndim;
    return true;
}

#endif
