#include "tensorprobe/tensor.h"

#include <stddef.h>

typedef struct dtype_row {
    uint32_t size; /* bytes */
    const char *name;
} dtype_row;

static const dtype_row table[] = {
    [TP_DTYPE_NONE] = {0, "unknown"},
    [TP_F64] = {8, "torch.float64"},
    [TP_F32] = {4, "torch.float32"},
    [TP_F16] = {2, "torch.float16"},
    [TP_BF16] = {2, "torch.bfloat16"},
    [TP_F8_E4M3FN] = {1, "torch.float8_e4m3fn"},
    [TP_F8_E5M2] = {1, "torch.float8_e5m2"},
    [TP_F8_E4M3FNUZ] = {1, "torch.float8_e4m3fnuz"},
    [TP_F8_E5M2FNUZ] = {1, "torch.float8_e5m2fnuz"},
    [TP_F8_E8M0FNU] = {1, "torch.float8_e8m0fnu"},
    [TP_F4_E2M1FN_X2] = {1, "torch.float4_e2m1fn_x2"},
    [TP_I8] = {1, "torch.int8"},
    [TP_I16] = {2, "torch.int16"},
    [TP_I32] = {4, "torch.int32"},
    [TP_I64] = {8, "torch.int64"},
    [TP_U8] = {1, "torch.uint8"},
    [TP_U16] = {2, "torch.uint16"},
    [TP_U32] = {4, "torch.uint32"},
    [TP_U64] = {8, "torch.uint64"},
    [TP_BOOL] = {1, "torch.bool"},
    [TP_C64] = {8, "torch.complex64"},
    [TP_C128] = {16, "torch.complex128"},
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
