#include "stats/bytes.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define DTYPES (TP_BOOL + 1)

static tp_byte_type types[DTYPES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Sign, exponent, fraction; all exponents but 0 are those of normal numbers. */
static double small_float(unsigned code, int exponent_bits, int fraction_bits, int bias)
{
    const unsigned fraction = code & ((1U << fraction_bits) - 1);
    const int exponent = (int)(code >> fraction_bits & ((1U << exponent_bits) - 1));
    const double sign = (code >> (exponent_bits + fraction_bits) & 1) != 0 ? -1.0 : 1.0;
    const unsigned hidden = exponent > 0 ? 1U << fraction_bits : 0;
    const int power = (exponent > 0 ? exponent : 1) - bias - fraction_bits;
    return sign * ldexp((double)(fraction + hidden), power);
}

static double value_of(uint32_t dtype, unsigned code)
{
    const double quiet_nan = (double)NAN;
    switch (dtype) {
    case TP_F8_E4M3FN:
        return (code & 0x7f) == 0x7f ? quiet_nan : small_float(code, 4, 3, 7);
    case TP_F8_E5M2:
        if ((code & 0x7f) == 0x7c) {
            return (code & 0x80) != 0 ? -INFINITY : INFINITY;
        }
        return (code & 0x7f) > 0x7c ? quiet_nan : small_float(code, 5, 2, 15);
    case TP_F8_E4M3FNUZ:
        return code == 0x80 ? quiet_nan : small_float(code, 4, 3, 8);
    case TP_F8_E5M2FNUZ:
        return code == 0x80 ? quiet_nan : small_float(code, 5, 2, 16);
    case TP_F8_E8M0FNU:
        return code == 0xff ? quiet_nan : ldexp(1.0, (int)code - 127);
    case TP_F4_E2M1FN_X2:
        return small_float(code & 0xf, 2, 1, 1);
    case TP_I8:
        return (double)(code < 128 ? (int)code : (int)code - 256);
    case TP_BOOL:
        return code != 0 ? 1.0 : 0.0;
    default: /* TP_U8 */
        return (double)code;
    }
}

static double magnitude_of(const tp_byte_type *type, unsigned byte)
{
    double most = -1.0;
    for (unsigned k = 0; k < type->per_byte; k++) {
        const unsigned code = type->per_byte == 1 ? byte : byte >> (4 * k) & 0xf;
        const double magnitude = fabs(type->value[code]);
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

static void make(uint32_t dtype, const char *name, double normal)
{
    tp_byte_type *type = &types[dtype];
    type->name = name;
    type->per_byte = dtype == TP_F4_E2M1FN_X2 ? 2 : 1;
    type->normal = normal;
    for (unsigned code = 0; code < 256; code++) {
        type->value[code] = value_of(dtype, code);
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        const double magnitude = magnitude_of(type, byte);
        type->magnitude[byte] = magnitude;
        if (magnitude < 0.0) {
            continue;
        }
        unsigned place = type->ranks++;
        for (; place > 0 && type->magnitude[type->falling[place - 1]] < magnitude; place--) {
            type->falling[place] = type->falling[place - 1];
        }
        type->falling[place] = (uint8_t)byte;
    }
}

static void make_all(void)
{
    make(TP_F8_E4M3FN, "f8_e4m3fn_bytes", 0x1p-6);
    make(TP_F8_E5M2, "f8_e5m2_bytes", 0x1p-14);
    make(TP_F8_E4M3FNUZ, "f8_e4m3fnuz_bytes", 0x1p-7);
    make(TP_F8_E5M2FNUZ, "f8_e5m2fnuz_bytes", 0x1p-15);
    make(TP_F8_E8M0FNU, "f8_e8m0fnu_bytes", 0x1p-127);
    make(TP_F4_E2M1FN_X2, "f4_e2m1fn_bytes", 1.0);
    make(TP_I8, "i8_bytes", 0.0);
    make(TP_U8, "u8_bytes", 0.0);
    make(TP_BOOL, "bool_bytes", 0.0);
}

const tp_byte_type *tp_byte_type_of(uint32_t dtype)
{
    if (dtype >= DTYPES) {
        return NULL;
    }
    pthread_once(&once, make_all);
    return types[dtype].per_byte > 0 ? &types[dtype] : NULL;
}

/* Several tables, so that a run of equal bytes doesn't wait for its own additions. */
#define TABLES 8
#define WORTH_TABLES 1024 /* bytes; fewer are counted sooner than the tables are cleared */

static void count_many(uint64_t of[256], const uint8_t *from, size_t n)
{
    uint32_t table[TABLES][256] = {{0}};
    for (size_t i = 0; i + TABLES <= n; i += TABLES) {
        uint64_t eight;
        memcpy(&eight, from + i, sizeof(eight));
        table[0][eight & 0xff]++;
        table[1][eight >> 8 & 0xff]++;
        table[2][eight >> 16 & 0xff]++;
        table[3][eight >> 24 & 0xff]++;
        table[4][eight >> 32 & 0xff]++;
        table[5][eight >> 40 & 0xff]++;
        table[6][eight >> 48 & 0xff]++;
        table[7][eight >> 56]++;
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        for (int k = 0; k < TABLES; k++) {
            of[byte] += table[k][byte];
        }
    }
}

/* A core writes one line of its cache in a cycle, so that bytes can't be counted faster than one in
 * a cycle; pairs of them can. The counters of all pairs fill 256 KiB: each is lent to one call at
 * a time, and one that finds none does without. */
#define PAIRS 65536
#define LOANS 4
#define AHEAD 1024 /* bytes between a load and the prefetch made with it */

static uint32_t pairs[LOANS][PAIRS];
static atomic_flag lent[LOANS];

static uint32_t *borrow(unsigned *loan)
{
    for (*loan = 0; *loan < LOANS; (*loan)++) {
        if (!atomic_flag_test_and_set_explicit(&lent[*loan], memory_order_acquire)) {
            return pairs[*loan];
        }
    }
    return NULL;
}

static void count_pairs(uint32_t *of, const uint8_t *from, size_t n)
{
    memset(of, 0, sizeof(pairs[0]));
    for (size_t i = 0; i + 8 <= n; i += 8) {
        uint64_t eight;
        memcpy(&eight, from + i, sizeof(eight));
        if (i % 64 == 0) { /* into the first cache alone: the counters have the second one */
            __builtin_prefetch(from + i + AHEAD, 0, 0);
        }
        of[eight & 0xffff]++;
        of[eight >> 16 & 0xffff]++;
        of[eight >> 32 & 0xffff]++;
        of[eight >> 48]++;
    }
}

/* Whichever byte of a pair comes first in memory. */
static void add_pairs(uint64_t counts[256], const uint32_t *of)
{
    uint64_t low[256] = {0};
    for (unsigned high = 0; high < 256; high++) {
        const uint32_t *row = of + (size_t)256 * high;
        uint64_t sum = 0;
        for (unsigned byte = 0; byte < 256; byte++) {
            low[byte] += row[byte];
            sum += row[byte];
        }
        counts[high] += sum;
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        counts[byte] += low[byte];
    }
}

/* Counts most of the bytes; returns how many. */
static size_t count_bulk(uint64_t of[256], const uint8_t *from, size_t n)
{
    unsigned loan;
    uint32_t *table = n >= TP_BYTES_PAIRED ? borrow(&loan) : NULL;
    if (table != NULL) {
        count_pairs(table, from, n);
        add_pairs(of, table);
        atomic_flag_clear_explicit(&lent[loan], memory_order_release);
        return n - n % 8;
    }
    if (n < WORTH_TABLES) {
        return 0;
    }
    count_many(of, from, n);
    return n - n % TABLES;
}

bool tp_bytes_add(const tp_byte_type *type, tp_byte_counts *counts, const void *data, size_t n)
{
    const uint8_t *from = data;
    for (size_t i = count_bulk(counts->of, from, n); i < n; i++) {
        counts->of[from[i]]++;
    }
    const unsigned ranks = counts->best < type->ranks ? counts->best : type->ranks;
    for (unsigned rank = 0; rank < ranks; rank++) {
        if (counts->of[type->falling[rank]] > 0) {
            const bool larger =
                counts->best == 256 ||
                type->magnitude[type->falling[rank]] > type->magnitude[type->falling[counts->best]];
            counts->best = rank;
            return larger;
        }
    }
    return false;
}

unsigned tp_bytes_codes(const tp_byte_type *type, const tp_byte_counts *counts, uint64_t codes[256])
{
    if (type->per_byte == 1) {
        memcpy(codes, counts->of, sizeof(counts->of));
        return 256;
    }
    memset(codes, 0, 16 * sizeof(*codes));
    for (unsigned byte = 0; byte < 256; byte++) {
        const uint64_t n = counts->of[byte];
        codes[byte & 0xf] += n;
        codes[byte >> 4] += n;
    }
    return 16;
}

void tp_bytes_derive(const tp_byte_type *type, const tp_byte_counts *counts, double eps,
                     tp_block *seen, tp_part *part, double *abs_max)
{
    uint64_t codes[256];
    const unsigned size = tp_bytes_codes(type, counts, codes);
    *seen = (tp_block){.min = INFINITY, .max = -INFINITY};
    *part = (tp_part){0};
    for (unsigned code = 0; code < size; code++) {
        const double x = type->value[code];
        const double magnitude = fabs(x);
        const uint64_t n = codes[code];
        if (n == 0) {
            continue;
        }
        seen->zeros += magnitude < eps ? n : 0;
        seen->subnormal += magnitude > 0.0 && magnitude < type->normal ? n : 0;
        if (!(magnitude < INFINITY)) {
            seen->nan += magnitude != magnitude ? n : 0;
            seen->pos_inf += x == INFINITY ? n : 0;
            seen->neg_inf += x == -INFINITY ? n : 0;
            continue;
        }
        const double times = (double)n;
        seen->min = x < seen->min ? x : seen->min;
        seen->max = x > seen->max ? x : seen->max;
        part->n += n;
        part->sum += times * x;
        part->sum_abs += times * magnitude;
        part->sum_sq += times * (x * x);
    }
    seen->min += 0.0; /* -0 becomes +0 */
    seen->max += 0.0;
    *abs_max = counts->best < 256 ? type->magnitude[type->falling[counts->best]] : -1.0;
    if (part->n == 0) {
        return;
    }
    const double mean = part->sum / (double)part->n;
    double first = 0.0;
    double second = 0.0;
    for (unsigned code = 0; code < size; code++) {
        const double d = type->value[code] - mean;
        if (codes[code] > 0 && fabs(d) < INFINITY) {
            first += (double)codes[code] * d;
            second += (double)codes[code] * (d * d);
        }
    }
    const double m2 = second - first * first / (double)part->n;
    part->m2 = m2 > 0.0 ? m2 : 0.0;
}

size_t tp_bytes_find(const tp_byte_type *type, const void *data, size_t n, double magnitude)
{
    const uint8_t *from = data;
    if (type->per_byte == 1) {
        size_t first = n;
        for (unsigned rank = 0; rank < type->ranks; rank++) { /* one or two bytes */
            const unsigned byte = type->falling[rank];
            const uint8_t *found =
                type->magnitude[byte] == magnitude ? memchr(from, (int)byte, first) : NULL;
            first = found != NULL ? (size_t)(found - from) : first;
            if (type->magnitude[byte] < magnitude) {
                break;
            }
        }
        return first;
    }
    size_t i = 0;
    while (i < n && type->magnitude[from[i]] != magnitude) {
        i++;
    }
    if (fabs(type->value[from[i] & 0xf]) == magnitude) {
        return i * type->per_byte;
    }
    return i * type->per_byte + 1;
}
