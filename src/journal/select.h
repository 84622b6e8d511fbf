/* Which keys and records somebody wants to see. */
#ifndef TP_JOURNAL_SELECT_H
#define TP_JOURNAL_SELECT_H

#include <stdbool.h>

#include "tensorprobe/record.h"

#define TP_ANY_SLOT (-2)

typedef struct tp_selection {
    const char *const *names; /* patterns with *, ? and [abc], of names or row names; 0: all */
    uint32_t name_count;
    bool exact;          /* names are names, not patterns, and row names don't count */
    uint32_t quantities; /* bits 1 << TP_ACTIVATION …; 0: all */
    uint32_t roles;      /* bits 1 << TP_ROLE_…; 0: all */
    int32_t slot;        /* TP_ANY_SLOT: all */
    int64_t call;        /* -1: all */
    int64_t micro_step;  /* likewise */
} tp_selection;

/* Is the rank in this list, which is of all when it is empty? */
bool tp_list_has_rank(const uint32_t *ranks, uint32_t count, uint32_t rank);

/* Everything. */
tp_selection tp_selection_all(void);

bool tp_selection_has_key(const tp_selection *selection, const tp_key *key);

/* Its key is judged by tp_selection_has_key. */
bool tp_selection_has_record(const tp_selection *selection, const tp_record *record);

/* Adds the bit of a word. TP_ERR_ARGUMENT, with a message that lists the words there are. */
tp_status tp_selection_add_quantity(tp_selection *selection, const char *word, tp_error *error);
tp_status tp_selection_add_role(tp_selection *selection, const char *word, tp_error *error);

#endif
