#include "sinks/decimal.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Grisu2 of Florian Loitsch, "Printing Floating-Point Numbers Quickly and Accurately with Integers",
 * PLDI 2010: digits inside the interval of numbers that round to the same double, always enough to
 * read it back, and nearly always as few as possible. Some ten times as fast as "%.17g". */

__extension__ typedef unsigned __int128 u128;

typedef struct scaled {
    uint64_t f;
    int32_t e; /* the number f * 2^e */
} scaled;

/* 10^k for k = -300, -292, … 324, rounded to 64 bits, the highest bit set. */
#define POWER_FIRST (-300)
#define POWER_STEP 8
static const scaled powers[] = {
    {0xab70fe17c79ac6ca, -1060}, {0xff77b1fcbebcdc4f, -1034}, {0xbe5691ef416bd60c, -1007},
    {0x8dd01fad907ffc3c, -980},  {0xd3515c2831559a83, -954},  {0x9d71ac8fada6c9b5, -927},
    {0xea9c227723ee8bcb, -901},  {0xaecc49914078536d, -874},  {0x823c12795db6ce57, -847},
    {0xc21094364dfb5637, -821},  {0x9096ea6f3848984f, -794},  {0xd77485cb25823ac7, -768},
    {0xa086cfcd97bf97f4, -741},  {0xef340a98172aace5, -715},  {0xb23867fb2a35b28e, -688},
    {0x84c8d4dfd2c63f3b, -661},  {0xc5dd44271ad3cdba, -635},  {0x936b9fcebb25c996, -608},
    {0xdbac6c247d62a584, -582},  {0xa3ab66580d5fdaf6, -555},  {0xf3e2f893dec3f126, -529},
    {0xb5b5ada8aaff80b8, -502},  {0x87625f056c7c4a8b, -475},  {0xc9bcff6034c13053, -449},
    {0x964e858c91ba2655, -422},  {0xdff9772470297ebd, -396},  {0xa6dfbd9fb8e5b88f, -369},
    {0xf8a95fcf88747d94, -343},  {0xb94470938fa89bcf, -316},  {0x8a08f0f8bf0f156b, -289},
    {0xcdb02555653131b6, -263},  {0x993fe2c6d07b7fac, -236},  {0xe45c10c42a2b3b06, -210},
    {0xaa242499697392d3, -183},  {0xfd87b5f28300ca0e, -157},  {0xbce5086492111aeb, -130},
    {0x8cbccc096f5088cc, -103},  {0xd1b71758e219652c, -77},   {0x9c40000000000000, -50},
    {0xe8d4a51000000000, -24},   {0xad78ebc5ac620000, 3},     {0x813f3978f8940984, 30},
    {0xc097ce7bc90715b3, 56},    {0x8f7e32ce7bea5c70, 83},    {0xd5d238a4abe98068, 109},
    {0x9f4f2726179a2245, 136},   {0xed63a231d4c4fb27, 162},   {0xb0de65388cc8ada8, 189},
    {0x83c7088e1aab65db, 216},   {0xc45d1df942711d9a, 242},   {0x924d692ca61be758, 269},
    {0xda01ee641a708dea, 295},   {0xa26da3999aef774a, 322},   {0xf209787bb47d6b85, 348},
    {0xb454e4a179dd1877, 375},   {0x865b86925b9bc5c2, 402},   {0xc83553c5c8965d3d, 428},
    {0x952ab45cfa97a0b3, 455},   {0xde469fbd99a05fe3, 481},   {0xa59bc234db398c25, 508},
    {0xf6c69a72a3989f5c, 534},   {0xb7dcbf5354e9bece, 561},   {0x88fcf317f22241e2, 588},
    {0xcc20ce9bd35c78a5, 614},   {0x98165af37b2153df, 641},   {0xe2a0b5dc971f303a, 667},
    {0xa8d9d1535ce3b396, 694},   {0xfb9b7cd9a4a7443c, 720},   {0xbb764c4ca7a44410, 747},
    {0x8bab8eefb6409c1a, 774},   {0xd01fef10a657842c, 800},   {0x9b10a4e5e9913129, 827},
    {0xe7109bfba19c0c9d, 853},   {0xac2820d9623bf429, 880},   {0x80444b5e7aa7cf85, 907},
    {0xbf21e44003acdd2d, 933},   {0x8e679c2f5e44ff8f, 960},   {0xd433179d9c8cb841, 986},
    {0x9e19db92b4e31ba9, 1013},
};

/* Products are scaled so that their exponent lies between these: then digits in front of the point
 * fit 32 bits, and ten times the rest fits 64. */
#define EXPONENT_MIN (-60)
#define EXPONENT_MAX (-32)

static scaled multiply(scaled x, scaled y)
{
    u128 product = (u128)x.f * y.f + ((u128)1 << 63);
    return (scaled){(uint64_t)(product >> 64), x.e + y.e + 64};
}

static scaled normalize(scaled x)
{
    int shift = __builtin_clzll(x.f);
    return (scaled){x.f << shift, x.e - shift};
}

/* The power of ten that brings a normalized number with exponent e into the range; its k. */
static scaled find_power(int32_t e, int32_t *k)
{
    int32_t least = (int32_t)ceil((EXPONENT_MIN - e - 1) * 0.30102999566398120); /* log10(2) */
    int32_t index = (least - POWER_FIRST + POWER_STEP - 1) / POWER_STEP;
    *k = POWER_FIRST + index * POWER_STEP;
    return powers[index];
}

typedef struct digits {
    char text[20];
    int32_t length;
    int32_t exponent; /* the number is text * 10^exponent */
} digits;

/* Lowers the last digit while that brings the number nearer to the true one. All lengths are measured
 * downwards from the upper end of the interval: rest to the digits so far, distance to the true
 * number, width to the lower end; unit is what one of the last digit is worth. */
static void round_last(digits *out, uint64_t distance, uint64_t width, uint64_t rest, uint64_t unit)
{
    while (rest < distance && width - rest >= unit &&
           (rest + unit < distance || distance - rest > rest + unit - distance)) {
        out->text[out->length - 1]--;
        rest += unit;
    }
}

/* As few digits of high as leave a number not below low. */
static void generate(digits *out, scaled low, scaled number, scaled high)
{
    const int shift = -high.e;
    const uint64_t one = UINT64_C(1) << shift;
    uint64_t width = high.f - low.f;
    uint64_t distance = high.f - number.f;
    uint32_t whole = (uint32_t)(high.f >> shift);
    uint64_t part = high.f & (one - 1);
    uint32_t unit = 1;
    int32_t left = 1; /* digits of whole that are still to come */
    while (whole / unit >= 10) {
        unit *= 10;
        left++;
    }
    for (; left > 0; unit /= 10) {
        out->text[out->length++] = (char)('0' + whole / unit);
        whole %= unit;
        left--;
        uint64_t rest = ((uint64_t)whole << shift) + part;
        if (rest <= width) {
            out->exponent += left;
            round_last(out, distance, width, rest, (uint64_t)unit << shift);
            return;
        }
    }
    do {
        part *= 10;
        width *= 10;
        distance *= 10;
        out->text[out->length++] = (char)('0' + (part >> shift));
        out->exponent--;
        part &= one - 1;
    } while (part > width);
    round_last(out, distance, width, part, one);
}

/* value is finite and positive. */
static void find_digits(double value, digits *out)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint64_t hidden = UINT64_C(1) << 52;
    uint64_t fraction = bits & (hidden - 1);
    int32_t exponent = (int32_t)(bits >> 52);
    scaled number =
        exponent > 0 ? (scaled){fraction | hidden, exponent - 1075} : (scaled){fraction, -1074};
    /* Half way to the neighbours; the lower one is nearer below a power of two. */
    bool nearer = fraction == 0 && exponent > 1;
    scaled high = normalize((scaled){2 * number.f + 1, number.e - 1});
    scaled low = nearer ? (scaled){4 * number.f - 1, number.e - 2}
                        : (scaled){2 * number.f - 1, number.e - 1};
    low = (scaled){low.f << (low.e - high.e), high.e};
    int32_t k;
    scaled power = find_power(high.e, &k);
    low = multiply(low, power);
    high = multiply(high, power);
    low.f++; /* products are off by one unit at most: stay inside */
    high.f--;
    out->length = 0;
    out->exponent = -k;
    generate(out, low, multiply(normalize(number), power), high);
}

size_t tp_decimal_write_integer(uint64_t value, char text[TP_DECIMAL_MAX])
{
    char reversed[20];
    size_t length = 0;
    do {
        reversed[length++] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    for (size_t i = 0; i < length; i++) {
        text[i] = reversed[length - 1 - i];
    }
    return length;
}

/* As Python shows floats: 1234.5, 0.00012, 1e-05, 1.5e+16. */
static size_t lay_out(const digits *in, char *text)
{
    const int32_t point = in->length + in->exponent; /* digits in front of the point */
    const size_t length = (size_t)in->length;
    if (point > 0 && point <= 16 && in->exponent < 0) {
        memcpy(text, in->text, (size_t)point);
        text[point] = '.';
        memcpy(text + point + 1, in->text + point, length - (size_t)point);
        return length + 1;
    }
    if (point <= 0 && point > -4) {
        size_t zeros = (size_t)-point;
        memcpy(text, "0.000", 2 + zeros);
        memcpy(text + 2 + zeros, in->text, length);
        return 2 + zeros + length;
    }
    size_t used = 0;
    text[used++] = in->text[0];
    if (length > 1) {
        text[used++] = '.';
        memcpy(text + used, in->text + 1, length - 1);
        used += length - 1;
    }
    int32_t exponent = point - 1;
    text[used++] = 'e';
    text[used++] = exponent < 0 ? '-' : '+';
    exponent = exponent < 0 ? -exponent : exponent;
    if (exponent < 10) {
        text[used++] = '0';
    }
    return used + tp_decimal_write_integer((uint64_t)exponent, text + used);
}

static size_t put_word(const char *word, char *text)
{
    size_t length = strlen(word);
    memcpy(text, word, length);
    return length;
}

size_t tp_decimal_write(double value, char text[TP_DECIMAL_MAX])
{
    size_t used = 0;
    if (isnan(value)) {
        return put_word("nan", text);
    }
    if (value < 0) {
        text[used++] = '-';
        value = -value;
    }
    if (isinf(value)) {
        return used + put_word("inf", text + used);
    }
    if (value < 1e16 && value == (double)(uint64_t)value) {
        return used + tp_decimal_write_integer((uint64_t)value, text + used);
    }
    digits found;
    find_digits(value, &found);
    return used + lay_out(&found, text + used);
}

double tp_decimal_round(double value, uint32_t digits_after)
{
    char text[64];
    if (!(fabs(value) < 0x1p53)) { /* no decimals to round, or no number */
        return value;
    }
    snprintf(text, sizeof text, "%.*f", (int)digits_after, value);
    return strtod(text, NULL);
}
