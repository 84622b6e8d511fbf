/* Reading one JSON value, with errors that say where it stands and what to write instead. */
#ifndef TP_CONFIG_VALUES_H
#define TP_CONFIG_VALUES_H

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"
#include "config/place.h"

/* The text being read, for positions in messages. */
typedef struct tp_config_text {
    const char *bytes;
    size_t size;
    const char *source; /* its name in messages */
    tp_error *error;    /* may be NULL */
} tp_config_text;

typedef struct tp_config_field tp_config_field;

/* Reads value, which stands at place, into target. */
typedef tp_status tp_config_reader(const tp_config_text *text, const tp_config_field *spec,
                                   json_t *value, const tp_place *place, void *target);

/* A member that an object may have. */
struct tp_config_field {
    const char *name;
    tp_config_reader *read;
    size_t offset; /* of the target in the object's struct */
    double min;    /* of numbers */
    double max;
    bool ignored; /* read, but nothing acts on it yet: a value that asks for something warns; */
    double idle;  /* this number asks for nothing */
};

/* Every member of the object by its field; one without a field is an error. */
tp_status tp_config_read_object(const tp_config_text *text, const tp_config_field *fields,
                                size_t count, json_t *value, const tp_place *place, void *target);

/* Into bool, uint32_t, uint64_t, double (not negative). A whole number may be written as a real,
 * as in 1e8. */
tp_config_reader tp_config_read_bool;
tp_config_reader tp_config_read_u32;
tp_config_reader tp_config_read_u64;
tp_config_reader tp_config_read_positive;

/* One of a few words: its index. */
tp_status tp_config_read_choice(const tp_config_text *text, const char *const *choices,
                                size_t count, json_t *value, const tp_place *place,
                                uint32_t *index);

/* Returns TP_ERR_CONFIG with the position of the value at place. */
tp_status tp_config_fail(const tp_config_text *text, const tp_place *place, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Logs "SOURCE:LINE: PATH: MESSAGE". */
void tp_config_warn(const tp_config_text *text, const tp_place *place, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
