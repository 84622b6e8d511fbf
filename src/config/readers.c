#include "config/readers.h"

#include <string.h>

#include "base/mem.h"

static char no_name[] = "";
tp_target tp_config_everything[1] = {{.name = no_name}};

/* Digits without sign or blank; *end is behind them. False when there are none or too many. */
static bool read_digits(const char *digits, const char **end, uint32_t *number)
{
    uint64_t value = 0;
    *end = digits;
    while (**end >= '0' && **end <= '9' && value <= UINT32_MAX) {
        value = value * 10 + (uint64_t)(**end - '0');
        (*end)++;
    }
    *number = (uint32_t)value;
    return *end > digits && value <= UINT32_MAX;
}

static bool parse_side(const char *word, tp_side_spec *side)
{
    const char *rest;
    *side = (tp_side_spec){.given = true};
    if (strcmp(word, "tensor") == 0) {
        return true;
    }
    /* The second ancestor's print_struct says list[n] for what its users have to paste. */
    size_t bracket = strncmp(word, "list", 4) == 0 ? 4 : strncmp(word, "tuple", 5) == 0 ? 5 : 0;
    if (bracket == 0 || word[bracket] != '[' ||
        !read_digits(word + bracket + 1, &rest, &side->length) || *rest != ']') {
        return false;
    }
    side->tuple = true;
    if (rest[1] == '\0') {
        return side->length > 0;
    }
    return rest[1] == ':' && read_digits(rest + 2, &rest, &side->index) && *rest == '\0' &&
           side->index < side->length;
}

tp_status tp_config_read_side(const tp_config_text *text, const tp_config_field *spec,
                              json_t *value, const tp_place *place, void *target)
{
    static const char keyword[] = "keyword:";
    const char *word = json_is_string(value) ? json_string_value(value) : "";
    if (strncmp(spec->name, "input", 5) == 0 && strncmp(word, keyword, sizeof keyword - 1) == 0 &&
        word[sizeof keyword - 1] != '\0') {
        tp_side_spec *side = target;
        *side = (tp_side_spec){.given = true, .keyword = tp_strdup(word + sizeof keyword - 1)};
        return side->keyword != NULL ? TP_OK
                                     : tp_fail(text->error, TP_ERR_NOMEM, "no memory for targets");
    }
    if (json_object_get(value, "config") != NULL) {
        return tp_config_fail(text, place,
                              "is what print_struct prints; write what stands behind its "
                              "\"config\", as in \"tuple[2]:0\"");
    }
    if (!parse_side(word, target)) {
        return tp_config_fail(
            text, place,
            "must be \"tensor\", \"tuple[n]\" or \"tuple[n]:i\" with i < n, as in "
            "\"tuple[2]:0\"%s",
            strncmp(spec->name, "input", 5) == 0 ? ", or \"keyword:NAME\"" : "");
    }
    return TP_OK;
}

tp_status tp_config_read_targets(const tp_config_text *text, const tp_config_field *spec,
                                 json_t *value, const tp_place *place, void *target)
{
    tp_config *config = target;
    const char *name;
    json_t *member;
    if (!json_is_object(value)) {
        return tp_config_fail(
            text, place,
            "must be an object of module names, as in {\"layers.0\": {}} (everything: {})");
    }
    if (json_object_size(value) == 0) {
        return TP_OK;
    }
    config->targets = tp_calloc(json_object_size(value), sizeof *config->targets);
    config->target_count = 0;
    if (config->targets == NULL) {
        return tp_fail(text->error, TP_ERR_NOMEM, "no memory for targets");
    }
    json_object_foreach(value, name, member)
    {
        tp_place here = {place, name, config->target_count};
        tp_target *one = &config->targets[config->target_count];
        one->name = tp_strdup(name);
        if (one->name == NULL) {
            return tp_fail(text->error, TP_ERR_NOMEM, "no memory for targets");
        }
        config->target_count++;
        char message[256];
        tp_status status = tp_pattern_new(&one->pattern, name, message, sizeof message);
        if (status == TP_ERR_CONFIG) {
            return tp_config_fail(text, &here, "%s", message);
        }
        if (status != TP_OK) {
            return tp_fail(text->error, TP_ERR_NOMEM, "no memory for targets");
        }
        if (!json_is_object(member)) {
            return tp_config_fail(text, &here,
                                  "must be an object: {} for all its tensors, or as in "
                                  "{\"input\": \"tuple[2]:0\"}");
        }
        status = tp_config_read_object(text, spec->members, member, &here, one);
        if (status != TP_OK) {
            return status;
        }
    }
    return TP_OK;
}

tp_status tp_config_read_ops(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                             const tp_place *place, void *target)
{
    tp_config *config = target;
    const char *names[TP_OP_COUNT + 1] = {NULL};
    const tp_config_field word = {.choices = names};
    json_t *member;
    size_t index;
    bool seen[TP_OP_COUNT] = {false};
    (void)spec;
    if (!json_is_array(value)) {
        return tp_config_fail(text, place, "must be a list, as in [\"norm\", \"min\", \"max\"]");
    }
    for (uint32_t op = 1; op <= TP_OP_COUNT; op++) {
        names[op - 1] = tp_op_name(op);
    }
    config->op_count = 0;
    json_array_foreach(value, index, member)
    {
        tp_place here = {place, NULL, index};
        uint32_t choice = 0;
        tp_status status = tp_config_read_word(text, &word, member, &here, &choice);
        if (status != TP_OK) {
            return status;
        }
        if (!seen[choice]) {
            seen[choice] = true;
            config->ops[config->op_count++] = choice + 1;
        }
    }
    if (config->op_count == 0) {
        config->ops[config->op_count++] = TP_OP_NORM;
    }
    return TP_OK;
}

static tp_status read_one_format(const tp_config_text *text, const tp_config_field *spec,
                                 json_t *value, const tp_place *place, uint32_t *formats)
{
    static const uint32_t bits[] = {TP_FORMAT_TENSORBOARD, TP_FORMAT_CSV, TP_FORMAT_SQLITE,
                                    TP_FORMAT_API, TP_FORMAT_DATABASE};
    uint32_t choice = 0;
    tp_status status = tp_config_read_word(text, spec, value, place, &choice);
    if (status == TP_OK) {
        *formats |= bits[choice];
    }
    return status;
}

tp_status tp_config_read_format(const tp_config_text *text, const tp_config_field *spec,
                                json_t *value, const tp_place *place, void *target)
{
    uint32_t formats = 0;
    json_t *member;
    size_t index;
    if (!json_is_array(value)) {
        tp_status status = read_one_format(text, spec, value, place, &formats);
        *(uint32_t *)target = formats;
        return status;
    }
    json_array_foreach(value, index, member)
    {
        tp_place here = {place, NULL, index};
        tp_status status = read_one_format(text, spec, member, &here, &formats);
        if (status != TP_OK) {
            return status;
        }
    }
    if (formats == 0) {
        return tp_config_fail(text, place,
                              "is an empty list; write \"api\" for no files but the journal");
    }
    *(uint32_t *)target = formats;
    return TP_OK;
}

tp_status tp_config_read_input_grad(const tp_config_text *text, const tp_config_field *spec,
                                    json_t *value, const tp_place *place, void *target)
{
    uint32_t choice = 0;
    tp_status status = tp_config_read_word(text, spec, value, place, &choice);
    *(bool *)target = choice == 1;
    return status;
}

#define RANK_MAX 16777215

static tp_status fail_ranks(const tp_config_text *text, const tp_place *place)
{
    return tp_config_fail(text, place,
                          "must be a list of ranks from 0 to %d, as in [0, 1] (all ranks: [])",
                          RANK_MAX);
}

/* The first ancestor's "0,1". */
static tp_status read_rank_words(tp_config *config, const tp_config_text *text, const char *words,
                                 const tp_place *place)
{
    const char *rest = words;
    uint32_t rank;
    config->module_ranks = tp_calloc(strlen(words) / 2 + 1, sizeof *config->module_ranks);
    if (config->module_ranks == NULL) {
        return tp_fail(text->error, TP_ERR_NOMEM, "no memory for module_ranks");
    }
    for (bool more = *words != '\0'; more; more = *rest++ == ',') {
        rest += strspn(rest, " ");
        if (!read_digits(rest, &rest, &rank) || rank > RANK_MAX) {
            return fail_ranks(text, place);
        }
        rest += strspn(rest, " ");
        if (*rest != ',' && *rest != '\0') {
            return fail_ranks(text, place);
        }
        config->module_ranks[config->module_rank_count++] = rank;
    }
    return TP_OK;
}

tp_status tp_config_read_ranks(const tp_config_text *text, const tp_config_field *spec,
                               json_t *value, const tp_place *place, void *target)
{
    tp_config *config = target;
    json_t *member;
    size_t index;
    (void)spec;
    if (json_is_string(value)) {
        return read_rank_words(config, text, json_string_value(value), place);
    }
    if (!json_is_array(value)) {
        return fail_ranks(text, place);
    }
    if (json_array_size(value) == 0) {
        return TP_OK;
    }
    config->module_ranks = tp_calloc(json_array_size(value), sizeof *config->module_ranks);
    if (config->module_ranks == NULL) {
        return tp_fail(text->error, TP_ERR_NOMEM, "no memory for module_ranks");
    }
    json_array_foreach(value, index, member)
    {
        static const tp_config_field rank = {.name = "rank", .max = RANK_MAX};
        tp_place here = {place, NULL, index};
        tp_status status =
            tp_config_read_u32(text, &rank, member, &here, &config->module_ranks[index]);
        if (status != TP_OK) {
            return status;
        }
        config->module_rank_count++;
    }
    return TP_OK;
}

/* As in the names of the ancestors' directories and ours, "Dec03_21-34-40". */
static bool is_stamp(const char *word)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    char month[4] = "";
    if (strlen(word) != 14) {
        return false;
    }
    memcpy(month, word, 3);
    const char *found = strstr(months, month);
    for (size_t i = 3; i < 14; i++) {
        char pattern = "...dd_dd-dd-dd"[i];
        if (pattern == 'd' ? word[i] < '0' || word[i] > '9' : word[i] != pattern) {
            return false;
        }
    }
    return found != NULL && (found - months) % 3 == 0;
}

tp_status tp_config_read_stamps(const tp_config_text *text, const tp_config_field *spec,
                                json_t *value, const tp_place *place, void *target)
{
    char(*stamps)[TP_STAMP_SIZE] = target;
    size_t count = json_array_size(value);
    (void)spec;
    if (!json_is_array(value) || (count != 0 && count != 2)) {
        return tp_config_fail(text, place,
                              "must be [] or the first and the last time, as in "
                              "[\"Dec03_21-34-40\", \"Dec03_21-34-41\"]");
    }
    for (size_t i = 0; i < count; i++) {
        tp_place here = {place, NULL, i};
        json_t *member = json_array_get(value, i);
        if (!json_is_string(member) || !is_stamp(json_string_value(member))) {
            return tp_config_fail(text, &here,
                                  "must be a time as in the names of output directories, "
                                  "\"Dec03_21-34-40\"");
        }
        memcpy(stamps[i], json_string_value(member), 15);
    }
    return TP_OK;
}

tp_status tp_config_read_any(const tp_config_text *text, const tp_config_field *spec, json_t *value,
                             const tp_place *place, void *target)
{
    (void)text, (void)spec, (void)value, (void)place, (void)target;
    return TP_OK;
}

tp_status tp_config_read_unused_bool(const tp_config_text *text, const tp_config_field *spec,
                                     json_t *value, const tp_place *place, void *target)
{
    bool unused;
    (void)target;
    return tp_config_read_bool(text, spec, value, place, &unused);
}
