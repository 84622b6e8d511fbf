#include "tensorprobe/tensor.h"

#include <stddef.h>

typedef struct dtype_row {
    uint32_t size; /* bytes */
    const char *name;
} dtype_row;

static const dtype_row table[] = {
    [TP_DTYPE_NONE] = {0, "unknown"},  [TP_F64] = {8, "torch.float64"},
    [TP_F32] = {4, "torch.float32"},   [TP_F16] = {2, "torch.float16"},
    [TP_BF16] = {2, "torch.bfloat16"},
};

static const dtype_row *row(uint32_t dtype)
{
    return &table[dtype < sizeof(table) / sizeof(table[0]) ? dtype : TP_DTYPE_NONE];
}

uint32_t tp_dtype_size(uint32_t dtype)
{
    return row(dtype)->size;
}

const char *tp_dtype_name(uint32_t dtype)
{
    return row(dtype)->name;
}
