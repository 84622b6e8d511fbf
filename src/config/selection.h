/* Which names a list of targets means. */
#ifndef TP_CONFIG_SELECTION_H
#define TP_CONFIG_SELECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "config/pattern.h"

typedef struct tp_texts {
    char **items;
    uint32_t count;
} tp_texts;

typedef struct tp_selection {
    tp_texts targets;      /* names and patterns */
    tp_pattern **patterns; /* as many; NULL for a name */
} tp_selection;

/* Whether the selection has this name: a target is a module or parameter, with all that is inside
 * it, or a pattern. Without targets it has every name. One thread at a time. */
bool tp_selection_has(const tp_selection *selection, const char *name);

void tp_selection_free(tp_selection *selection);

#endif
