/* The journals that one process delivers: which there are, and which of them are still written. */
#ifndef TP_SHIP_MEMBERS_H
#define TP_SHIP_MEMBERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* What a process is to deliver. */
typedef struct tp_ship_scope {
    const char *directory;
    const char *run_id; /* of this run alone; NULL: of all */
    uint32_t first_rank;
    uint32_t last_rank; /* of these ranks alone */
    uint32_t expected;  /* so many journals will be there; 0: not known */
    bool follow;        /* until nobody writes them any more; else what is there now */
    int trainer;        /* file descriptor of the process that started this one; -1: none */
} tp_ship_scope;

typedef struct tp_member {
    char *directory;
    bool is_mine;    /* in the scope */
    bool is_done;    /* delivered to its end, which nobody goes on from */
    bool has_failed; /* its journal can't be read */
    uint32_t failures;
    void *own; /* of who delivers it */
} tp_member;

typedef struct tp_members {
    const tp_ship_scope *scope;
    tp_member *list;
    uint32_t count;
    uint64_t next_look; /* monotonic */
    uint64_t ended_at;  /* when the trainer's end was seen; 0: it lives */
} tp_members;

/* Looks for journals that are new, now and then. */
tp_status tp_members_look(tp_members *members, tp_error *error);

/* Whether a process has the run's lock: without, what is there is all. */
bool tp_member_is_written(const tp_member *member);

/* Whether there is nothing left to wait for. */
bool tp_members_are_done(tp_members *members);

/* Whether no journal is written any more, as far as is known: nothing new will come. */
bool tp_members_have_ended(tp_members *members);

void tp_members_free(tp_members *members);

#endif
