/* The only place that asks for heap memory, so that tests can make any request fail. */
#ifndef TP_BASE_MEM_H
#define TP_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

/* All return NULL when memory can't be had; tp_free accepts NULL. Any thread. */
void *tp_alloc(size_t size);
void *tp_calloc(size_t count, size_t size);
void *tp_realloc(void *memory, size_t size);
char *tp_strdup(const char *text);
void tp_free(void *memory);

/* Tests only: the n-th request from now on fails (1 is the next one), and every one after it;
 * 0 ends that. Returns whether one has failed since it was called last. */
bool tp_mem_fail_after(unsigned long n);

#endif
