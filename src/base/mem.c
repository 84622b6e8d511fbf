#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

#include "base/countdown.h"

static tp_countdown countdown; /* of requests */

bool tp_mem_fail_after(unsigned long n)
{
    return tp_countdown_start(&countdown, n);
}

void *tp_alloc(size_t size)
{
    return tp_countdown_is_over(&countdown) ? NULL : malloc(size == 0 ? 1 : size);
}

void *tp_calloc(size_t count, size_t size)
{
    return tp_countdown_is_over(&countdown) ? NULL
                                            : calloc(count == 0 ? 1 : count, size == 0 ? 1 : size);
}

void *tp_realloc(void *memory, size_t size)
{
    return tp_countdown_is_over(&countdown) ? NULL : realloc(memory, size == 0 ? 1 : size);
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
