#include "tools/names.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "base/map.h"
#include "journal/select.h"
#include "tensorprobe/reader.h"

#define SHOWN 3            /* names that a message proposes */
#define LENGTH 256         /* of a name, as far as its likeness is looked at */
#define RANKS_SHOWN 16     /* that a message lists */
#define LOST UINT32_MAX    /* more unlike than anything */
#define MOST_NAMES 1000000 /* that are kept to be proposed */

/* All names and rows that there are, each once, one behind the other. */
typedef struct catalogue {
    tp_map known;
    tp_buf texts;
    tp_buf missing; /* const char *: names that nothing has matched yet */
    tp_buf ranks;   /* uint32_t: of the journals */
} catalogue;

static tp_status add_text(catalogue *all, const char *text)
{
    uint32_t unused;
    if (all->known.count >= MOST_NAMES ||
        tp_map_get(&all->known, text, strlen(text), &unused) == TP_OK) {
        return TP_OK;
    }
    tp_buf_put(&all->texts, text, strlen(text) + 1);
    return all->texts.failed ? TP_ERR_NOMEM : tp_map_set(&all->known, text, strlen(text), 0);
}

static tp_status add_key(catalogue *all, const tp_key *key)
{
    char row[1024];
    const char **missing = (const char **)(void *)all->missing.data;
    size_t left = 0;
    for (size_t i = 0; i < all->missing.size / sizeof *missing; i++) {
        tp_selection one = tp_selection_all();
        one.names = &missing[i];
        one.name_count = 1;
        if (!tp_selection_has_key(&one, key)) {
            missing[left++] = missing[i];
        }
    }
    all->missing.size = left * sizeof *missing;
    tp_row_name(key, 0, row, sizeof row);
    const tp_status status = add_text(all, key->name);
    return status == TP_OK ? add_text(all, row) : status;
}

/* Reads its names, as long as one of those asked for is missing. Trouble with the journal is told
 * by whoever reads it for its values. */
static tp_status read_journal(catalogue *all, const char *directory)
{
    tp_reader *reader = NULL;
    tp_item item;
    tp_status status = TP_OK;
    uint32_t count = 0;
    uint64_t segment = 0;
    if (tp_reader_open(&reader, directory, NULL) != TP_OK) {
        return TP_OK;
    }
    tp_buf_put_u32(&all->ranks, tp_reader_run(reader)->rank);
    tp_reader_limit(reader, 0, UINT64_MAX, true);
    while (status == TP_OK && all->missing.size > 0) {
        const tp_status next = tp_reader_next(reader, &item, NULL);
        if (next != TP_OK && next != TP_ERR_CORRUPT) {
            break;
        }
        if (next == TP_ERR_CORRUPT ||
            (tp_reader_key_count(reader) == count && item.position.segment == segment)) {
            continue;
        }
        count = tp_reader_key_count(reader);
        segment = item.position.segment;
        uint64_t place = 0;
        uint32_t id;
        for (const tp_key *key;
             status == TP_OK && (key = tp_reader_next_key(reader, &place, &id)) != NULL;) {
            status = add_key(all, key);
        }
    }
    tp_reader_close(&reader);
    return all->ranks.failed ? TP_ERR_NOMEM : status;
}

/* Whether name is what stands behind a dot of text. */
static bool is_end_of(const char *name, const char *text)
{
    for (const char *dot = strchr(text, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        if (strcmp(dot + 1, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Characters to be changed to make name what text is, or what stands behind one of its dots. */
static uint32_t unlikeness(const char *name, const char *text)
{
    uint32_t before[LENGTH + 1];
    uint32_t now[LENGTH + 1];
    const size_t columns = strlen(text);
    if (columns > LENGTH || text[0] == '\0' || text[0] == '.') { /* the model itself has no name */
        return LOST;
    }
    for (size_t k = 0; k <= columns; k++) {
        before[k] = k == 0 || text[k - 1] == '.' ? 0 : before[k - 1] + 1;
    }
    for (size_t i = 0; name[i] != '\0'; i++) {
        now[0] = before[0] + 1;
        for (size_t k = 1; k <= columns; k++) {
            uint32_t least = before[k - 1] + (name[i] != text[k - 1]);
            least = before[k] + 1 < least ? before[k] + 1 : least;
            now[k] = now[k - 1] + 1 < least ? now[k - 1] + 1 : least;
        }
        memcpy(before, now, (columns + 1) * sizeof now[0]);
    }
    return before[columns];
}

static tp_status fail_with(tp_buf *message, tp_error *error)
{
    const tp_status status =
        message->failed ? tp_fail(error, TP_ERR_NOMEM, "no memory")
                        : tp_fail(error, TP_ERR_NOTFOUND, "%s", (const char *)message->data);
    tp_buf_free(message);
    return status;
}

static tp_status fail_unknown(const catalogue *all, const char *name, tp_error *error)
{
    const char *nearest[SHOWN] = {NULL};
    uint32_t distances[SHOWN];
    tp_buf message = TP_BUF_INIT;
    const char *end = (const char *)all->texts.data + all->texts.size;
    for (const char *text = (const char *)all->texts.data; text < end; text += strlen(text) + 1) {
        uint32_t distance = unlikeness(name, text);
        for (size_t i = 0; distance != LOST && i < SHOWN; i++) {
            if (nearest[i] == NULL || distance < distances[i]) {
                memmove(nearest + i + 1, nearest + i, (SHOWN - 1 - i) * sizeof *nearest);
                memmove(distances + i + 1, distances + i, (SHOWN - 1 - i) * sizeof *distances);
                nearest[i] = text;
                distances[i] = distance;
                break;
            }
        }
    }
    tp_buf_printf(&message, "no name or row matches '%.100s'", name);
    for (size_t i = 0; i < SHOWN && nearest[i] != NULL; i++) {
        tp_buf_printf(&message, "%s'%.100s'", i == 0 ? "; nearest are " : ", ", nearest[i]);
    }
    return fail_with(&message, error);
}

static tp_status fail_ambiguous(const catalogue *all, const char *name, tp_error *error)
{
    tp_buf message = TP_BUF_INIT;
    const char *end = (const char *)all->texts.data + all->texts.size;
    size_t count = 0;
    tp_buf_printf(&message, "'%.100s' is the end of", name);
    for (const char *text = (const char *)all->texts.data; text < end; text += strlen(text) + 1) {
        if (is_end_of(name, text) && count++ < SHOWN) {
            tp_buf_printf(&message, "%s '%.100s'", count > 1 ? "," : "", text);
        }
    }
    tp_buf_printf(&message, "%s: write one of them, or '*.%.100s' for all",
                  count > SHOWN ? " …" : "", name);
    return fail_with(&message, error);
}

/* The place of a name among all texts that it is the end of; *count: how many. */
static const char *find_end(const catalogue *all, const char *name, size_t *count)
{
    const char *found = NULL;
    const char *end = (const char *)all->texts.data + all->texts.size;
    *count = 0;
    for (const char *text = (const char *)all->texts.data; text < end; text += strlen(text) + 1) {
        if (is_end_of(name, text)) {
            found = text;
            (*count)++;
        }
    }
    return found;
}

static tp_status complete_names(catalogue *all, tp_buf *names, tp_error *error)
{
    const char **given = (const char **)(void *)names->data;
    const char *const *missing = (const char *const *)(const void *)all->missing.data;
    for (size_t i = 0; i < all->missing.size / sizeof *missing; i++) {
        size_t count;
        const char *found = find_end(all, missing[i], &count);
        if (count != 1) {
            return count == 0 ? fail_unknown(all, missing[i], error)
                              : fail_ambiguous(all, missing[i], error);
        }
        for (size_t k = 0; k < names->size / sizeof *given; k++) {
            given[k] = given[k] == missing[i] ? found : given[k];
        }
    }
    return TP_OK;
}

static tp_status check_ranks(const catalogue *all, const tp_buf *ranks, tp_error *error)
{
    const uint32_t *wanted = (const uint32_t *)(const void *)ranks->data;
    const uint32_t *there = (const uint32_t *)(const void *)all->ranks.data;
    const size_t count = all->ranks.size / sizeof *there;
    for (size_t i = 0; i < ranks->size / sizeof *wanted; i++) {
        bool found = false;
        for (size_t k = 0; !found && k < count; k++) {
            found = there[k] == wanted[i];
        }
        if (!found) {
            tp_buf message = TP_BUF_INIT;
            tp_buf_printf(&message, "no journal is of rank %" PRIu32 "; there are", wanted[i]);
            for (size_t k = 0; k < count && k < RANKS_SHOWN; k++) {
                tp_buf_printf(&message, "%s %" PRIu32, k > 0 ? "," : "", there[k]);
            }
            tp_buf_printf(&message, "%s", count > RANKS_SHOWN ? " …" : "");
            return fail_with(&message, error);
        }
    }
    return TP_OK;
}

tp_status tp_names_resolve(const tp_journals *journals, tp_buf *names, const tp_buf *ranks,
                           tp_buf *texts, tp_error *error)
{
    catalogue all = {.known = TP_MAP_INIT};
    tp_status status = TP_OK;
    tp_buf_put_buf(&all.missing, names);
    if (ranks->failed || all.missing.failed) {
        status = TP_ERR_NOMEM;
    }
    for (uint32_t i = 0;
         status == TP_OK && (all.missing.size > 0 || ranks->size > 0) && i < journals->count; i++) {
        status = read_journal(&all, journals->directories[i]);
    }
    if (status != TP_OK) {
        tp_fail(error, status, "no memory");
    } else {
        status = check_ranks(&all, ranks, error);
    }
    if (status == TP_OK) {
        status = complete_names(&all, names, error);
    }
    *texts = all.texts; /* names may lie there now */
    tp_map_free(&all.known);
    tp_buf_free(&all.missing);
    tp_buf_free(&all.ranks);
    return status;
}
