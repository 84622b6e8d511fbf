#include "config/selection.h"

#include <string.h>

#include "base/mem.h"

bool tp_selection_has(const tp_selection *selection, const char *name)
{
    for (uint32_t i = 0; i < selection->targets.count; i++) {
        const char *target = selection->targets.items[i];
        size_t length = strlen(target);
        if (selection->patterns[i] != NULL) {
            if (tp_pattern_matches(selection->patterns[i], name, true)) {
                return true;
            }
        } else if (strncmp(name, target, length) == 0 &&
                   (length == 0 || name[length] == '\0' || name[length] == '.')) {
            return true;
        }
    }
    return selection->targets.count == 0;
}

void tp_selection_free(tp_selection *selection)
{
    for (uint32_t i = 0; i < selection->targets.count; i++) {
        tp_free(selection->targets.items[i]);
        tp_pattern_free(selection->patterns != NULL ? selection->patterns[i] : NULL);
    }
    tp_free(selection->targets.items);
    tp_free(selection->patterns);
    *selection = (tp_selection){0};
}
