#include "config/schema.h"

#include <stdio.h>
#include <string.h>

#include "config/fields.h"
#include "config/readers.h"

static void put(tp_buf *out, const char *text)
{
    tp_buf_put(out, text, strlen(text));
}

/* text with a backslash in front of each of these characters. */
static void put_escaped(tp_buf *out, const char *text, const char *characters)
{
    for (; *text != '\0'; text++) {
        if (strchr(characters, *text) != NULL) {
            put(out, "\\");
        }
        tp_buf_put(out, text, 1);
    }
}

static void put_words(tp_buf *out, const tp_config_field *field, const char *around)
{
    for (size_t i = 0; field->choices[i] != NULL; i++) {
        tp_buf_printf(out, "%s%s\"%s\"%s", i > 0 ? ", " : "", around, field->choices[i], around);
    }
}

static bool is_bool(const tp_config_field *field)
{
    return field->read == tp_config_read_bool || field->read == tp_config_read_unused_bool;
}

static bool is_integer(const tp_config_field *field)
{
    return field->read == tp_config_read_u32 || field->read == tp_config_read_u64;
}

static void indent(tp_buf *out, int depth)
{
    tp_buf_printf(out, "\n%*s", 2 * depth, "");
}

static void put_object(tp_buf *out, const tp_config_members *members, int depth);

/* What a value of the field has to be, without the braces around. */
static void put_value(tp_buf *out, const tp_config_field *field, int depth)
{
    if (field->schema != NULL) {
        put(out, field->schema);
    } else if (field->nest == TP_NEST_OBJECT) {
        put_object(out, field->members, depth);
    } else if (field->nest == TP_NEST_MAP) {
        put(out, "\"type\": \"object\", \"additionalProperties\": {");
        put_object(out, field->members, depth);
        put(out, "}");
    } else if (field->nest == TP_NEST_LIST) {
        tp_buf_printf(out, "\"type\": \"array\", \"maxItems\": %.0f, \"items\": {", field->max);
        put_object(out, field->members, depth);
        put(out, "}");
    } else if (is_bool(field)) {
        put(out, "\"type\": \"boolean\"");
    } else if (is_integer(field)) {
        tp_buf_printf(out, "\"type\": \"integer\", \"minimum\": %.0f, \"maximum\": %.0f",
                      field->min, field->max);
    } else if (field->read == tp_config_read_positive) {
        put(out, "\"type\": \"number\", \"minimum\": 0");
    } else if (field->choices != NULL) {
        put(out, "\"enum\": [");
        put_words(out, field, "");
        put(out, "]");
    } else if (field->read == tp_config_read_texts) {
        put(out, "\"type\": \"array\", \"items\": {\"type\": \"string\"}");
    } else {
        put(out, "\"type\": \"string\"");
    }
}

static void put_object(tp_buf *out, const tp_config_members *members, int depth)
{
    put(out, "\"type\": \"object\", \"additionalProperties\": false, \"properties\": {");
    for (size_t i = 0; i < members->count; i++) {
        const tp_config_field *field = &members->fields[i];
        put(out, i > 0 ? "," : "");
        indent(out, depth + 1);
        tp_buf_printf(out, "\"%s\": {\"description\": \"", field->name);
        put_escaped(out, field->does, "\"\\");
        if (field->ignored != NULL) {
            put(out, " (not acted on yet: ");
            put_escaped(out, field->ignored, "\"\\");
            put(out, ")");
        }
        put(out, "\", ");
        if (field->fallback != NULL) {
            tp_buf_printf(out, "\"default\": %s, ", field->fallback);
        }
        put_value(out, field, depth + 1);
        put(out, "}");
    }
    indent(out, depth);
    put(out, "}");
}

void tp_config_write_schema(tp_buf *out)
{
    put(out, "{\"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n"
             "\"title\": \"Configuration of TensorProbe\",\n");
    put_object(out, &tp_config_root_members, 0);
    put(out, "}\n");
}

static void put_type(tp_buf *out, const tp_config_field *field)
{
    if (field->type != NULL) {
        put(out, field->type);
    } else if (field->nest == TP_NEST_OBJECT) {
        put(out, "object");
    } else if (is_bool(field)) {
        put(out, "boolean");
    } else if (is_integer(field)) {
        tp_buf_printf(out, "integer %.0f … %.0f", field->min, field->max);
    } else if (field->read == tp_config_read_positive) {
        put(out, "number ≥ 0");
    } else if (field->choices != NULL) {
        put_words(out, field, "`");
    } else {
        put(out, field->read == tp_config_read_texts ? "list of texts" : "text");
    }
}

/* A cell that may be empty. */
static void put_code(tp_buf *out, const char *code)
{
    const char *around = code[0] != '\0' ? "`" : "";
    tp_buf_printf(out, "%s%s%s | ", around, code, around);
}

static void put_rows(tp_buf *out, const tp_config_members *members, const char *path)
{
    static const char *const behind[] = {
        [TP_NEST_OBJECT] = ".", [TP_NEST_MAP] = ".NAME.", [TP_NEST_LIST] = "[]."};
    for (size_t i = 0; i < members->count; i++) {
        const tp_config_field *field = &members->fields[i];
        const char *fallback = field->fallback != NULL ? field->fallback : "";
        const char *for_watch = field->for_watch != NULL ? field->for_watch : fallback;
        tp_buf_printf(out, "| `%s%s` | ", path, field->name);
        put_type(out, field);
        put(out, " | ");
        put_code(out, fallback);
        put_code(out, for_watch);
        put_escaped(out, field->does, "|");
        if (field->ignored != NULL) {
            tp_buf_printf(out, " (*not acted on yet: %s*)", field->ignored);
        }
        put(out, " |\n");
        if (field->nest != TP_NEST_NONE) {
            char deeper[128];
            snprintf(deeper, sizeof deeper, "%s%s%s", path, field->name, behind[field->nest]);
            put_rows(out, field->members, deeper);
        }
    }
}

void tp_config_write_table(tp_buf *out)
{
    put(out, "| field | value | TrainerMon's default | `watch()`'s default | what it does |\n"
             "|---|---|---|---|---|\n");
    put_rows(out, &tp_config_root_members, "");
}

bool tp_config_acts_on(const char *name)
{
    for (size_t i = 0; i < tp_config_root_members.count; i++) {
        const tp_config_field *field = &tp_config_root_members.fields[i];
        if (strcmp(field->name, name) == 0) {
            return field->ignored == NULL;
        }
    }
    return false;
}
