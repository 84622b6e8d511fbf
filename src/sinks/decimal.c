#include "sinks/decimal.h"

#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>

/* The point of a decimal is a comma where the program has set such a locale; never in our files. */
static locale_t plain;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_plain(void)
{
    plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
}

/* For the calling thread; the locale to go back to. */
static locale_t use_plain(void)
{
    pthread_once(&once, make_plain);
    return uselocale(plain);
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

size_t tp_decimal_write(double value, char text[TP_DECIMAL_MAX])
{
    if (isnan(value)) {
        return (size_t)snprintf(text, TP_DECIMAL_MAX, "nan"); /* printf shows a NaN's sign */
    }
    if (value >= 0 && value < 0x1p53 && value == (double)(uint64_t)value) {
        return tp_decimal_write_integer((uint64_t)value, text); /* counts are the most frequent */
    }
    locale_t before = use_plain();
    int length = snprintf(text, TP_DECIMAL_MAX, "%.17g", value);
    uselocale(before);
    return (size_t)length;
}

size_t tp_decimal_write_rounded(double value, uint32_t digits, char text[TP_DECIMAL_MAX])
{
    if (!(fabs(value) < 0x1p53)) { /* no decimals to round, or no number */
        return tp_decimal_write(value, text);
    }
    locale_t before = use_plain();
    size_t length = (size_t)snprintf(text, TP_DECIMAL_MAX, "%.*f", (int)digits, value);
    uselocale(before);
    while (text[length - 1] == '0') { /* there is a point, as digits > 0 */
        length--;
    }
    if (text[length - 1] == '.') {
        length--;
    }
    if (length == 2 && text[0] == '-' && text[1] == '0') {
        text[0] = '0';
        length = 1;
    }
    return length;
}
