#include "config/values.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "config/fields.h"

static tp_status fail_at(const tp_config_text *text, const tp_place *place, tp_token token,
                         const char *format, va_list arguments)
    __attribute__((format(printf, 4, 0)));

/* Where a text of this length may be cut, at the latest at end: in front of a character. */
static size_t cut(const char *text, size_t end)
{
    while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80) {
        end--;
    }
    return end;
}

/* Names of modules may be long: then the middle of the path is left out. */
static void format_field(const tp_place *place, char *field, size_t size)
{
    static const char gap[] = "…";
    char path[1024];
    tp_place_format(place, path, sizeof path);
    size_t length = strlen(path);
    if (length == sizeof path - 1) {
        length = cut(path, length - 4); /* the last character may be torn */
        path[length] = '\0';
    }
    if (length < size) {
        memcpy(field, path, length + 1);
        return;
    }
    size_t head = cut(path, size / 2 - sizeof gap);
    size_t tail = length - size / 2 + 1;
    while (((unsigned char)path[tail] & 0xc0) == 0x80) {
        tail++;
    }
    snprintf(field, size, "%.*s%s%s", (int)head, path, gap, path + tail);
}

static tp_status fail_at(const tp_config_text *text, const tp_place *place, tp_token token,
                         const char *format, va_list arguments)
{
    tp_error *error = text->error;
    tp_position position = tp_place_position(text->original, token.start);
    if (error != NULL) {
        memset(error, 0, sizeof *error);
        error->code = TP_ERR_CONFIG;
        error->line = position.line;
        error->column = position.column;
        snprintf(error->file, sizeof error->file, "%s", text->source);
        format_field(place, error->field, sizeof error->field);
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
    format_field(place, path, sizeof path);
    tp_token token = tp_place_name(text->bytes, text->size, place);
    tp_position position = tp_place_position(text->original, token.start);
    tp_log(TP_LOG_WARNING, "%s:%u:%u: %s: %s", text->source, position.line, position.column, path,
           message);
}

static size_t smallest(size_t a, size_t b, size_t c)
{
    size_t least = a < b ? a : b;
    return least < c ? least : c;
}

static bool alike(char a, char b)
{
    return tolower((unsigned char)a) == b || (a == '-' && b == '_');
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
            row[j] = smallest(above + 1, row[j - 1] + 1, diagonal + !alike(a[i], b[j - 1]));
            diagonal = above;
        }
    }
    return row[length];
}

#define LONGEST_SLIP 64 /* no name is that long, and comparing takes as long as both are */

/* The known name of which this is a slip of the pen, NULL: none. */
static const char *nearest_name(const tp_config_members *members, const char *slip)
{
    const char *nearest = NULL;
    size_t length = strlen(slip);
    size_t least = length / 3 + 1;
    for (size_t i = 0; i < members->count && length < LONGEST_SLIP; i++) {
        size_t far = distance(slip, members->fields[i].name);
        if (far <= least) {
            nearest = members->fields[i].name;
            least = far;
        }
    }
    return nearest;
}

/* The first known name that has this in it, NULL: none. */
static const char *longer_name(const tp_config_members *members, const char *part)
{
    for (size_t i = 0; i < members->count && part[0] != '\0'; i++) {
        if (strstr(members->fields[i].name, part) != NULL) {
            return members->fields[i].name;
        }
    }
    return NULL;
}

/* Where in the tables a name is known; false when nowhere. path is where members stand. */
static bool find_home(const tp_config_members *members, const char *name, char *path, size_t size)
{
    static const char *const behind[] = {
        [TP_NEST_OBJECT] = "", [TP_NEST_MAP] = ".NAME", [TP_NEST_LIST] = "[]"};
    size_t used = strlen(path);
    for (size_t i = 0; i < members->count; i++) {
        if (strcmp(members->fields[i].name, name) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < members->count; i++) {
        const tp_config_field *field = &members->fields[i];
        if (field->nest != TP_NEST_NONE) {
            snprintf(path + used, size - used, "%s%s%s", used > 0 ? "." : "", field->name,
                     behind[field->nest]);
            if (find_home(field->members, name, path, size)) {
                return true;
            }
        }
    }
    path[used] = '\0';
    return false;
}

#define FEW_MEMBERS 8

static tp_status fail_unknown(const tp_config_text *text, const tp_config_members *members,
                              const tp_place *place)
{
    const char *nearest = nearest_name(members, place->name);
    char list[256] = "";
    if (nearest != NULL) {
        return fail_name(text, place, "unknown field; write \"%s\"", nearest);
    }
    if (find_home(&tp_config_root_members, place->name, list, sizeof list)) {
        return fail_name(text, place, "stands in the wrong place; write it into %s",
                         list[0] != '\0' ? list : "the configuration's own object");
    }
    nearest = longer_name(members, place->name);
    if (nearest != NULL) {
        return fail_name(text, place, "unknown field; write \"%s\"", nearest);
    }
    if (members->count > FEW_MEMBERS) {
        return fail_name(text, place,
                         "unknown field; remove it (`tensorprobe check --fields` lists all)");
    }
    for (size_t i = 0; i < members->count; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s\"%s\"", i > 0 ? ", " : "",
                 members->fields[i].name);
    }
    return fail_name(text, place, "unknown field; there %s %s", members->count > 1 ? "are" : "is",
                     list);
}

/* Does the value differ from the default? */
static bool asks_for_action(const tp_config_field *spec, json_t *value)
{
    const char *fallback = spec->fallback != NULL ? spec->fallback : "";
    if (json_is_object(value)) {
        json_t *enable = json_object_get(value, "enable");
        return enable != NULL ? json_is_true(enable) : json_object_size(value) > 0;
    }
    if (json_is_number(value)) {
        return json_number_value(value) != strtod(fallback, NULL);
    }
    if (json_is_string(value)) {
        return json_string_length(value) > 0;
    }
    return json_is_true(value) || json_array_size(value) > 0;
}

tp_status tp_config_read_object(const tp_config_text *text, const tp_config_members *members,
                                json_t *value, const tp_place *place, void *target)
{
    const char *name;
    json_t *member;
    size_t index = 0;
    if (!json_is_object(value)) {
        return tp_config_fail(text, place, "must be an object, as in {\"%s\": …}",
                              members->fields[0].name);
    }
    json_object_foreach(value, name, member)
    {
        tp_place here = {place, name, index++};
        const tp_config_field *spec = NULL;
        for (size_t i = 0; i < members->count && spec == NULL; i++) {
            spec = strcmp(members->fields[i].name, name) == 0 ? &members->fields[i] : NULL;
        }
        if (spec == NULL) {
            return fail_unknown(text, members, &here);
        }
        if (json_is_null(member)) {
            return tp_config_fail(text, &here, "is null; give it a value, or leave it out");
        }
        tp_status status = spec->read(text, spec, member, &here, (char *)target + spec->offset);
        if (status != TP_OK) {
            return status;
        }
        if (spec->ignored != NULL && asks_for_action(spec, member)) {
            tp_config_warn(text, &here, "this version does not act on it: %s", spec->ignored);
        }
    }
    return TP_OK;
}

tp_status tp_config_read_members(const tp_config_text *text, const tp_config_field *spec,
                                 json_t *value, const tp_place *place, void *target)
{
    return tp_config_read_object(text, spec->members, value, place, target);
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

static const char *without_quotes(json_t *value)
{
    return json_is_string(value) ? ", without quotes" : "";
}

static tp_status read_integer(const tp_config_text *text, const tp_config_field *spec,
                              json_t *value, const tp_place *place, uint64_t *integer)
{
    double number = json_is_number(value) ? json_number_value(value) : -1;
    if (number < spec->min || number > spec->max || number != floor(number)) {
        return tp_config_fail(text, place, "must be an integer from %.0f to %.0f%s", spec->min,
                              spec->max, without_quotes(value));
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
        return tp_config_fail(text, place, "must be a number that is not negative%s",
                              without_quotes(value));
    }
    *(double *)target = json_number_value(value);
    return TP_OK;
}

static tp_status copy_text(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                           const tp_place *place, char **copy)
{
    if (!json_is_string(value)) {
        return tp_config_fail(text, place, "must be a text in quotes");
    }
    *copy = tp_strdup(json_string_value(value));
    if (*copy == NULL) {
        return tp_fail(text->error, TP_ERR_NOMEM, "no memory for %s", spec->name);
    }
    return TP_OK;
}

tp_status tp_config_read_text(const tp_config_text *text, const tp_config_field *spec,
                              json_t *value, const tp_place *place, void *target)
{
    return copy_text(text, spec, value, place, target);
}

tp_status tp_config_read_texts(const tp_config_text *text, const tp_config_field *spec,
                               json_t *value, const tp_place *place, void *target)
{
    tp_texts *texts = target;
    json_t *member;
    size_t index;
    if (!json_is_array(value)) {
        return tp_config_fail(text, place, "must be a list of texts, as in [\"a\", \"b\"]");
    }
    if (json_array_size(value) == 0) {
        return TP_OK;
    }
    texts->items = tp_calloc(json_array_size(value), sizeof *texts->items);
    if (texts->items == NULL) {
        return tp_fail(text->error, TP_ERR_NOMEM, "no memory for %s", spec->name);
    }
    json_array_foreach(value, index, member)
    {
        tp_place here = {place, NULL, index};
        tp_status status = copy_text(text, spec, member, &here, &texts->items[index]);
        if (status != TP_OK) {
            return status;
        }
        texts->count++;
    }
    return TP_OK;
}

tp_status tp_config_read_word(const tp_config_text *text, const tp_config_field *spec,
                              json_t *value, const tp_place *place, void *target)
{
    char list[400] = "";
    uint32_t count = 0;
    for (; spec->choices[count] != NULL; count++) {
        if (json_is_string(value) && strcmp(json_string_value(value), spec->choices[count]) == 0) {
            *(uint32_t *)target = count;
            return TP_OK;
        }
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s\"%s\"", count > 0 ? ", " : "",
                 spec->choices[count]);
    }
    return tp_config_fail(text, place, "must be %s%s", count > 1 ? "one of " : "", list);
}
