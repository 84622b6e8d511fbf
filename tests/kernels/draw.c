#include "draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t state;

void draw_seed(uint64_t seed)
{
    state = seed;
}

/* splitmix64 */
uint64_t draw_bits(void)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

uint64_t draw_below(uint64_t n)
{
    return draw_bits() % n;
}

static double uniform(void)
{
    return (double)(draw_bits() >> 11) * 0x1p-53;
}

uint64_t draw_setting(const char *name, uint64_t usual)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 0) : usual;
}

/* Memory between two pages that can't be touched. */
static uint8_t *first_page(size_t *room)
{
    static uint8_t *first;
    static size_t size;
    if (first == NULL) {
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        size = (DRAW_LARGE_BYTES + page - 1) / page * page;
        uint8_t *all =
            mmap(NULL, size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, (off_t)0);
        if (all == MAP_FAILED || mprotect(all + page, size, PROT_READ | PROT_WRITE) != 0) {
            abort();
        }
        first = all + page;
    }
    *room = size;
    return first;
}

uint8_t *draw_place(size_t bytes, bool at_end)
{
    size_t room;
    uint8_t *first = first_page(&room);
    return at_end ? first + room - bytes : first;
}

/* What is in a tensor. Kinds change in the middle of some. */
enum {
    NORMAL,
    ANY_BITS,
    OFFSET,
    CONSTANT,
    SMALL_SET,
    HUGE_VALUES,
    TINY_VALUES,
    SPIKED,
    CANCELLING,
    LIMITS,
    SCALED,
    SHIFTED,
    INTEGERS,
    KINDS
};

static double draw_value(int kind, double parameter, size_t i)
{
    static const double set[] = {0.0,      -0.0,      1.0,     -1.0,     1e-8,     -1e-8,
                                 INFINITY, -INFINITY, 5e-324,  -2e-310,  1e-40,    -3e-45,
                                 6e-8,     0x1p-14,   0x1p500, 0x1p-500, 0x1p-126, 0x1p-1022};
    static const double limits[] = {
        65504.0, 0x1p-24, 0x1.fffffep127, 0x1p-149, 0x1.fep127, 0x1p-133, 0x1.fffffffffffffp1023,
        0x1p50,  0x1p-50, 0x1p450,        0x1p-450, 0x1p51,     0x1p-51,  50000.0};
    const double sign = i % 2 == 0 ? 1.0 : -1.0;
    switch (kind) {
    case OFFSET:
        return 1e8 + (double)draw_below(3) - 1.0;
    case CONSTANT:
        return parameter;
    case SCALED:
        return (uniform() - 0.5) * parameter;
    case SHIFTED:
        return uniform() + parameter;
    case SMALL_SET:
        return set[draw_below(sizeof(set) / sizeof(set[0]))];
    case HUGE_VALUES:
        return (uniform() - 0.5) * 0x1p1000;
    case TINY_VALUES:
        return (uniform() - 0.5) * 0x1p-1000;
    case SPIKED:
        if (draw_below(500) == 0) {
            return draw_below(2) == 0 ? (double)NAN : draw_below(2) == 0 ? INFINITY : -INFINITY;
        }
        break;
    case CANCELLING:
        return i % 7 == 0 ? uniform() : sign * 30000.0 * (1.0 + (double)(i / 2 % 3));
    case LIMITS:
        return sign * limits[draw_below(sizeof(limits) / sizeof(limits[0]))];
    case INTEGERS:
        return (double)draw_below(9) - 4.0;
    default:
        break;
    }
    return (uniform() + uniform() + uniform() - 1.5) * 0.1;
}

/* Cut, not rounded: any f16 will do. */
static uint16_t f16_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    const int exponent = (int)(bits >> 23 & 0xff) - 127 + 15;
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (exponent >= 31) {
        return sign | (f != f ? 0x7e00 : 0x7c00);
    }
    if (exponent > 0) {
        return (uint16_t)(sign | (uint32_t)exponent << 10 | (bits >> 13 & 0x3ff));
    }
    return (uint16_t)(sign | (uint32_t)(fabsf(f) * 0x1p24F));
}

static uint16_t bf16_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return f != f ? 0x7fc0 : (uint16_t)(bits >> 16);
}

/* The whole number's low bytes, for integers. */
static int64_t whole(double x)
{
    return fabs(x) < 0x1p62 ? (int64_t)x : INT64_MAX;
}

static void put(uint32_t dtype, uint8_t *at, double x, double y)
{
    const float f[2] = {(float)x, (float)y};
    const double d[2] = {x, y};
    const int64_t integer = whole(x);
    uint16_t half;
    switch (dtype) {
    case TP_F64:
    case TP_C128:
        memcpy(at, d, tp_dtype_size(dtype));
        return;
    case TP_F32:
    case TP_C64:
        memcpy(at, f, tp_dtype_size(dtype));
        return;
    case TP_F16:
        half = f16_of(f[0]);
        memcpy(at, &half, sizeof(half));
        return;
    case TP_BF16:
        half = bf16_of(f[0]);
        memcpy(at, &half, sizeof(half));
        return;
    default: /* little-endian machines only, as is the journal */
        memcpy(at, &integer, tp_dtype_size(dtype));
    }
}

static void fill(uint32_t dtype, uint8_t *data, size_t n)
{
    const size_t size = tp_dtype_size(dtype);
    const size_t change = 1 + draw_below(2 * n + 1);
    double parameter = draw_value(draw_below(2) == 0 ? NORMAL : SMALL_SET, 0.0, 0);
    int kind = (int)draw_below(KINDS);
    if (kind == SCALED) { /* any magnitude of an f32, or of an f64 */
        const int range = draw_below(4) == 0 ? 1070 : 148;
        parameter = ldexp(1.0, (int)draw_below(2 * (uint64_t)range) - range);
    }
    if (kind == SHIFTED) { /* where the mean is about 1, or 32, standard deviations from 0 */
        parameter = draw_below(2) == 0 ? 0.2 * uniform() - 0.3 : 8.0 + 3.0 * uniform();
    }
    for (size_t i = 0; i < n; i++) {
        if (i % change == 0 && i > 0) {
            kind = (int)draw_below(KINDS);
        }
        if (kind == ANY_BITS || (size == 1 && kind < INTEGERS)) {
            const uint64_t bits[2] = {draw_bits(), size > 8 ? draw_bits() : 0};
            memcpy(data + i * size, bits, size);
        } else {
            const double x = draw_value(kind, parameter, i);
            const bool pair = dtype == TP_C64 || dtype == TP_C128;
            put(dtype, data + i * size, x, pair ? draw_value(kind, parameter, i + 1) : 0.0);
        }
    }
}

size_t draw_reach(const int64_t *shape, const int64_t *strides, uint32_t ndim, size_t most,
                  int64_t *start)
{
    int64_t low = 0;
    int64_t high = 0;
    *start = 0;
    for (uint32_t d = 0; d < ndim; d++) {
        if (shape[d] == 0) {
            return 0;
        }
        int64_t far;
        if (__builtin_mul_overflow(shape[d] - 1, strides[d], &far) ||
            __builtin_add_overflow(far > 0 ? high : low, far, far > 0 ? &high : &low)) {
            return SIZE_MAX;
        }
    }
    int64_t reach;
    if (__builtin_sub_overflow(high, low, &reach) || (uint64_t)reach >= most) {
        return SIZE_MAX;
    }
    *start = -low;
    return (size_t)reach + 1;
}

static void one_dimension(draw_tensor *out)
{
    static const int64_t borders[] = {15,   16,   17,   127,  128,  129,
                                      4095, 4096, 4097, 8191, 8192, 8193};
    static const int64_t odd_strides[] = {2, 3, -1, -2};
    const uint64_t what = draw_below(16);
    out->tensor.ndim = 1;
    out->shape[0] = what == 0  ? (int64_t)draw_below(5001)
                    : what < 3 ? borders[draw_below(sizeof(borders) / sizeof(borders[0]))]
                               : (int64_t)draw_below(201);
    out->strides[0] = draw_below(8) == 0 ? odd_strides[draw_below(4)] : 1;
}

/* A slice of a dense tensor whose dimensions lie in any order, sometimes with one that is expanded,
 * empty, reversed, or as long a step as another. */
static void some_dimensions(draw_tensor *out)
{
    const uint32_t ndim = 2 + (uint32_t)draw_below(3);
    const bool large = draw_below(16) == 0;
    const uint64_t most = ndim == 2 ? (large ? 110 : 20) : ndim == 3 ? (large ? 24 : 8) : 5;
    uint32_t order[DRAW_DIMS] = {0, 1, 2, 3};
    for (uint32_t d = ndim; d-- > 1;) {
        const uint32_t other = (uint32_t)draw_below(d + 1);
        const uint32_t swap = order[d];
        order[d] = order[other];
        order[other] = swap;
    }
    out->tensor.ndim = ndim;
    int64_t stride = 1;
    for (uint32_t i = 0; i < ndim; i++) {
        const uint32_t d = order[i];
        const int64_t whole_size = 1 + (int64_t)draw_below(most);
        out->strides[d] = stride;
        stride *= whole_size;
        out->shape[d] =
            draw_below(3) == 0 ? 1 + (int64_t)draw_below((uint64_t)whole_size) : whole_size;
    }
    for (uint64_t odd = draw_below(3); odd > 0; odd--) {
        const uint32_t d = (uint32_t)draw_below(ndim);
        switch (draw_below(8)) {
        case 0:
        case 1:
            out->strides[d] = 0;
            break;
        case 2:
            out->strides[d] = out->strides[draw_below(ndim)];
            break;
        case 3:
            out->strides[d] = -out->strides[d];
            break;
        case 4:
            out->shape[d] = 0;
            break;
        default:
            break;
        }
    }
}

static void draw_options(draw_tensor *out)
{
    static const double bounds[] = {0.0, 1e-8, 1e-45, 1e-310, 0.05, 1.0, 1e39, INFINITY};
    static const uint32_t bin_counts[] = {1, 7, 30, 1000};
    static const double lows[] = {-1.0, 0.0, -0.05, -1e30};
    static const double widths[] = {2.0, 1.0, 0.1, 1e30};
    out->eps = bounds[draw_below(sizeof(bounds) / sizeof(bounds[0]))];
    const uint64_t range = draw_below(4);
    out->bin_count = bin_counts[draw_below(4)];
    out->low = lows[range];
    out->high = lows[range] + widths[range];
}

void draw_large(draw_tensor *out, uint32_t dtype)
{
    const size_t size = tp_dtype_size(dtype);
    const size_t least = ((size_t)1 << 20) / size;
    const size_t n = least + 1 + draw_below(DRAW_LARGE_BYTES / size - least);
    out->bytes = n * size;
    uint8_t *data = draw_place(out->bytes, true);
    out->shape[0] = (int64_t)n;
    out->strides[0] = 1;
    out->tensor = (tp_tensor){data, out->shape, out->strides, dtype, 1};
    out->memory = data;
    fill(dtype, data, n);
    draw_options(out);
}

void draw_next(draw_tensor *out, uint32_t dtype)
{
    const size_t size = tp_dtype_size(dtype);
    out->tensor = (tp_tensor){.shape = out->shape, .strides = out->strides, .dtype = dtype};
    int64_t start;
    size_t touched;
    do {
        if (draw_below(2) == 0) {
            one_dimension(out);
        } else {
            some_dimensions(out);
        }
        touched = draw_reach(out->shape, out->strides, out->tensor.ndim, DRAW_BYTES / size, &start);
    } while (touched == SIZE_MAX);
    out->bytes = touched * size;
    uint8_t *data = draw_place(out->bytes, draw_below(2) == 0);
    if (draw_below(4) == 0 && out->bytes + 64 <= DRAW_BYTES) { /* any address, odd ones too */
        data = draw_place(out->bytes, false) + 1 + draw_below(63);
    }
    fill(dtype, data, touched);
    out->memory = data;
    out->tensor.data = data + start * (int64_t)size;
    draw_options(out);
}
