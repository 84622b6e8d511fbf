/* What the ranks of a run find, made into few messages: one where something begins, whoever has it,
 * and one when it grows worse. */
#ifndef TP_SHIP_EPISODES_H
#define TP_SHIP_EPISODES_H

#include "base/buf.h"
#include "ship/notify.h"

/* Findings of one kind in one run belong together. */
#define TP_KIND_BROKEN 0x10000u /* incidents of values that are no numbers */
#define TP_KIND_OTHER 0x10001u  /* other incidents; smaller ones are rules, of alerts alone */

typedef enum tp_finding_state {
    TP_FINDING_BEGINS,
    TP_FINDING_GROWS,
    TP_FINDING_GOES_ON, /* not worth a message */
} tp_finding_state;

/* What one rank has found in one step. Texts are copied. */
typedef struct tp_finding {
    const char *job;
    uint32_t rank;
    uint32_t kind;
    tp_finding_state state;
    uint64_t step;
    int64_t wall_ns;
    const char *rule; /* static */
    const char *text;
} tp_finding;

/* As long as some rank has findings of this kind, with pauses of no more than
 * TP_INCIDENT_QUIET steps. */
typedef struct tp_episode {
    char job[64];
    uint32_t kind;
    uint32_t rank; /* that had it first */
    uint64_t first_step;
    uint64_t last_step;
} tp_episode;

typedef struct tp_pending {
    tp_message message;
    uint32_t kind;
    uint64_t seen_at; /* monotonic: other ranks may still bring theirs */
} tp_pending;

typedef struct tp_episodes {
    tp_buf episodes; /* tp_episode: the last one of each run and kind */
    tp_buf pending;  /* tp_pending: not sent yet, in their order */
} tp_episodes;

/* TP_ERR_NOMEM. */
tp_status tp_episodes_add(tp_episodes *episodes, const tp_finding *finding);

/* How many of the first pending messages were seen before that. */
uint32_t tp_episodes_ready(const tp_episodes *episodes, uint64_t seen_before);

/* Takes out the first messages: they have been sent. */
void tp_episodes_sent(tp_episodes *episodes, uint32_t count);

/* What a cursor keeps of a run's episodes, and back again. */
void tp_episodes_store(const tp_episodes *episodes, const char *job, tp_buf *blob);
tp_status tp_episodes_load(tp_episodes *episodes, const char *job, const tp_buf *blob);

void tp_episodes_free(tp_episodes *episodes);

#endif
