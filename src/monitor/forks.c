#include "monitor/forks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

/* A forked child counts as the next generation: monitors of an earlier one are its parent's. */
static atomic_uint generation;
static tp_fork_link *links;
static pthread_mutex_t links_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    pthread_mutex_lock(&links_lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&links_lock);
}

/* The child has one thread and a copy of everything, in whatever state the other threads left it:
 * it lets go of the lock file and touches nothing else, ever. */
static void after_fork_in_child(void)
{
    atomic_fetch_add(&generation, 1);
    for (tp_fork_link *link = links; link != NULL; link = link->next) {
        link->abandon(link->context);
    }
    links = NULL;
    pthread_mutex_unlock(&links_lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void tp_forks_begin(tp_fork_link *link)
{
    pthread_once(&once, watch_forks);
    link->generation = atomic_load(&generation);
}

bool tp_forks_is_inherited(const tp_fork_link *link)
{
    return link->generation != atomic_load_explicit(&generation, memory_order_relaxed);
}

void tp_forks_add(tp_fork_link *link)
{
    pthread_mutex_lock(&links_lock);
    link->next = links;
    links = link;
    pthread_mutex_unlock(&links_lock);
}

void tp_forks_remove(tp_fork_link *link)
{
    pthread_mutex_lock(&links_lock);
    for (tp_fork_link **place = &links; *place != NULL; place = &(*place)->next) {
        if (*place == link) {
            *place = link->next;
            break;
        }
    }
    pthread_mutex_unlock(&links_lock);
}
