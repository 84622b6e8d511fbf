/* The alert rules, and who is told. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/readers.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

#define NO_MODE UINT32_MAX
#define FACTOR_MIN_SAMPLES 20

/* A rule as written; what must fit together is checked when all of it has been read. */
typedef struct rule_draft {
    uint32_t rule;        /* TP_RULE_…, 0: absent */
    uint32_t mode;        /* 0 relative, 1 factor, NO_MODE: absent */
    double threshold;     /* NaN: absent */
    uint64_t min_samples; /* 0: absent */
} rule_draft;

static const char *const rule_names[] = {"AnomalyNan", "AnomalyTurbulence", NULL};
static const char *const modes[] = {"relative", "factor", NULL};

static tp_status read_rule_name(const tp_config_text *text, const tp_config_field *spec,
                                json_t *value, const tp_place *place, void *target)
{
    static const uint32_t rules[] = {TP_RULE_ANOMALY_NAN, TP_RULE_ANOMALY_TURBULENCE};
    uint32_t choice = 0;
    tp_status status = tp_config_read_word(text, spec, value, place, &choice);
    *(uint32_t *)target = rules[choice];
    return status;
}

static const tp_config_field argument_fields[] = {
    {.name = "threshold",
     .read = tp_config_read_positive,
     .offset = offsetof(rule_draft, threshold),
     .does = "AnomalyNan: the largest magnitude that is right, none: any number is. "
             "AnomalyTurbulence: how far from its own history a value may be"},
    {.name = "mode",
     .read = tp_config_read_word,
     .offset = offsetof(rule_draft, mode),
     .choices = modes,
     .fallback = "\"relative\"",
     .does = "AnomalyTurbulence: fires when |x − m| > threshold · |m|, m being the mean of the "
             "earlier finite values; or when a norm is above threshold · m or below m / threshold"},
    {.name = "min_samples",
     .read = tp_config_read_u64,
     .offset = offsetof(rule_draft, min_samples),
     .min = 1,
     .max = 1e9,
     .does = "AnomalyTurbulence: how many earlier finite values it needs before it speaks: 1, by "
             "factor 20"},
};

static const tp_config_members argument_members = {argument_fields, LENGTH(argument_fields)};

static const tp_config_field rule_fields[] = {
    {.name = "rule_name",
     .read = read_rule_name,
     .offset = offsetof(rule_draft, rule),
     .choices = rule_names,
     .does = "a value is NaN or too large; or leaves its own history"},
    {.name = "args",
     .read = tp_config_read_members,
     .nest = TP_NEST_OBJECT,
     .members = &argument_members,
     .does = "what the rule needs to know"},
};

const tp_config_members tp_config_rule_members = {rule_fields, LENGTH(rule_fields)};

static tp_status read_rule(const tp_config_text *text, json_t *value, const tp_place *place,
                           tp_rule_config *rule)
{
    rule_draft draft = {0, NO_MODE, (double)NAN, 0};
    tp_status status = tp_config_read_object(text, &tp_config_rule_members, value, place, &draft);
    if (status != TP_OK) {
        return status;
    }
    bool turbulence = draft.rule == TP_RULE_ANOMALY_TURBULENCE;
    bool factor = draft.mode == 1;
    if (draft.rule == 0) {
        return tp_config_fail(text, place,
                              "rule_name is missing; write \"rule_name\": \"AnomalyNan\"");
    }
    if (turbulence && isnan(draft.threshold)) {
        return tp_config_fail(text, place,
                              "threshold is missing; write \"args\": {\"threshold\": 0.5}");
    }
    if (!turbulence && (draft.mode != NO_MODE || draft.min_samples != 0)) {
        return tp_config_fail(text, place,
                              "AnomalyNan takes no argument but threshold; remove the others");
    }
    if (factor && draft.threshold < 1) {
        return tp_config_fail(text, place, "a factor is at least 1; write \"threshold\": 10");
    }
    uint64_t samples = factor ? FACTOR_MIN_SAMPLES : 1;
    *rule = (tp_rule_config){draft.rule, factor, draft.threshold,
                             draft.min_samples > 0 ? draft.min_samples : samples};
    return TP_OK;
}

tp_status tp_config_read_rules(const tp_config_text *text, const tp_config_field *spec,
                               json_t *value, const tp_place *place, void *target)
{
    tp_config *config = target;
    json_t *member;
    size_t index;
    (void)spec;
    if (!json_is_array(value) || json_array_size(value) > TP_MAX_RULES) {
        return tp_config_fail(
            text, place,
            "must be a list of at most %d rules, as in [{\"rule_name\": \"AnomalyNan\"}]",
            TP_MAX_RULES);
    }
    config->rule_count = 0;
    json_array_foreach(value, index, member)
    {
        tp_place here = {place, NULL, index};
        tp_status status = read_rule(text, member, &here, &config->rules[config->rule_count++]);
        if (status != TP_OK) {
            return status;
        }
    }
    return TP_OK;
}

#define INFORM(member) .offset = offsetof(tp_inform_config, member)
#define DEFAULT_SMTP_PORT 587

static const char *const recipients[] = {"database", "email", NULL};

static tp_status read_recipient(const tp_config_text *text, const tp_config_field *spec,
                                json_t *value, const tp_place *place, void *target)
{
    uint32_t choice = 0;
    tp_status status = tp_config_read_word(text, spec, value, place, &choice);
    *(uint32_t *)target = choice == 1 ? TP_INFORM_EMAIL : TP_INFORM_DATABASE;
    return status;
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
     .read = tp_config_read_text,
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
     .does = "email: the server's port"},
};

const tp_config_members tp_config_inform_members = {inform_fields, LENGTH(inform_fields)};

/* The documents show these; who copied them has no recipient. */
static bool is_placeholder(const tp_inform_config *inform)
{
    if (inform->recipient == TP_INFORM_DATABASE) {
        return strstr(inform->connection_str, "username:password@host") != NULL;
    }
    return inform->send_email_password != NULL &&
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
    if (is_placeholder(inform)) {
        inform->recipient = TP_INFORM_NOBODY;
        tp_config_warn(text, place,
                       "is the documentation's placeholder: nobody is informed; write your own "
                       "address, or remove it");
        return TP_OK;
    }
    tp_config_warn(text, place,
                   "this version does not act on it: alerts are on the console and in the journal, "
                   "and nobody is informed");
    return TP_OK;
}
