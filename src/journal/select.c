#include "journal/select.h"

#include <fnmatch.h>
#include <string.h>

#include "base/buf.h"
#include "base/error.h"

tp_selection tp_selection_all(void)
{
    return (tp_selection){.slot = TP_ANY_SLOT, .call = -1, .micro_step = -1};
}

/* A name is found by itself, whatever characters it has. */
static bool matches(const char *pattern, const char *name)
{
    return strcmp(pattern, name) == 0 || fnmatch(pattern, name, 0) == 0;
}

static bool has_name(const tp_selection *selection, const tp_key *key)
{
    char row[1024];
    bool found = selection->name_count == 0;
    if (!found && !selection->exact) {
        tp_row_name(key, 0, row, sizeof row);
    }
    for (uint32_t i = 0; !found && i < selection->name_count; i++) {
        const char *name = selection->names[i];
        found = selection->exact ? strcmp(name, key->name) == 0
                                 : matches(name, key->name) || matches(name, row);
    }
    return found;
}

static bool has_bit(uint32_t bits, uint32_t number)
{
    return bits == 0 || (number < 32 && (bits >> number & 1) != 0);
}

bool tp_selection_has_key(const tp_selection *selection, const tp_key *key)
{
    return has_bit(selection->quantities, key->quantity) && has_bit(selection->roles, key->role) &&
           (selection->slot == TP_ANY_SLOT || selection->slot == key->slot) &&
           has_name(selection, key);
}

bool tp_selection_has_record(const tp_selection *selection, const tp_record *record)
{
    return (selection->call < 0 || record->call == selection->call) &&
           (selection->micro_step < 0 || record->micro_step == selection->micro_step);
}

/* Sets the bit of the number from `first` on whose name is word. */
static tp_status add(uint32_t *bits, uint32_t first, const char *(*name_of)(uint32_t),
                     const char *what, const char *word, tp_error *error)
{
    tp_buf words = TP_BUF_INIT;
    for (uint32_t i = first; name_of(i) != NULL; i++) {
        if (strcmp(name_of(i), word) == 0) {
            tp_buf_free(&words);
            *bits |= UINT32_C(1) << i;
            return TP_OK;
        }
        tp_buf_printf(&words, "%s%s", words.size > 0 ? ", " : "", name_of(i));
    }
    tp_fail(error, TP_ERR_ARGUMENT, "no such %s: '%.100s'; write one of %s", what, word,
            words.failed ? "those there are" : (const char *)words.data);
    tp_buf_free(&words);
    return TP_ERR_ARGUMENT;
}

tp_status tp_selection_add_quantity(tp_selection *selection, const char *word, tp_error *error)
{
    return add(&selection->quantities, TP_ACTIVATION, tp_quantity_name, "quantity", word, error);
}

tp_status tp_selection_add_role(tp_selection *selection, const char *word, tp_error *error)
{
    return add(&selection->roles, TP_ROLE_NONE, tp_role_name, "role", word, error);
}

bool tp_list_has_rank(const uint32_t *ranks, uint32_t count, uint32_t rank)
{
    bool found = count == 0;
    for (uint32_t i = 0; !found && i < count; i++) {
        found = ranks[i] == rank;
    }
    return found;
}
