#include "tensor/dtype.h"

#include <math.h>
#include <stddef.h>

typedef struct dtype_row {
    uint32_t size; /* bytes */
    const char *name;
    double limit; /* largest finite number; 0: none */
    int normal;   /* with a limit: the smallest normal number is two to this, */
    int last;     /* and the limit is less than two to one more than this */
} dtype_row;

static const dtype_row table[] = {
    [TP_DTYPE_NONE] = {0, "unknown", 0, 0, 0},
    [TP_F64] = {8, "torch.float64", 0x1.fffffffffffffp1023, -1022, 1023},
    [TP_F32] = {4, "torch.float32", 0x1.fffffep127, -126, 127},
    [TP_F16] = {2, "torch.float16", 65504, -14, 15},
    [TP_BF16] = {2, "torch.bfloat16", 0x1.fep127, -126, 127},
    [TP_F8_E4M3FN] = {1, "torch.float8_e4m3fn", 448, -6, 8},
    [TP_F8_E5M2] = {1, "torch.float8_e5m2", 57344, -14, 15},
    [TP_F8_E4M3FNUZ] = {1, "torch.float8_e4m3fnuz", 240, -7, 7},
    [TP_F8_E5M2FNUZ] = {1, "torch.float8_e5m2fnuz", 57344, -15, 15},
    [TP_F8_E8M0FNU] = {1, "torch.float8_e8m0fnu", 0, 0, 0},
    [TP_F4_E2M1FN_X2] = {1, "torch.float4_e2m1fn_x2", 6, 0, 2},
    [TP_I8] = {1, "torch.int8", 0, 0, 0},
    [TP_I16] = {2, "torch.int16", 0, 0, 0},
    [TP_I32] = {4, "torch.int32", 0, 0, 0},
    [TP_I64] = {8, "torch.int64", 0, 0, 0},
    [TP_U8] = {1, "torch.uint8", 0, 0, 0},
    [TP_U16] = {2, "torch.uint16", 0, 0, 0},
    [TP_U32] = {4, "torch.uint32", 0, 0, 0},
    [TP_U64] = {8, "torch.uint64", 0, 0, 0},
    [TP_BOOL] = {1, "torch.bool", 0, 0, 0},
    [TP_C64] = {8, "torch.complex64", 0, 0, 0},
    [TP_C128] = {16, "torch.complex128", 0, 0, 0},
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

double tp_dtype_limit(uint32_t dtype)
{
    const double limit = row(dtype)->limit;
    return limit > 0 ? limit : (double)NAN;
}

bool tp_dtype_exponents(uint32_t dtype, int *smallest, int *largest)
{
    const dtype_row *found = row(dtype);
    if (found->limit > 0) {
        *smallest = found->normal;
        *largest = found->last;
    }
    return found->limit > 0;
}
