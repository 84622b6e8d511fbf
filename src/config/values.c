#include "config/values.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

static tp_status fail_at(const tp_config_text *text, const tp_place *place, tp_token token,
                         const char *format, va_list arguments)
    __attribute__((format(printf, 4, 0)));

static tp_status fail_at(const tp_config_text *text, const tp_place *place, tp_token token,
                         const char *format, va_list arguments)
{
    tp_error *error = text->error;
    if (error != NULL) {
        memset(error, 0, sizeof *error);
        error->code = TP_ERR_CONFIG;
        error->line = token.line;
        error->column = token.column;
        snprintf(error->file, sizeof error->file, "%s", text->source);
        tp_place_format(place, error->field, sizeof error->field);
        vsnprintf(error->message, sizeof error->message, format, arguments);
    }
    return TP_ERR_CONFIG;
}

tp_status tp_config_fail(const tp_config_text *text, const tp_place *place, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    tp_token token = tp_place_value(text->bytes, text->size, place);
    tp_status status = fail_at(text, place, token, format, arguments);
    va_end(arguments);
    return status;
}

/* A wrong name of a member. */
static tp_status __attribute__((format(printf, 3, 4)))
fail_name(const tp_config_text *text, const tp_place *place, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    tp_token token = tp_place_name(text->bytes, text->size, place);
    tp_status status = fail_at(text, place, token, format, arguments);
    va_end(arguments);
    return status;
}

void tp_config_warn(const tp_config_text *text, const tp_place *place, const char *format, ...)
{
    char path[128];
    char message[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    tp_place_format(place, path, sizeof path);
    tp_token token = tp_place_name(text->bytes, text->size, place);
    tp_log(TP_LOG_WARNING, "%s:%u: %s: %s", text->source, token.line, path, message);
}

static size_t smallest(size_t a, size_t b, size_t c)
{
    size_t least = a < b ? a : b;
    return least < c ? least : c;
}

/* Levenshtein distance of a slip to a known name of less than 64 bytes. */
static size_t distance(const char *a, const char *b)
{
    size_t row[64];
    size_t length = strlen(b);
    assert(length < sizeof row / sizeof row[0]);
    for (size_t j = 0; j <= length; j++) {
        row[j] = j;
    }
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 1; j <= length; j++) {
            size_t above = row[j];
            row[j] = smallest(above + 1, row[j - 1] + 1, diagonal + (a[i] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[length];
}

static tp_status fail_unknown(const tp_config_text *text, const tp_config_field *fields,
                              size_t count, const tp_place *place)
{
    const char *nearest = NULL;
    size_t least = strlen(place->name) / 3 + 1; /* farther names are no slips of the pen */
    for (size_t i = 0; i < count; i++) {
        size_t far = distance(place->name, fields[i].name);
        if (far <= least) {
            nearest = fields[i].name;
            least = far;
        }
    }
    if (nearest != NULL) {
        return fail_name(text, place, "unknown field; write \"%s\"", nearest);
    }
    return fail_name(text, place,
                     "unknown field; remove it (docs/configuration.md lists them all)");
}

static bool asks_for_action(const tp_config_field *spec, json_t *value)
{
    if (json_is_object(value)) {
        json_t *enable = json_object_get(value, "enable");
        return enable != NULL ? json_is_true(enable) : json_object_size(value) > 0;
    }
    if (json_is_number(value)) {
        return json_number_value(value) != spec->idle;
    }
    if (json_is_string(value)) {
        return json_string_length(value) > 0;
    }
    return json_is_true(value) || json_array_size(value) > 0;
}

tp_status tp_config_read_object(const tp_config_text *text, const tp_config_field *fields,
                                size_t count, json_t *value, const tp_place *place, void *target)
{
    const char *name;
    json_t *member;
    size_t index = 0;
    if (!json_is_object(value)) {
        return tp_config_fail(text, place, "must be an object: write { … }");
    }
    json_object_foreach(value, name, member)
    {
        tp_place here = {place, name, index++};
        const tp_config_field *spec = NULL;
        for (size_t i = 0; i < count && spec == NULL; i++) {
            spec = strcmp(fields[i].name, name) == 0 ? &fields[i] : NULL;
        }
        if (spec == NULL) {
            return fail_unknown(text, fields, count, &here);
        }
        tp_status status = spec->read(text, spec, member, &here, (char *)target + spec->offset);
        if (status != TP_OK) {
            return status;
        }
        if (spec->ignored && asks_for_action(spec, member)) {
            tp_config_warn(text, &here, "this version does not act on this field");
        }
    }
    return TP_OK;
}

tp_status tp_config_read_bool(const tp_config_text *text, const tp_config_field *spec,
                              json_t *value, const tp_place *place, void *target)
{
    (void)spec;
    if (!json_is_boolean(value)) {
        return tp_config_fail(text, place, "must be true or false, without quotes");
    }
    *(bool *)target = json_is_true(value);
    return TP_OK;
}

static tp_status read_integer(const tp_config_text *text, const tp_config_field *spec,
                              json_t *value, const tp_place *place, uint64_t *integer)
{
    double number = json_is_number(value) ? json_number_value(value) : -1;
    if (number < spec->min || number > spec->max || number != floor(number)) {
        return tp_config_fail(text, place, "must be an integer from %.0f to %.0f", spec->min,
                              spec->max);
    }
    *integer = json_is_integer(value) ? (uint64_t)json_integer_value(value) : (uint64_t)number;
    return TP_OK;
}

tp_status tp_config_read_u64(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                             const tp_place *place, void *target)
{
    return read_integer(text, spec, value, place, target);
}

tp_status tp_config_read_u32(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                             const tp_place *place, void *target)
{
    uint64_t integer = 0;
    tp_status status = read_integer(text, spec, value, place, &integer);
    if (status == TP_OK) {
        *(uint32_t *)target = (uint32_t)integer;
    }
    return status;
}

tp_status tp_config_read_positive(const tp_config_text *text, const tp_config_field *spec,
                                  json_t *value, const tp_place *place, void *target)
{
    (void)spec;
    if (!json_is_number(value) || json_number_value(value) < 0) {
        return tp_config_fail(text, place, "must be a number that is not negative");
    }
    *(double *)target = json_number_value(value);
    return TP_OK;
}

tp_status tp_config_read_choice(const tp_config_text *text, const char *const *choices,
                                size_t count, json_t *value, const tp_place *place, uint32_t *index)
{
    char list[256] = "";
    for (size_t i = 0; i < count; i++) {
        if (json_is_string(value) && strcmp(json_string_value(value), choices[i]) == 0) {
            *index = (uint32_t)i;
            return TP_OK;
        }
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s\"%s\"", i > 0 ? ", " : "", choices[i]);
    }
    return tp_config_fail(text, place, "must be %s%s", count > 1 ? "one of " : "", list);
}
