#include "base/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HELPERS (TP_POOL_THREADS - 1)
#define STACK_BYTES (1U << 20)
#define SPINS 300 /* about as long as it takes to sleep and be woken */

/* What a helper is about. It goes round: WATCHING or ASLEEP, POSTED by the one who has work, which
 * may take that back as long as the helper has not made it RUNNING. AWAITED is RUNNING with the
 * other one asleep. */
enum { WATCHING, ASLEEP, POSTED, RUNNING, AWAITED, ENDING };

typedef struct helper {
    _Alignas(64) atomic_uint state;
    pthread_t thread;
} helper;

/* All but `taken` and `closed` belong to the one who has set `taken`. */
static struct {
    atomic_bool taken;
    atomic_bool closed;
    atomic_uint size;
    bool watches_forks;
    void (*run)(void *context);
    void *context;
    helper helpers[HELPERS];
} pool;

static void sleep_while(atomic_uint *state, unsigned value)
{
    syscall(SYS_futex, state, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(atomic_uint *state)
{
    syscall(SYS_futex, state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static inline void rest(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static unsigned state_of(const helper *self)
{
    return atomic_load_explicit(&self->state, memory_order_acquire);
}

static bool change(helper *self, unsigned from, unsigned to)
{
    return atomic_compare_exchange_strong_explicit(&self->state, &from, to, memory_order_acq_rel,
                                                   memory_order_acquire);
}

/* Until there is work, or the end: POSTED or ENDING. */
static unsigned next_order(helper *self)
{
    for (unsigned spin = 0;; spin++) {
        const unsigned state = state_of(self);
        if (state == POSTED || state == ENDING) {
            return state;
        }
        if (spin < SPINS) {
            rest();
        } else if (state == ASLEEP || change(self, WATCHING, ASLEEP)) {
            sleep_while(&self->state, ASLEEP);
        }
    }
}

static void *help(void *argument)
{
    helper *self = argument;
    while (next_order(self) == POSTED) {
        if (!change(self, POSTED, RUNNING)) {
            continue; /* taken back */
        }
        pool.run(pool.context);
        if (atomic_exchange_explicit(&self->state, WATCHING, memory_order_acq_rel) == AWAITED) {
            wake(&self->state);
        }
    }
    return NULL;
}

/* The helpers have not come along. What was running in the parent goes on there. */
static void after_fork_in_child(void)
{
    if (atomic_load(&pool.size) > 0) {
        atomic_store(&pool.size, 0);
        atomic_store(&pool.closed, true);
    }
}

/* As many of the wanted helpers as can be had. */
static unsigned make_helpers(unsigned wanted)
{
    unsigned size = atomic_load_explicit(&pool.size, memory_order_relaxed);
    if (size >= wanted) {
        return wanted;
    }
    if (!pool.watches_forks && pthread_atfork(NULL, NULL, after_fork_in_child) != 0) {
        return size;
    }
    pool.watches_forks = true;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) {
        return size;
    }
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; size < wanted; size++) {
        helper *self = &pool.helpers[size];
        atomic_store(&self->state, WATCHING);
        if (pthread_create(&self->thread, &attributes, help, self) != 0) {
            break;
        }
        pthread_setname_np(self->thread, "tp-helper");
        atomic_store(&pool.size, size + 1);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return size;
}

static void post(helper *self)
{
    if (atomic_exchange_explicit(&self->state, POSTED, memory_order_acq_rel) == ASLEEP) {
        wake(&self->state);
    }
}

/* Takes back what was posted; waits when the helper has begun already. */
static void settle(helper *self)
{
    if (change(self, POSTED, WATCHING)) {
        return;
    }
    for (unsigned spin = 0;; spin++) {
        const unsigned state = state_of(self);
        if (state != RUNNING && state != AWAITED) {
            return;
        }
        if (spin < SPINS) {
            rest();
        } else if (state == AWAITED || change(self, RUNNING, AWAITED)) {
            sleep_while(&self->state, AWAITED);
        }
    }
}

void tp_pool_run(unsigned threads, void (*run)(void *context), void *context)
{
    threads = threads < TP_POOL_THREADS ? threads : TP_POOL_THREADS;
    if (threads < 2 || atomic_load_explicit(&pool.closed, memory_order_relaxed) ||
        atomic_exchange_explicit(&pool.taken, true, memory_order_acquire)) {
        run(context);
        return;
    }
    pool.run = run;
    pool.context = context;
    const unsigned helpers = make_helpers(threads - 1);
    for (unsigned i = 0; i < helpers; i++) {
        post(&pool.helpers[i]);
    }
    run(context);
    for (unsigned i = 0; i < helpers; i++) {
        settle(&pool.helpers[i]);
    }
    atomic_store_explicit(&pool.taken, false, memory_order_release);
}

unsigned tp_pool_size(void)
{
    return atomic_load(&pool.size);
}

/* At exit, or when the library is unloaded. Without waiting: a thread that has the helpers at exit,
 * perhaps this very one under a signal, keeps them. */
__attribute__((destructor)) static void end_helpers(void)
{
    atomic_store(&pool.closed, true);
    if (atomic_exchange(&pool.taken, true)) {
        return;
    }
    const unsigned size = atomic_load(&pool.size);
    for (unsigned i = 0; i < size; i++) {
        if (atomic_exchange(&pool.helpers[i].state, ENDING) == ASLEEP) {
            wake(&pool.helpers[i].state);
        }
        pthread_join(pool.helpers[i].thread, NULL);
    }
    atomic_store(&pool.size, 0);
}
