/* Alerts of all ranks, made into few messages: one where a rule begins to fire, one after 10, 100 …
 * steps in a row. */
#ifndef TP_SHIP_EPISODES_H
#define TP_SHIP_EPISODES_H

#include "base/buf.h"
#include "ship/notify.h"

/* Steps in a row in which a rule fires, on whatever rank. */
typedef struct tp_episode {
    char job[64];
    uint32_t rule;
    uint64_t first_step;
    uint64_t last_step;
} tp_episode;

typedef struct tp_pending {
    tp_message message;
    uint32_t rule;
    uint64_t seen_at; /* monotonic: other ranks may still bring theirs */
} tp_pending;

typedef struct tp_episodes {
    tp_buf episodes; /* tp_episode: the last one of each run and rule */
    tp_buf pending;  /* tp_pending: not sent yet, in their order */
} tp_episodes;

/* What is known of an alert. */
typedef struct tp_alert_place {
    const char *job;
    uint32_t rank;
    uint64_t step;
    int64_t wall_ns;
    const char *row; /* name of the series */
    const char *quantity;
} tp_alert_place;

/* The first alert of its rule in this step of this rank. TP_ERR_NOMEM. */
tp_status tp_episodes_add(tp_episodes *episodes, const tp_alert *alert,
                          const tp_alert_place *place);

/* Pending messages that are older than this; all of those before them are, too. */
uint32_t tp_episodes_ready(const tp_episodes *episodes, uint64_t seen_before);

/* Takes out the first messages: they have been sent. */
void tp_episodes_sent(tp_episodes *episodes, uint32_t count);

/* What a cursor keeps of a run's episodes, and back again. */
void tp_episodes_store(const tp_episodes *episodes, const char *job, tp_buf *blob);
tp_status tp_episodes_load(tp_episodes *episodes, const char *job, const tp_buf *blob);

void tp_episodes_free(tp_episodes *episodes);

#endif
