/* database: which server gets what is recorded, and how much of it. */
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "config/readers.h"
#include "config/url.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

#define DATABASE(member) .offset = offsetof(tp_database_config, member)
#define STEPS_MAX 1e9

static const tp_config_field database_fields[] = {
    {.name = "url",
     .read = tp_config_read_url,
     DATABASE(url),
     .does = "`postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, `mysql+pymysql://…`, or "
             "`http://HOST:PORT/PATH` for line protocol; `\"$NAME\"`, `\"file:PATH\"`: see "
             "[ship.md](ship.md#secrets)"},
    {.name = "targets",
     .read = tp_config_read_selection,
     DATABASE(selection),
     .type = "list of names and patterns",
     .schema = "\"type\": \"array\", \"items\": {\"type\": \"string\"}",
     .fallback = "[]",
     .does = "the modules, parameters and logged numbers whose values are sent; `[]`: all"},
    {.name = "step_interval",
     .read = tp_config_read_u64,
     DATABASE(step_interval),
     .max = STEPS_MAX,
     .fallback = "1",
     .does = "send the values of one step of so many; 0: of none"},
    {.name = "rollup_steps",
     .read = tp_config_read_u64,
     DATABASE(rollup_steps),
     .max = STEPS_MAX,
     .fallback = "0",
     .does = "send one summary of every series for so many steps; 0: none"},
};

const tp_config_members tp_config_database_members = {database_fields, LENGTH(database_fields)};

tp_status tp_config_read_database(const tp_config_text *text, const tp_config_field *spec,
                                  json_t *value, const tp_place *place, void *target)
{
    tp_database_config *database = target;
    tp_status status = tp_config_read_members(text, spec, value, place, database);
    if (status != TP_OK || json_object_size(value) == 0) {
        return status;
    }
    if (database->url == NULL) {
        return tp_config_fail(text, place,
                              "url is missing; write \"url\": "
                              "\"postgresql://USER:PASSWORD@HOST:PORT/DATABASE\"");
    }
    if (database->step_interval == 0 && database->rollup_steps == 0) {
        return tp_config_fail(text, place,
                              "would send nothing but alerts; write a \"step_interval\" or "
                              "\"rollup_steps\" above 0");
    }
    return TP_OK;
}

tp_status tp_config_read_url(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                             const tp_place *place, void *target)
{
    tp_url url;
    tp_error error = {0};
    char **out = target;
    tp_status status = tp_config_read_text(text, spec, value, place, target);
    if (status != TP_OK || tp_secret_is_elsewhere(*out)) {
        return status;
    }
    status = tp_url_parse(&url, *out, &error);
    if (status == TP_OK) {
        tp_url_free(&url);
        return TP_OK;
    }
    if (status == TP_ERR_NOMEM) {
        return tp_fail(text->error, TP_ERR_NOMEM, "no memory for %s", spec->name);
    }
    return tp_config_fail(text, place, "%s", error.message);
}

tp_status tp_config_read_selection(const tp_config_text *text, const tp_config_field *spec,
                                   json_t *value, const tp_place *place, void *target)
{
    tp_selection *selection = target;
    tp_status status = tp_config_read_texts(text, spec, value, place, &selection->targets);
    if (status != TP_OK || selection->targets.count == 0) {
        return status;
    }
    selection->patterns = tp_calloc(selection->targets.count, sizeof *selection->patterns);
    if (selection->patterns == NULL) {
        return tp_fail(text->error, TP_ERR_NOMEM, "no memory for targets");
    }
    for (uint32_t i = 0; i < selection->targets.count; i++) {
        char message[256];
        tp_place here = {place, NULL, i};
        status = tp_pattern_new(&selection->patterns[i], selection->targets.items[i], message,
                                sizeof message);
        if (status == TP_ERR_CONFIG) {
            return tp_config_fail(text, &here, "%s", message);
        }
        if (status != TP_OK) {
            return tp_fail(text->error, status, "no memory for a pattern");
        }
    }
    return TP_OK;
}

static void put_member(tp_buf *out, const char *name, const char *value)
{
    if (value != NULL) {
        tp_buf_printf(out, "\"%s\": ", name);
        tp_text_put_json(out, value);
        tp_buf_printf(out, ", ");
    }
}

static void put_texts(tp_buf *out, const char *name, const tp_texts *texts)
{
    if (texts->count == 0) {
        return;
    }
    tp_buf_printf(out, "\"%s\": [", name);
    for (uint32_t i = 0; i < texts->count; i++) {
        tp_buf_printf(out, "%s", i > 0 ? ", " : "");
        tp_text_put_json(out, texts->items[i]);
    }
    tp_buf_printf(out, "], ");
}

static void put_inform(const tp_inform_config *inform, tp_buf *out)
{
    static const char *const recipients[] = {[TP_INFORM_DATABASE] = "database",
                                             [TP_INFORM_EMAIL] = "email",
                                             [TP_INFORM_COMMAND] = "command",
                                             [TP_INFORM_WEBHOOK] = "webhook"};
    put_member(out, "connection_str", inform->connection_str);
    put_member(out, "send_email_address", inform->send_email_address);
    put_member(out, "receive_email_address", inform->receive_email_address);
    put_member(out, "send_email_username", inform->send_email_username);
    put_member(out, "send_email_password", inform->send_email_password);
    put_member(out, "smtp_server", inform->smtp_server);
    put_texts(out, "command", &inform->command);
    put_member(out, "url", inform->url);
    tp_buf_printf(out, "\"smtp_port\": %" PRIu32 ", \"recipient\": \"%s\"", inform->smtp_port,
                  recipients[inform->recipient]);
}

void tp_config_put_delivery(const tp_config *config, tp_buf *out)
{
    const tp_database_config *database = &config->database;
    tp_buf_printf(out, "{\"dynamic_on\": false"); /* nothing is recorded, and that is right */
    if (database->url != NULL) {
        tp_buf_printf(out, ", \"database\": {");
        put_member(out, "url", database->url);
        put_texts(out, "targets", &database->selection.targets);
        tp_buf_printf(out, "\"step_interval\": %" PRIu64 ", \"rollup_steps\": %" PRIu64 "}",
                      database->step_interval, database->rollup_steps);
    }
    if (config->inform.recipient != TP_INFORM_NOBODY) {
        tp_buf_printf(out, ", \"alert\": {\"inform\": {");
        put_inform(&config->inform, out);
        tp_buf_printf(out, "}}");
    }
    tp_buf_printf(out, "}");
}
