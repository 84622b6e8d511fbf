/* Two runs beside each other. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/text.h"
#include "view/ask.h"
#include "view/parting.h"

#define SHOWN 30

/* The journals of a run, as they are found; the texts stay the run's. */
static tp_status journals_of(tp_view_run *run, tp_buf *directories, tp_journals *out)
{
    pthread_rwlock_rdlock(&run->lock);
    for (uint32_t i = 0; i < tp_view_rank_count(run); i++) {
        const tp_view_rank *rank = tp_view_rank_at(run, i);
        tp_buf_put_buf(directories, &rank->directories);
    }
    pthread_rwlock_unlock(&run->lock);
    out->directories = (char **)(void *)directories->data;
    out->count = (uint32_t)(directories->size / sizeof(char *));
    return directories->failed ? TP_ERR_NOMEM : TP_OK;
}

/* -1: of parts of several. */
static int64_t rank_of(uint32_t rank)
{
    return rank == TP_ALL_RANKS ? -1 : (int64_t)rank;
}

static void put_difference(tp_buf *out, const tp_difference *one)
{
    tp_buf_printf(out, "{\"row\":");
    tp_text_put_json(out, one->row);
    tp_buf_printf(out,
                  ",\"q\":\"%s\",\"statistic\":\"%s\",\"rank_a\":%" PRId64 ",\"rank_b\":%" PRId64
                  ",\"micro_step\":%" PRIu32 ",\"dtype\":\"%s\",\"a\":",
                  tp_quantity_name(one->quantity) != NULL ? tp_quantity_name(one->quantity) : "?",
                  one->statistic, rank_of(one->rank_a), rank_of(one->rank_b), one->micro_step,
                  tp_dtype_name(one->dtype_a) != NULL ? tp_dtype_name(one->dtype_a) : "?");
    tp_json_number(out, one->a);
    tp_buf_printf(out, ",\"b\":");
    tp_json_number(out, one->b);
    tp_buf_printf(out, ",\"difference\":");
    tp_json_number(out, one->difference);
    tp_buf_printf(out, ",\"tolerance\":");
    tp_json_number(out, one->tolerance);
    tp_buf_printf(out, "}");
}

void tp_answer_compare(tp_library *library, const tp_ask *ask, tp_answer *answer)
{
    tp_view_run *a = tp_library_find(library, tp_ask_text(ask, "r", ""));
    tp_view_run *b = tp_library_find(library, tp_ask_text(ask, "r2", ""));
    tp_parting_options options = tp_parting_defaults();
    tp_buf of_a = TP_BUF_INIT;
    tp_buf of_b = TP_BUF_INIT;
    tp_journals journals_a;
    tp_journals journals_b;
    tp_parting found = {0};
    tp_error error = {0};
    const char *tolerance = tp_ask_text(ask, "tolerance", "");
    const uint64_t rank_a = tp_ask_number(ask, "rank", UINT64_MAX);
    const uint64_t rank_b = tp_ask_number(ask, "rank2", UINT64_MAX);
    if (a == NULL || b == NULL) {
        tp_answer_wrong(answer, 404, "no such run");
        return;
    }
    if (tolerance[0] != '\0') {
        options.tolerance = (double)tp_ask_number(ask, "tolerance", 0);
    }
    if (rank_a <= UINT32_MAX && rank_b <= UINT32_MAX) {
        options.rank_a = (int64_t)rank_a;
        options.rank_b = (int64_t)rank_b;
    }
    if (journals_of(a, &of_a, &journals_a) != TP_OK ||
        journals_of(b, &of_b, &journals_b) != TP_OK) {
        tp_answer_wrong(answer, 503, "no memory");
    } else if (tp_parting_find(&found, &journals_a, &journals_b, &options, &error) != TP_OK) {
        tp_answer_wrong(answer, 404, error.message);
    } else {
        const tp_difference *rows = (const tp_difference *)(const void *)found.found.data;
        const uint64_t count = found.found.size / sizeof *rows;
        tp_buf *out = &answer->body;
        tp_buf_printf(out, "{\"a\":");
        tp_text_put_json(out, a->id);
        tp_buf_printf(out, ",\"b\":");
        tp_text_put_json(out, b->id);
        tp_buf_printf(out,
                      ",\"differs\":%s,\"step\":%" PRIu64 ",\"steps\":%" PRIu64
                      ",\"values\":%" PRIu64 ",\"in_step\":%" PRIu64 ",\"only_a\":%" PRIu64
                      ",\"only_b\":%" PRIu64 ",\"apart\":%" PRIu64 ",\"only_steps_a\":%" PRIu64
                      ",\"only_steps_b\":%" PRIu64 ",\"count\":%" PRIu64 ",\"rows\":[",
                      found.differs ? "true" : "false", found.step, found.steps, found.values,
                      found.in_step, found.only_a, found.only_b, found.apart, found.only_steps_a,
                      found.only_steps_b, count);
        for (uint64_t i = 0; i < count && i < SHOWN; i++) {
            tp_buf_printf(out, i > 0 ? "," : "");
            put_difference(out, &rows[i]);
        }
        tp_buf_printf(out, "]}");
    }
    tp_parting_free(&found);
    tp_buf_free(&of_a);
    tp_buf_free(&of_b);
}
