/* Amounts with a unit: "1%" and "5ms" of time, "64MiB" of bytes. */
#include <string.h>

#include "config/readers.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

typedef struct unit {
    const char *name;
    double size;
} unit;

/* A number with decimals, then perhaps blanks, then one of the units: no strtod, whose point is the
 * locale's. Their product, and which unit it is; false: it isn't that. */
static bool read_amount(const char *text, const unit *units, size_t count, double *amount,
                        size_t *which)
{
    double value = 0;
    double scale = 0; /* of the next decimal; 0: in front of the point */
    size_t digits = 0;
    for (; (*text >= '0' && *text <= '9') || (*text == '.' && scale == 0); text++) {
        if (*text == '.') {
            scale = 0.1;
            continue;
        }
        const double digit = *text - '0';
        value = scale == 0 ? value * 10 + digit : value + digit * scale;
        scale /= 10;
        digits++;
    }
    text += strspn(text, " ");
    for (size_t i = 0; i < count && digits > 0 && digits < 16; i++) {
        if (strcmp(text, units[i].name) == 0) {
            *amount = value * units[i].size;
            *which = i;
            return true;
        }
    }
    return false;
}

tp_status tp_config_read_budget(const tp_config_text *text, const tp_config_field *spec,
                                json_t *value, const tp_place *place, void *target)
{
    static const unit units[] = {{"%", 0.01}, {"ms", 1e6}, {"us", 1e3}, {"s", 1e9}};
    tp_budget_config *budget = target;
    double amount = 0;
    size_t which = 0;
    (void)spec;
    const char *written = json_is_string(value) ? json_string_value(value) : "";
    if (!read_amount(written, units, LENGTH(units), &amount, &which) || amount <= 0 ||
        (which == 0 && amount > 1)) {
        return tp_config_fail(text, place,
                              "must be a share of a step's time, as in \"1%%\", or a time a step, "
                              "as in \"5ms\"");
    }
    *budget = which == 0 ? (tp_budget_config){.share = amount} : (tp_budget_config){.ns = amount};
    return TP_OK;
}

tp_status tp_config_read_bytes(const tp_config_text *text, const tp_config_field *spec,
                               json_t *value, const tp_place *place, void *target)
{
    static const unit units[] = {{"KiB", 1024}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1e3},
                                 {"MB", 1e6},   {"GB", 1e9},      {"B", 1}};
    double amount = 0;
    size_t which;
    const bool plain = json_is_number(value);
    if (plain) {
        amount = json_number_value(value);
    }
    if ((!plain && !json_is_string(value)) ||
        (!plain && !read_amount(json_string_value(value), units, LENGTH(units), &amount, &which)) ||
        !(amount >= 0 && amount <= spec->max)) {
        return tp_config_fail(text, place,
                              "must be a number of bytes, as in \"64MiB\" or 67108864");
    }
    *(uint64_t *)target = (uint64_t)amount;
    return TP_OK;
}
