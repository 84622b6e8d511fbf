#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Requests left before they begin to fail, plus one; 0 means never. */
static atomic_ulong fail_countdown;

void tp_mem_fail_after(unsigned long n)
{
    atomic_store(&fail_countdown, n == 0 ? 0 : n + 1);
}

static int must_fail(void)
{
    unsigned long left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
    if (left == 0) {
        return 0;
    }
    if (left > 1) {
        left = atomic_fetch_sub(&fail_countdown, 1) - 1;
    }
    return left <= 1;
}

void *tp_alloc(size_t size)
{
    return must_fail() ? NULL : malloc(size == 0 ? 1 : size);
}

void *tp_calloc(size_t count, size_t size)
{
    return must_fail() ? NULL : calloc(count == 0 ? 1 : count, size == 0 ? 1 : size);
}

void *tp_realloc(void *memory, size_t size)
{
    return must_fail() ? NULL : realloc(memory, size == 0 ? 1 : size);
}

char *tp_strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = tp_alloc(size);
    if (copy != NULL) {
        memcpy(copy, text, size);
    }
    return copy;
}

void tp_free(void *memory)
{
    free(memory);
}
