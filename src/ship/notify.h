/* Telling people: a database, a mail, a program or a webhook. */
#ifndef TP_SHIP_NOTIFY_H
#define TP_SHIP_NOTIFY_H

#include "config/config.h"

typedef struct tp_message {
    char job[64]; /* the run's id */
    const char *rule;
    uint64_t step;
    int64_t wall_ns; /* of the step's end */
    uint32_t rank;   /* the first that had it */
    uint32_t ranks;  /* how many had it */
    char *text;
} tp_message;

typedef struct tp_notifier tp_notifier;

/* Reads secrets; speaks to nobody yet. TP_ERR_UNSUPPORTED: built without a library. inform is
 * borrowed until close. */
tp_status tp_notifier_open(tp_notifier **out, const tp_inform_config *inform, tp_error *error);

/* All of them or, after an error, at least those before *sent not again. */
tp_status tp_notifier_send(tp_notifier *notifier, const tp_message *messages, uint32_t count,
                           uint32_t *sent, tp_error *error);

/* How long nobody is told anything after having been told something. */
uint64_t tp_notifier_pause(const tp_notifier *notifier);

/* To whom, without secrets. */
const char *tp_notifier_name(const tp_notifier *notifier);

void tp_notifier_close(tp_notifier **notifier);

#endif
