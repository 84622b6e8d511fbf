/* Who is told of alerts. */
#include <stdlib.h>
#include <string.h>

#include "config/readers.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

#define INFORM(member) .offset = offsetof(tp_inform_config, member)
#define DEFAULT_SMTP_PORT 587

static const char *const recipients[] = {"database", "email", "command", "webhook", NULL};

static tp_status read_recipient(const tp_config_text *text, const tp_config_field *spec,
                                json_t *value, const tp_place *place, void *target)
{
    uint32_t choice = 0;
    tp_status status = tp_config_read_word(text, spec, value, place, &choice);
    *(uint32_t *)target = TP_INFORM_DATABASE + choice;
    return status;
}

/* The ancestor's document shows a URL that is none; who copied it is told by a warning. */
static bool is_example(const char *url)
{
    return strstr(url, "username:password@host") != NULL;
}

static tp_status read_connection(const tp_config_text *text, const tp_config_field *spec,
                                 json_t *value, const tp_place *place, void *target)
{
    return json_is_string(value) && is_example(json_string_value(value))
               ? tp_config_read_text(text, spec, value, place, target)
               : tp_config_read_url(text, spec, value, place, target);
}

/* The ancestor's document writes it as a text. */
static tp_status read_port(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                           const tp_place *place, void *target)
{
    if (!json_is_string(value)) {
        return tp_config_read_u32(text, spec, value, place, target);
    }
    const char *digits = json_string_value(value);
    size_t length = strlen(digits);
    unsigned long port = strtoul(digits, NULL, 10);
    if (length == 0 || length > 5 || strspn(digits, "0123456789") != length || port < 1 ||
        port > 65535) {
        return tp_config_fail(text, place, "must be an integer from 1 to 65535");
    }
    *(uint32_t *)target = (uint32_t)port;
    return TP_OK;
}

static const tp_config_field inform_fields[] = {
    {.name = "recipient",
     .read = read_recipient,
     INFORM(recipient),
     .choices = recipients,
     .fallback = "\"database\"",
     .does = "where messages go"},
    {.name = "connection_str",
     .read = read_connection,
     INFORM(connection_str),
     .does = "database: its URL, as in `mysql+pymysql://username:password@host:port/database`"},
    {.name = "send_email_address",
     .read = tp_config_read_text,
     INFORM(send_email_address),
     .does = "email: the sender"},
    {.name = "receive_email_address",
     .read = tp_config_read_text,
     INFORM(receive_email_address),
     .does = "email: the receiver"},
    {.name = "send_email_username",
     .read = tp_config_read_text,
     INFORM(send_email_username),
     .does = "email: name at the server"},
    {.name = "send_email_password",
     .read = tp_config_read_text,
     INFORM(send_email_password),
     .does = "email: password at the server"},
    {.name = "smtp_server",
     .read = tp_config_read_text,
     INFORM(smtp_server),
     .does = "email: the server's name"},
    {.name = "smtp_port",
     .read = read_port,
     INFORM(smtp_port),
     .min = 1,
     .max = 65535,
     .type = "integer 1 … 65535, or a text of digits",
     .schema = "\"type\": [\"integer\", \"string\"], \"minimum\": 1, \"maximum\": 65535, "
               "\"pattern\": \"^[0-9]{1,5}$\"",
     .fallback = "587",
     .does = "email: the server's port; 465 speaks TLS from the beginning, others after STARTTLS"},
    {.name = "command",
     .read = tp_config_read_texts,
     INFORM(command),
     .does = "command: a program with its arguments, as in `[\"/usr/local/bin/page\", \"--now\"]`; "
             "it gets messages as JSON on its standard input"},
    {.name = "url",
     .read = tp_config_read_url,
     INFORM(url),
     .does = "webhook: where messages are posted as JSON"},
};

const tp_config_members tp_config_inform_members = {inform_fields, LENGTH(inform_fields)};

/* The documents show these; who copied them has no recipient. */
static bool is_placeholder(const tp_inform_config *inform)
{
    if (inform->recipient == TP_INFORM_DATABASE) {
        return is_example(inform->connection_str);
    }
    return inform->recipient == TP_INFORM_EMAIL && inform->send_email_password != NULL &&
           strcmp(inform->send_email_password, "******") == 0;
}

tp_status tp_config_read_inform(const tp_config_text *text, const tp_config_field *spec,
                                json_t *value, const tp_place *place, void *target)
{
    tp_inform_config *inform = target;
    inform->smtp_port = DEFAULT_SMTP_PORT;
    tp_status status = tp_config_read_members(text, spec, value, place, inform);
    if (status != TP_OK || json_object_size(value) == 0) {
        return status;
    }
    if (inform->recipient == TP_INFORM_NOBODY) {
        inform->recipient = TP_INFORM_DATABASE;
    }
    if (inform->recipient == TP_INFORM_DATABASE && inform->connection_str == NULL) {
        return tp_config_fail(text, place,
                              "connection_str is missing; write \"connection_str\": "
                              "\"mysql+pymysql://USER:PASSWORD@HOST:PORT/DATABASE\"");
    }
    if (inform->recipient == TP_INFORM_EMAIL &&
        (inform->send_email_address == NULL || inform->receive_email_address == NULL ||
         inform->smtp_server == NULL)) {
        return tp_config_fail(text, place,
                              "an email needs \"send_email_address\", \"receive_email_address\" "
                              "and \"smtp_server\"");
    }
    if (inform->recipient == TP_INFORM_COMMAND && inform->command.count == 0) {
        return tp_config_fail(text, place,
                              "command is missing; write \"command\": [\"/path/to/program\"]");
    }
    if (inform->recipient == TP_INFORM_WEBHOOK && inform->url == NULL) {
        return tp_config_fail(text, place, "url is missing; write \"url\": \"https://HOST/PATH\"");
    }
    if (is_placeholder(inform)) {
        inform->recipient = TP_INFORM_NOBODY;
        tp_config_warn(text, place,
                       "is the documentation's placeholder: nobody is informed; write your own "
                       "address, or remove it");
    }
    return TP_OK;
}
