#include "stats/convert.h"

#include <math.h>

#define INTEGERS(name, type)                                                                       \
    static void name(const void *data, size_t n, double *out)                                      \
    {                                                                                              \
        const uint8_t *from = data;                                                                \
        for (size_t i = 0; i < n; i++) {                                                           \
            type x;                                                                                \
            memcpy(&x, from + i * sizeof(x), sizeof(x));                                           \
            out[i] = (double)x;                                                                    \
        }                                                                                          \
    }

INTEGERS(from_i16, int16_t)
INTEGERS(from_i32, int32_t)
INTEGERS(from_i64, int64_t)
INTEGERS(from_u16, uint16_t)
INTEGERS(from_u32, uint32_t)
INTEGERS(from_u64, uint64_t)

/* Squares of floats are exact in f64 and far from its limits. */
static void from_c64(const void *data, size_t n, double *out)
{
    const uint8_t *from = data;
    for (size_t i = 0; i < n; i++) {
        float part[2];
        memcpy(part, from + i * sizeof(part), sizeof(part));
        const double real = (double)part[0];
        const double imaginary = (double)part[1];
        out[i] = real * real + imaginary * imaginary;
    }
    for (size_t i = 0; i < n; i++) { /* a loop of its own becomes vectors */
        out[i] = sqrt(out[i]);
    }
}

/* Not hypot(): its last bit depends on the C library. */
static double modulus(double real, double imaginary)
{
    const double a = fabs(real);
    const double b = fabs(imaginary);
    const double larger = a > b ? a : b;
    if (larger > 0x1p500 && larger < INFINITY) {
        const double x = a * 0x1p-600;
        const double y = b * 0x1p-600;
        return sqrt(x * x + y * y) * 0x1p600;
    }
    if (larger < 0x1p-400) {
        const double x = a * 0x1p600;
        const double y = b * 0x1p600;
        return sqrt(x * x + y * y) * 0x1p-600;
    }
    return sqrt(a * a + b * b);
}

static void from_c128(const void *data, size_t n, double *out)
{
    const uint8_t *from = data;
    for (size_t i = 0; i < n; i++) {
        double part[2];
        memcpy(part, from + i * sizeof(part), sizeof(part));
        out[i] = modulus(part[0], part[1]);
    }
}

tp_convert tp_convert_of(uint32_t dtype)
{
    switch (dtype) {
    case TP_I16:
        return from_i16;
    case TP_I32:
        return from_i32;
    case TP_I64:
        return from_i64;
    case TP_U16:
        return from_u16;
    case TP_U32:
        return from_u32;
    case TP_U64:
        return from_u64;
    case TP_C64:
        return from_c64;
    case TP_C128:
        return from_c128;
    default:
        return NULL;
    }
}
