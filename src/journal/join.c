/* Two segments that have lost their batches become one, so that what is left of a long run stays
 * small: names once, and spans that are wider. */
#include <string.h>

#include "journal/records.h"
#include "journal/thin.h"

#define SPANS_MAX 32u /* of a level that a joined segment keeps */

/* What stands in the place of the batches, and the level with the narrowest spans. TP_END: there
 * are none. */
static tp_status look(tp_thinning *t, uint32_t *narrowest, tp_error *error)
{
    uint32_t level = 0;
    uint64_t count;
    *narrowest = TP_INDEX_NO_LEVEL;
    tp_status status = tp_thinning_read(t, false, error);
    if (status == TP_OK) {
        status = t->frame.type == TP_FRAME_REMOVED
                     ? tp_frame_unpack(&t->frame, t->stored.data, t->unpacker, &t->payload)
                     : TP_END;
    }
    if (status == TP_OK) {
        status = tp_removed_get(&t->payload, &t->removed);
    }
    if (status != TP_OK) {
        return tp_thinning_fail(t, status, "what was removed of it can't be read", error);
    }
    while ((status = tp_thinning_read(t, false, error)) == TP_OK) {
        t->end_type = t->frame.type == TP_FRAME_CLOSE ? TP_FRAME_CLOSE : t->end_type;
        if (t->frame.type != TP_FRAME_OVERVIEW) {
            continue;
        }
        status = tp_thinning_overview(t, &level, &count, error);
        if (status != TP_OK) {
            return status;
        }
        if (*narrowest == TP_INDEX_NO_LEVEL || *narrowest == TP_OVERVIEW_WHOLE ||
            (level != TP_OVERVIEW_WHOLE && level < *narrowest)) {
            *narrowest = level;
        }
    }
    return status == TP_END && *narrowest != TP_INDEX_NO_LEVEL ? TP_OK : status;
}

/* Copies the frames of a type. */
static tp_status copy(tp_thinning *into, tp_thinning *from, uint32_t type, tp_error *error)
{
    tp_status status;
    from->at = from->header_size;
    while ((status = tp_thinning_read(from, false, error)) == TP_OK) {
        if (from->frame.type == type) {
            tp_thinning_keep(into, &from->frame, from->stored.data, 0);
        }
    }
    return status == TP_END ? TP_OK : status;
}

/* Takes in the overview of a level. */
static tp_status add(tp_thinning *into, tp_thinning *from, uint32_t level, tp_error *error)
{
    tp_status status;
    from->at = from->header_size;
    while ((status = tp_thinning_read(from, false, error)) == TP_OK) {
        uint32_t here = 0;
        uint64_t count = 0;
        if (from->frame.type != TP_FRAME_OVERVIEW) {
            continue;
        }
        status = tp_thinning_overview(from, &here, &count, error);
        if (status != TP_OK) {
            return status;
        }
        if (here == level) {
            tp_overviews_add_rows(&into->overviews, level,
                                  (const tp_overview *)(const void *)from->records.data, count);
        }
    }
    return status == TP_END ? TP_OK : status;
}

/* The levels that are kept: the whole, and those with no wider and no more spans than there may be.
 * Levels below the narrowest of either segment aren't known of the other's steps. */
static uint32_t choose_levels(uint64_t batches, uint32_t a, uint32_t b)
{
    uint32_t levels = 1u << TP_OVERVIEW_WHOLE;
    const uint32_t from = a == TP_OVERVIEW_WHOLE || b == TP_OVERVIEW_WHOLE ? TP_OVERVIEW_LEVELS + 1
                          : a > b                                          ? a
                                                                           : b;
    for (uint32_t level = from; level <= TP_OVERVIEW_LEVELS; level++) {
        if (batches / tp_overview_width(level) < SPANS_MAX) {
            levels |= 1u << level;
        }
    }
    return levels;
}

static bool are_of_one(const tp_run_info *a, const tp_run_info *b)
{
    return strcmp(a->run_id, b->run_id) == 0 && a->rank == b->rank && a->attempt == b->attempt;
}

static tp_status join(tp_thinning *first, tp_thinning *second, tp_error *error)
{
    uint32_t narrowest[2];
    tp_status status = look(first, &narrowest[0], error);
    if (status == TP_OK) {
        status = look(second, &narrowest[1], error);
    }
    if (status != TP_OK) {
        return status;
    }
    tp_removed *gone = &second->removed;
    const tp_removed *more = &first->removed;
    gone->first_step = more->first_step < gone->first_step ? more->first_step : gone->first_step;
    gone->last_step = more->last_step > gone->last_step ? more->last_step : gone->last_step;
    gone->batches += more->batches;
    status = tp_thinning_put_front(second, error);
    /* Each segment begins with all names known by then: those of the second are those of both. */
    static const uint32_t types[] = {TP_FRAME_SETTINGS, TP_FRAME_DEFINITIONS, TP_FRAME_ALERTS};
    for (size_t i = 0; i < sizeof types / sizeof types[0] && status == TP_OK; i++) {
        status = types[i] == TP_FRAME_ALERTS ? copy(second, first, types[i], error) : TP_OK;
        status = status == TP_OK ? copy(second, second, types[i], error) : status;
    }
    if (status == TP_OK) {
        status = add(second, first, narrowest[0], error);
    }
    if (status == TP_OK) {
        status = add(second, second, narrowest[1], error);
    }
    if (status != TP_OK) {
        return status;
    }
    second->overviews.steps = gone->batches;
    return tp_thinning_finish(second, choose_levels(gone->batches, narrowest[0], narrowest[1]),
                              error);
}

tp_status tp_segment_join(const char *folder, uint64_t first, uint64_t second, tp_error *error)
{
    tp_thinning a;
    tp_thinning b;
    tp_status status = tp_thinning_open(&a, folder, first, error);
    const tp_status other = tp_thinning_open(&b, folder, second, error);
    status = status == TP_OK ? other : status;
    if (status == TP_OK) {
        status = are_of_one(&a.run, &b.run) ? join(&a, &b, error) : TP_END;
    }
    if (status == TP_OK) {
        /* Killed before this, the process leaves both: tp_retention_apply sees that the second
         * speaks of the first one's steps. */
        tp_file_remove(a.path);
    }
    tp_thinning_close(&a);
    tp_thinning_close(&b);
    return status;
}
