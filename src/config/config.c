#include "config/config.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/fields.h"
#include "config/readers.h"
#include "config/slips.h"

void tp_config_defaults(tp_config *config, bool watch)
{
    static const uint32_t watch_ops[] = {TP_OP_NORM, TP_OP_MIN,   TP_OP_MAX,
                                         TP_OP_MEAN, TP_OP_ZEROS, TP_OP_NANS};
    *config = (tp_config){
        .targets = tp_config_everything,
        .target_count = 1,
        .ops = {TP_OP_NORM},
        .op_count = 1,
        .eps = 1e-8,
        .formats = TP_FORMAT_TENSORBOARD,
        .step_count_per_record = 1,
        .tensorboard_tags = 20000,
        .step_interval = 1,
        .collect_times = 100000000,
        .exit_after_struct = true,
        .segment_bytes = UINT64_C(32) << 20,
        .budget_bytes = UINT64_C(256) << 20,
        .wait_ms = 1000,
        .database = {.step_interval = 1},
        .zoom = {.bytes = UINT64_C(64) << 20},
    };
    if (!watch) {
        return;
    }
    config->xy_distribution = true;
    config->all_xy = true;
    config->wg_distribution = true;
    config->param_distribution = true;
    config->mv_distribution = true;
    memcpy(config->ops, watch_ops, sizeof watch_ops);
    config->op_count = sizeof watch_ops / sizeof watch_ops[0];
    config->formats = TP_FORMAT_CSV | TP_FORMAT_TENSORBOARD;
    config->step_count_per_record = 1000;
    tp_config_default_rules(config);
}

tp_config tp_config_with_everything(const tp_config *config)
{
    tp_config wide = *config;
    wide.targets = tp_config_everything;
    wide.target_count = 1;
    wide.xy_distribution = wide.all_xy = true;
    wide.forward_only = wide.backward_only = false;
    wide.wg_distribution = wide.param_distribution = wide.mv_distribution = true;
    return wide;
}

static void free_texts(tp_texts *texts)
{
    for (uint32_t i = 0; i < texts->count; i++) {
        tp_free(texts->items[i]);
    }
    tp_free(texts->items);
    *texts = (tp_texts){NULL, 0};
}

static void free_inform(tp_inform_config *inform)
{
    tp_free(inform->connection_str);
    free_texts(&inform->command);
    tp_free(inform->url);
    tp_free(inform->send_email_address);
    tp_free(inform->receive_email_address);
    tp_free(inform->send_email_username);
    tp_free(inform->send_email_password);
    tp_free(inform->smtp_server);
    *inform = (tp_inform_config){0};
}

void tp_config_free(tp_config *config)
{
    if (config->targets != tp_config_everything) {
        for (uint32_t i = 0; i < config->target_count; i++) {
            tp_free(config->targets[i].name);
            tp_free(config->targets[i].input.keyword);
            tp_free(config->targets[i].input_grad.keyword);
            tp_pattern_free(config->targets[i].pattern);
        }
        tp_free(config->targets);
    }
    free_texts(&config->cc_codeline);
    for (uint32_t i = 0; i < TP_MAX_RULES; i++) {
        tp_selection_free(&config->rules[i].selection);
    }
    free_inform(&config->inform);
    tp_free(config->database.url);
    config->database.url = NULL;
    tp_selection_free(&config->database.selection);
    tp_free(config->module_ranks);
    config->targets = NULL;
    config->target_count = 0;
    config->module_ranks = NULL;
    config->module_rank_count = 0;
}

/* Jansson's lexer aborts the process when its string buffer can't grow (2.14: an assertion in
 * load.c), so all memory for one text is asked for beforehand, and given back as a whole. Its
 * costliest text, "{},{},…", takes some 100 bytes a character. */
#define MEMORY_PER_BYTE 256
#define MEMORY_AT_LEAST ((size_t)64 << 10)
#define TEXT_MAX ((size_t)16 << 20)

typedef struct json_memory {
    uint8_t *bytes;
    size_t size;
    size_t used;
} json_memory;

/* Of the text that this thread is reading; NULL when it is reading none: other users of Jansson in
 * the process share the allocator. */
static _Thread_local json_memory *current;

static void *json_alloc(size_t size)
{
    if (current == NULL) {
        return tp_alloc(size);
    }
    size_t rounded = (size + 15) & ~(size_t)15;
    if (size > TEXT_MAX * MEMORY_PER_BYTE || rounded > current->size - current->used) {
        return NULL;
    }
    current->used += rounded;
    return current->bytes + current->used - rounded;
}

static void json_free(void *memory)
{
    if (current == NULL) {
        tp_free(memory);
    }
}

static void set_json_memory(void)
{
    json_set_alloc_funcs(json_alloc, json_free);
}

static bool begins_with(const tp_config_text *text, tp_token token, const char *prefix)
{
    size_t length = strlen(prefix);
    return token.end - token.start >= length &&
           memcmp(text->bytes + token.start, prefix, length) == 0;
}

/* What to do about a token that can't stand where it stands; expected is what Jansson says. */
static const char *advice(const tp_config_text *text, tp_token token, tp_token before,
                          const char *expected)
{
    static const struct {
        const char *mistake;
        const char *advice;
    } mistakes[] = {
        {"/*", "the comment has no end; write */ behind it"},
        {"/", "a comment begins with // or /*"},
        {"'", "write \" instead of '"},
        {"=", "write : instead of ="},
        {"True", "write true"},
        {"TRUE", "write true"},
        {"False", "write false"},
        {"FALSE", "write false"},
        {"None", "leave the field out"},
        {"NaN", "JSON has no NaN"},
        {"Infinity", "JSON has no infinity"},
    };
    bool closes = begins_with(text, token, "}") || begins_with(text, token, "]");
    char first = token.end > token.start ? text->bytes[token.start] : '\0';
    if (before.end == before.start && first != '{') {
        return "the configuration is one object; write { in front of everything and } behind it";
    }
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        if (begins_with(text, token, mistakes[i].mistake)) {
            return mistakes[i].advice;
        }
    }
    if (begins_with(text, before, ":") && (closes || first == ',')) {
        return "write a value in front of it";
    }
    if (first == ',') {
        return "remove it";
    }
    if (strncmp(expected, "':' expected", 12) == 0 && !closes) {
        return "write : in front of it";
    }
    bool behind_value = !begins_with(text, before, ":") && !begins_with(text, before, ",") &&
                        !begins_with(text, before, "{") && !begins_with(text, before, "[");
    if (behind_value && (first == '"' || first == '{' || first == '[')) {
        return "write , in front of it";
    }
    if (first != '\0' && strchr("+-.0123456789", first) != NULL) {
        return memchr(text->bytes + token.start, ';', token.end - token.start) != NULL
                   ? "write , instead of ;"
                   : "numbers are written as in 10, 0.5 or 1e-8";
    }
    bool is_word = (first >= 'a' && first <= 'z') || (first >= 'A' && first <= 'Z');
    if (is_word) {
        return "write names and texts in quotes, and true and false without";
    }
    return strncmp(expected, "string or '}'", 13) == 0 ? "write a name in quotes, or }" : NULL;
}

/* What to do where the kind of the error says it; NULL: look at the token. */
static const char *explain(const json_error_t *json)
{
    switch (json_error_code(json)) {
    case json_error_duplicate_key:
        return "a field may stand once; remove one of them";
    case json_error_invalid_utf8:
        return "save the file as UTF-8";
    case json_error_stack_overflow:
        return "no field needs more than a few brackets";
    case json_error_end_of_input_expected:
        return "the configuration's object ends in front of it; remove the rest";
    case json_error_numeric_overflow:
        return "no field takes such a number";
    case json_error_null_character:
    case json_error_null_byte_in_key:
        return "no text holds such a character";
    default:
        break;
    }
    if (strncmp(json->text, "control character", 17) == 0) {
        return "write \\t for a tab";
    }
    if (strncmp(json->text, "invalid escape", 14) == 0) {
        return "write \\\\ for a \\";
    }
    if (strncmp(json->text, "premature end", 13) == 0 ||
        strncmp(json->text, "unexpected newline", 18) == 0) {
        return "the text has no \" at its end";
    }
    return NULL;
}

static tp_status fail_offset(const tp_config_text *text, size_t offset, const char *message,
                             const char *hint)
{
    tp_position position = tp_place_position(text->original, offset);
    tp_status status = tp_fail(text->error, TP_ERR_CONFIG, "%s%s%s", message,
                               hint != NULL ? ": " : "", hint != NULL ? hint : "");
    if (text->error != NULL) {
        snprintf(text->error->file, sizeof text->error->file, "%s", text->source);
        text->error->line = position.line;
        text->error->column = position.column;
    }
    return status;
}

/* Jansson quotes what it has read so far, which may end inside a character: that becomes ?. */
static void mend(char *text)
{
    while (*text != '\0') {
        unsigned char first = (unsigned char)*text;
        size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
        size_t whole = 1;
        while (whole < length && ((unsigned char)text[whole] & 0xc0) == 0x80) {
            whole++;
        }
        if (whole < length || (first & 0xc0) == 0x80) {
            memset(text, '?', whole);
        }
        text += whole;
    }
}

static tp_status fail_syntax(const tp_config_text *text, json_error_t *json)
{
    mend(json->text);
    tp_token before;
    char open[64];
    size_t at = json->position > 0 ? (size_t)json->position : 0;
    tp_token token = tp_place_token(text->bytes, text->size, at, &before);
    const char *hint = explain(json);
    size_t bracket;
    if (hint == NULL && strstr(json->text, "near end of file") != NULL &&
        tp_place_unclosed(text->bytes, text->size, &bracket)) {
        tp_position place = tp_place_position(text->original, bracket);
        snprintf(open, sizeof open, "the %c in line %u, column %u is not closed",
                 text->bytes[bracket], place.line, place.column);
        hint = open;
    } else if (hint == NULL) {
        hint = advice(text, token, before, json->text);
    }
    return fail_offset(text, token.start, json->text, hint);
}

static void warn_of_slips(const tp_config_text *text, const tp_slips *slips)
{
    tp_position position = tp_place_position(text->original, slips->first);
    char more[64] = "";
    if (slips->count > 1) {
        snprintf(more, sizeof more, " (and %u more slip%s)", slips->count - 1,
                 slips->count > 2 ? "s" : "");
    }
    tp_log(TP_LOG_WARNING, "%s:%u:%u: %s%s", text->source, position.line, position.column,
           slips->what, more);
}

/* Reads text->bytes with memory that is asked for at once. */
static tp_status parse_json(tp_config *config, const tp_config_text *text)
{
    json_memory memory = {NULL, MEMORY_AT_LEAST + MEMORY_PER_BYTE * text->size, 0};
    json_error_t json;
    tp_status status;
    memset(&json, 0, sizeof json);
    memory.bytes = tp_alloc(memory.size);
    if (memory.bytes == NULL) {
        return tp_fail(text->error, TP_ERR_NOMEM, "no memory to read %s", text->source);
    }
    current = &memory;
    json_t *root = json_loadb(text->bytes, text->size, JSON_REJECT_DUPLICATES, &json);
    if (root != NULL) {
        status = tp_config_read_fields(config, root, text);
    } else {
        status = fail_syntax(text, &json);
    }
    current = NULL;
    tp_free(memory.bytes); /* and root with it */
    return status;
}

static tp_status parse_text(tp_config *config, const char *text, size_t size, const char *source,
                            tp_error *error)
{
    if (size > TEXT_MAX) {
        return tp_fail(error, TP_ERR_CONFIG, "%s is too large for a configuration", source);
    }
    char *clean = tp_alloc(size + 1); /* an empty file has no bytes at all */
    if (clean == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory to read %s", source);
    }
    if (size > 0) {
        memcpy(clean, text, size);
    }
    const tp_config_text whole = {clean, text, size, source, error};
    tp_status status;
    const char *nul = size > 0 ? memchr(text, '\0', size) : NULL;
    if (nul != NULL) { /* Jansson skips some */
        status = fail_offset(&whole, (size_t)(nul - text), "NUL byte", "save the file as UTF-8");
    } else {
        tp_slips slips = tp_slips_blank(clean, size);
        status = parse_json(config, &whole);
        if (status == TP_OK && slips.count > 0) {
            warn_of_slips(&whole, &slips);
        }
    }
    tp_free(clean);
    return status;
}

tp_status tp_config_parse(tp_config *config, const char *text, size_t size, const char *source,
                          tp_error *error)
{
    static const char byte_order_mark[] = "\xef\xbb\xbf";
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_json_memory);
    if (size >= 3 && memcmp(text, byte_order_mark, 3) == 0) {
        text += 3;
        size -= 3;
    }
    tp_status status = parse_text(config, text, size, source, error);
    if (status != TP_OK) {
        tp_config_free(config);
    }
    return status;
}

tp_status tp_config_read(tp_config *config, const char *path, tp_error *error)
{
    tp_buf text = TP_BUF_INIT;
    /* One byte more than may be shows that it is too large; /dev/zero has no end. */
    tp_status status = tp_file_read_at_most(path, TEXT_MAX + 1, &text, error);
    if (status == TP_OK) {
        status = tp_config_parse(config, (const char *)text.data, text.size, path, error);
    } else {
        tp_config_free(config);
    }
    tp_buf_free(&text);
    return status;
}
