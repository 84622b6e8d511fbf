/* Children of fork: what belongs to their parent has to be left alone. */
#ifndef TP_MONITOR_FORKS_H
#define TP_MONITOR_FORKS_H

#include <stdbool.h>

/* In what is open. */
typedef struct tp_fork_link {
    struct tp_fork_link *next;
    void (*abandon)(void *context); /* in the child: lets go of what may not be shared */
    void *context;
    unsigned generation;
} tp_fork_link;

/* From now on, until it is removed. */
void tp_forks_add(tp_fork_link *link);
void tp_forks_remove(tp_fork_link *link);

/* Takes note of the process that link belongs to. Before tp_forks_add. */
void tp_forks_begin(tp_fork_link *link);

/* Whether this process is a child of that one. One load. */
bool tp_forks_is_inherited(const tp_fork_link *link);

#endif
