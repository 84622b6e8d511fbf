/* A few threads that help with one piece of work at a time.
 *
 * They are made when work first asks for them, and end at exit or when the library is unloaded.
 * They block all signals. A job that comes while another one has them runs alone, and so does every
 * job in a process that was forked after they had been made. */
#ifndef TP_BASE_POOL_H
#define TP_BASE_POOL_H

#define TP_POOL_THREADS 32 /* at most, the calling thread included */

/* Calls run(context) on this thread and, while that goes on, on up to threads - 1 others; returns
 * when all calls have returned. Others may come late or never: run takes piece after piece from
 * context until none is left. Any thread, no allocation once the threads exist. */
void tp_pool_run(unsigned threads, void (*run)(void *context), void *context);

/* How many threads have been made for this process, for tests. */
unsigned tp_pool_size(void);

#endif
