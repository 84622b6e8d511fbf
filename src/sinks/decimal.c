#include "sinks/decimal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t tp_decimal_write(double value, char text[TP_DECIMAL_MAX])
{
    if (!isfinite(value)) {
        const char *word = isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
        memcpy(text, word, strlen(word));
        return strlen(word);
    }
    int length = snprintf(text, TP_DECIMAL_MAX, "%.15g", value);
    if (strtod(text, NULL) != value) {
        length = snprintf(text, TP_DECIMAL_MAX, "%.17g", value);
    }
    return (size_t)length;
}

double tp_decimal_round(double value, uint32_t digits)
{
    char text[64];
    if (!(fabs(value) < 0x1p53)) { /* no decimals to round, or no number */
        return value;
    }
    snprintf(text, sizeof text, "%.*f", (int)digits, value);
    return strtod(text, NULL);
}
