/* Questions of a page about runs, and their answers: the same for the server and for a report. */
#ifndef TP_VIEW_ASK_H
#define TP_VIEW_ASK_H

#include "view/library.h"

#define TP_ASK_PARAMS 24

typedef struct tp_ask_param {
    const char *name;
    const char *value;
} tp_ask_param;

typedef struct tp_ask {
    const char *path; /* "map" …, without "/api/" */
    tp_ask_param params[TP_ASK_PARAMS];
    uint32_t count;
} tp_ask;

typedef struct tp_answer {
    unsigned code;    /* of HTTP */
    const char *type; /* of the body */
    tp_buf body;
} tp_answer;

/* Answers; the body is freed by the caller. A question that makes no sense, or what isn't there, is
 * answered by 400 or 404 and a sentence. Any thread. */
void tp_answer_ask(tp_library *library, const tp_ask *ask, tp_answer *answer);

/* For those who answer. */

/* A parameter; fallback when it isn't given. */
const char *tp_ask_text(const tp_ask *ask, const char *name, const char *fallback);
uint64_t tp_ask_number(const tp_ask *ask, const char *name, uint64_t fallback);

/* Steps from … to, within what the run has; a negative `from` counts from the end. */
void tp_ask_steps(const tp_ask *ask, const tp_view_run *run, uint64_t *from, uint64_t *to);

/* The number of a quantity's name; 0: none. */
uint32_t tp_ask_quantity(const tp_ask *ask);

void tp_answer_wrong(tp_answer *answer, unsigned code, const char *sentence);

/* JSON. NaN and infinities are texts: "NaN", "+Inf", "-Inf". */
void tp_json_number(tp_buf *out, double value);
void tp_json_stats(tp_buf *out, const tp_stats *stats); /* as members, a comma before each */
void tp_json_cell(tp_buf *out, tp_cell cell);           /* null where nothing was recorded */

/* The parts of the API. The run's lock is held for reading. */
void tp_answer_runs(tp_library *library, tp_answer *answer);
void tp_answer_run(const tp_view_run *run, tp_answer *answer);
void tp_answer_timeline(const tp_view_run *run, const tp_ask *ask, tp_answer *answer);
void tp_answer_series(const tp_view_run *run, const tp_ask *ask, tp_answer *answer);
void tp_answer_search(const tp_view_run *run, const tp_ask *ask, tp_answer *answer);
void tp_answer_map(const tp_view_run *run, const tp_ask *ask, tp_answer *answer);
void tp_answer_cell(const tp_view_run *run, const tp_ask *ask, tp_answer *answer);
void tp_answer_worst(const tp_view_run *run, const tp_ask *ask, tp_answer *answer);
void tp_answer_incidents(const tp_view_run *run, tp_answer *answer);
void tp_answer_incident(const tp_view_run *run, const tp_ask *ask, tp_answer *answer);
void tp_answer_micro(const tp_view_run *run, const tp_ask *ask, tp_answer *answer);
/* These take the lock as they need it. */
void tp_answer_histogram(tp_library *library, const tp_ask *ask, tp_answer *answer);
void tp_answer_difference(tp_library *library, const tp_ask *ask, tp_answer *answer);
void tp_answer_communication(tp_library *library, const tp_ask *ask, tp_answer *answer);
void tp_answer_compare(tp_library *library, const tp_ask *ask, tp_answer *answer);

/* Where a value is. */
typedef struct tp_spot {
    const tp_view_rank *rank;
    uint64_t column;
    uint32_t key;
    uint32_t row;
    tp_cell cell;
} tp_spot;

/* Appends a tp_spot for each series of the step on each rank. TP_ERR_NOMEM. */
tp_status tp_spots_of_step(const tp_view_run *run, uint32_t stat, uint64_t step, tp_buf *spots);

/* What was normal for the series before this column: median and three MADs to both sides; false:
 * too few values. */
bool tp_spot_normal(const tp_spot *at, uint32_t stat, double *low, double *high);

/* The logged number that is called so, or has one of these texts in its name (NULL ends them);
 * TP_VIEW_NO_KEY: there is none. */
uint32_t tp_view_find_scalar(const tp_view_run *run, const char *const *names);

/* What a report says of an incident. Texts are the run's, or static. */
typedef struct tp_incident_place {
    uint64_t step;
    uint32_t rank;
    uint32_t ranks; /* how many have it */
    uint32_t key;
    bool is_nonfinite;
    const char *quantity;
    const char *row;
    const char *text;
} tp_incident_place;
uint64_t tp_incident_count(const tp_view_run *run);
bool tp_incident_find(const tp_view_run *run, uint64_t number, tp_incident_place *out);

/* Adds the series that were farthest from normal in any step, so many at most, the worst first. */
struct report;
void tp_worst_rows(const tp_view_run *run, uint64_t limit,
                   void (*add)(struct report *to, const char *quantity, const char *row),
                   struct report *to);

/* The records of one step of a rank, from the journal, as they are. *reader is closed by the
 * caller after the last use of the batch. TP_ERR_NOTFOUND and what reading says. */
tp_status tp_view_read_step(const tp_view_rank *rank, const tp_view_column *column,
                            tp_reader **reader, tp_item *item);

/* Whether a name is meant: a glob, or the end of it behind a dot. */
bool tp_view_is_meant(const char *pattern, const tp_view_key *key);

#endif
