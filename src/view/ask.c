#include "view/ask.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

const char *tp_ask_text(const tp_ask *ask, const char *name, const char *fallback)
{
    for (uint32_t i = 0; i < ask->count; i++) {
        if (strcmp(ask->params[i].name, name) == 0 && ask->params[i].value != NULL) {
            return ask->params[i].value;
        }
    }
    return fallback;
}

uint64_t tp_ask_number(const tp_ask *ask, const char *name, uint64_t fallback)
{
    const char *text = tp_ask_text(ask, name, "");
    char *end;
    const unsigned long long number = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && *end == '\0' ? number : fallback;
}

void tp_ask_steps(const tp_ask *ask, const tp_view_run *run, uint64_t *from, uint64_t *to)
{
    uint64_t first = 0;
    uint64_t last = 0;
    if (!tp_view_run_steps(run, &first, &last)) {
        first = 0;
        last = 0;
    }
    const char *begin = tp_ask_text(ask, "from", "");
    *from = tp_ask_number(ask, "from", first);
    *to = tp_ask_number(ask, "to", last);
    if (*begin == '-') {
        const uint64_t back = strtoull(begin + 1, NULL, 10);
        *from = back > last || last - back + 1 < first ? first : last - back + 1;
    }
    *to = *to > last ? last : *to < first ? first : *to;
    *from = *from < first ? first : *from > *to ? *to : *from;
}

uint32_t tp_ask_quantity(const tp_ask *ask)
{
    const char *name = tp_ask_text(ask, "q", "actv");
    for (uint32_t i = 1; tp_quantity_name(i) != NULL; i++) {
        if (strcmp(tp_quantity_name(i), name) == 0) {
            return i;
        }
    }
    return 0;
}

void tp_answer_wrong(tp_answer *answer, unsigned code, const char *sentence)
{
    answer->code = code;
    answer->type = "application/json";
    tp_buf_clear(&answer->body);
    tp_buf_printf(&answer->body, "{\"error\":");
    tp_text_put_json(&answer->body, sentence);
    tp_buf_printf(&answer->body, "}");
}

void tp_json_number(tp_buf *out, double value)
{
    if (isnan(value)) {
        tp_buf_printf(out, "\"NaN\"");
    } else if (isinf(value)) {
        tp_buf_printf(out, value > 0 ? "\"+Inf\"" : "\"-Inf\"");
    } else {
        tp_buf_printf(out, "%.17g", value);
    }
}

void tp_json_cell(tp_buf *out, tp_cell cell)
{
    if (tp_cell_is_none(cell)) {
        tp_buf_printf(out, "null");
    } else if (isfinite(cell.value)) {
        tp_buf_printf(out, "%.9g", (double)cell.value);
    } else {
        tp_json_number(out, (double)cell.value);
    }
}

bool tp_view_is_meant(const char *pattern, const tp_view_key *key)
{
    return strcmp(pattern, key->row) == 0 || strcmp(pattern, key->name) == 0 ||
           fnmatch(pattern, key->row, 0) == 0 || fnmatch(pattern, key->name, 0) == 0;
}

tp_status tp_view_read_step(const tp_view_rank *rank, const tp_view_column *column,
                            tp_reader **reader, tp_item *item)
{
    char *const *directories = (char *const *)(const void *)rank->directories.data;
    tp_status status = tp_reader_open(reader, directories[column->journal], NULL);
    if (status != TP_OK) {
        return status;
    }
    tp_reader_limit(*reader, column->step, column->step, false);
    if (column->position.offset > 0) {
        status = tp_reader_seek(*reader, column->position, NULL);
    }
    for (; status == TP_OK || status == TP_ERR_CORRUPT;) {
        status = tp_reader_next(*reader, item, NULL);
        if (status == TP_OK && item->type == TP_ITEM_BATCH) {
            return TP_OK;
        }
    }
    return status == TP_END ? TP_ERR_NOTFOUND : status;
}

typedef void (*answer_function)(const tp_view_run *run, const tp_ask *ask, tp_answer *answer);

static void answer_run(const tp_view_run *run, const tp_ask *ask, tp_answer *answer)
{
    (void)ask;
    tp_answer_run(run, answer);
}

static void answer_incidents(const tp_view_run *run, const tp_ask *ask, tp_answer *answer)
{
    (void)ask;
    tp_answer_incidents(run, answer);
}

static const struct {
    const char *path;
    answer_function answer;
} functions[] = {
    {"run", answer_run},
    {"timeline", tp_answer_timeline},
    {"series", tp_answer_series},
    {"search", tp_answer_search},
    {"map", tp_answer_map},
    {"cell", tp_answer_cell},
    {"worst", tp_answer_worst},
    {"incidents", answer_incidents},
    {"incident", tp_answer_incident},
    {"micro", tp_answer_micro},
};

/* Those that read journals for longer: without the lock. */
static const struct {
    const char *path;
    void (*answer)(tp_library *library, const tp_ask *ask, tp_answer *answer);
} readers[] = {
    {"compare", tp_answer_compare},
    {"communication", tp_answer_communication},
    {"histogram", tp_answer_histogram},
    {"difference", tp_answer_difference},
};

void tp_answer_ask(tp_library *library, const tp_ask *ask, tp_answer *answer)
{
    *answer = (tp_answer){.code = 200, .type = "application/json"};
    if (strcmp(ask->path, "runs") == 0) {
        tp_answer_runs(library, answer);
        return;
    }
    tp_view_run *run = tp_library_find(library, tp_ask_text(ask, "r", ""));
    if (run == NULL) {
        tp_answer_wrong(answer, 404, "no such run");
        return;
    }
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        if (strcmp(readers[i].path, ask->path) == 0) {
            readers[i].answer(library, ask, answer);
            if (answer->body.failed) {
                tp_answer_wrong(answer, 503, "no memory");
            }
            return;
        }
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        if (strcmp(functions[i].path, ask->path) == 0) {
            pthread_rwlock_rdlock(&run->lock);
            functions[i].answer(run, ask, answer);
            pthread_rwlock_unlock(&run->lock);
            if (answer->body.failed) {
                tp_answer_wrong(answer, 503, "no memory");
            }
            return;
        }
    }
    tp_answer_wrong(answer, 404, "no such question");
}
