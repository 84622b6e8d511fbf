#include "record/element.h"

#include <string.h>

#include "tensor/walk.h"

#define AT_ONCE 1024u

/* The exponent's bits: all of them are set in a NaN or an infinity alone. */
static uint64_t exponent_of(uint32_t dtype)
{
    switch (dtype) {
    case TP_F64:
        return UINT64_C(0x7ff0000000000000);
    case TP_F32:
        return 0x7f800000;
    case TP_F16:
        return 0x7c00;
    case TP_BF16:
        return 0x7f80;
    default:
        return 0;
    }
}

bool tp_element_find(const tp_tensor *tensor, uint64_t most, uint64_t *looked, uint64_t *index,
                     uint64_t *bits)
{
    const uint64_t exponent = exponent_of(tensor->dtype);
    uint8_t buffer[AT_ONCE * sizeof(uint64_t)];
    tp_walk walk;
    *looked = 0;
    if (exponent == 0 || tp_walk_open(&walk, tensor) != TP_OK) {
        return false;
    }
    while (walk.left > 0 && *looked < most) {
        const size_t n = walk.left < AT_ONCE ? (size_t)walk.left : AT_ONCE;
        const uint8_t *elements = tp_walk_next(&walk, n, buffer);
        for (size_t i = 0; i < n; i++) {
            uint64_t pattern = 0; /* little-endian, as every machine that this runs on is */
            memcpy(&pattern, elements + i * walk.element, walk.element);
            if ((pattern & exponent) == exponent) {
                *index = tp_walk_index(&walk, tensor, *looked + i);
                *bits = pattern;
                *looked += i + 1;
                return true;
            }
        }
        *looked += n;
    }
    return false;
}
