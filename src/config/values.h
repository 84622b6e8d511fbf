/* Reading one JSON value, with errors that say where it stands and what to write instead. */
#ifndef TP_CONFIG_VALUES_H
#define TP_CONFIG_VALUES_H

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"
#include "config/place.h"

/* The text being read, for positions in messages. */
typedef struct tp_config_text {
    const char *bytes;    /* JSON */
    const char *original; /* as written: the same offsets, but other characters (config/slips.h) */
    size_t size;
    const char *source; /* its name in messages */
    tp_error *error;    /* may be NULL */
} tp_config_text;

typedef struct tp_config_field tp_config_field;

/* The members that an object may have. */
typedef struct tp_config_members {
    const tp_config_field *fields;
    size_t count;
} tp_config_members;

/* Reads value, which stands at place, into target. */
typedef tp_status tp_config_reader(const tp_config_text *text, const tp_config_field *spec,
                                   json_t *value, const tp_place *place, void *target);

typedef enum tp_config_nest {
    TP_NEST_NONE,
    TP_NEST_OBJECT, /* the value is an object of these members, */
    TP_NEST_MAP,    /* or an object of such objects with names of the user's, */
    TP_NEST_LIST    /* or a list of such objects */
} tp_config_nest;

/* One option: what the parser, the JSON Schema, the documentation's table and `tensorprobe check`
 * know of it. */
struct tp_config_field {
    const char *name;
    tp_config_reader *read;
    size_t offset;              /* of the target in the object's struct */
    double min;                 /* of numbers */
    double max;                 /* of integers */
    const char *const *choices; /* of words, NULL behind the last */
    tp_config_nest nest;
    bool is_switch; /* turns a measurement on */
    const tp_config_members *members;
    /* Read, but nothing acts on it yet: a value other than the default warns with these words,
     * which say what happens instead. */
    const char *ignored;
    const char *type;      /* what to write, for people; NULL: as the reader has it */
    const char *schema;    /* JSON Schema of the value; NULL: as the reader has it */
    const char *fallback;  /* the default as JSON, and where watch() has another one, that; NULL: */
    const char *for_watch; /* none, or not one value */
    const char *does;
};

/* Every member of the object by its field; one without a field is an error. */
tp_status tp_config_read_object(const tp_config_text *text, const tp_config_members *members,
                                json_t *value, const tp_place *place, void *target);

/* The same with the field's own members. */
tp_config_reader tp_config_read_members;

/* Into bool, uint32_t, uint64_t, double (not negative). A whole number may be written as a real,
 * as in 1e8. */
tp_config_reader tp_config_read_bool;
tp_config_reader tp_config_read_u32;
tp_config_reader tp_config_read_u64;
tp_config_reader tp_config_read_positive;

/* Into char *, and tp_texts: copies that are the target's to free. */
tp_config_reader tp_config_read_text;
tp_config_reader tp_config_read_texts;

/* Into uint32_t: the index of one of the field's choices. */
tp_config_reader tp_config_read_word;

/* Returns TP_ERR_CONFIG with the position of the value at place. */
tp_status tp_config_fail(const tp_config_text *text, const tp_place *place, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Logs "SOURCE:LINE: PATH: MESSAGE". */
void tp_config_warn(const tp_config_text *text, const tp_place *place, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
