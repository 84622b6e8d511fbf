/* A run on a screen of text: is it healthy, what went wrong first, what is farthest from normal. */
#ifndef TP_VIEW_TAIL_H
#define TP_VIEW_TAIL_H

#include "view/ask.h"
#include "view/screen.h"

/* What is known of the processes that wrote the journals. */
#define TP_STATE_LIVE 0
#define TP_STATE_CLOSED 1  /* all of them */
#define TP_STATE_KILLED 2  /* one at least, and none lives */
#define TP_STATE_UNKNOWN 3 /* not closed, and nobody knows more */

/* Which statistics of the series: one (TP_GRID_…), or the worse one of norm and largest. */
#define TP_TAIL_BOTH TP_GRID_STATS

#define TP_TAIL_BY_DISTANCE 0 /* the worst first */
#define TP_TAIL_BY_ORDER 1    /* as they are executed */
#define TP_TAIL_BY_VALUE 2    /* the largest first */
#define TP_TAIL_SORTS 3

/* A series of the list: its worst rank and statistic. */
typedef struct tp_tail_line {
    tp_spot spot;
    uint32_t stat;
    uint32_t guilt; /* 2: the newest incident of NaN and Inf began here, 1: it broke in that step */
    uint64_t order; /* of execution */
} tp_tail_line;

typedef struct tp_tail {
    uint32_t stat;
    uint32_t sort;
    char filter[1056];    /* a glob, or a part of names; "": all */
    bool is_pattern;      /* no part of names */
    uint32_t spark_steps; /* of the small plots, at most; 0: 120 */
    bool is_typing;       /* the filter */
    bool has_keys;        /* somebody can press them */
    bool is_pinned;       /* to the step; else it is the last one */
    bool is_detail;       /* one series in full */
    uint64_t step;        /* what is shown */
    uint32_t selected;    /* key; TP_VIEW_NO_KEY: the first line */
    uint64_t top;         /* the first line that is shown */
    uint64_t shown;       /* how many fit */
    uint32_t state;       /* TP_STATE_… */
    int64_t now_ns;       /* Unix time */
    tp_buf lines;         /* tp_tail_line, as they were shown last */
} tp_tail;

/* Draws what is there, on a screen that has been cleared. The run's lock is held for reading.
 * TP_ERR_NOMEM. */
tp_status tp_tail_draw(tp_tail *tail, const tp_view_run *run, tp_screen *screen);
void tp_tail_free(tp_tail *tail);

/* Moves the selection by so many lines. */
void tp_tail_move(tp_tail *tail, int64_t by);

/* "live", "killed", "no step for 4 min 12 s" …; *part: how it is to be shown. */
void tp_tail_state_text(const tp_tail *tail, const tp_view_run *run, char *text, size_t size,
                        uint32_t *part);

/* The value of a logged number (of its first rank) in the last step up to this one, and the last
 * one that was finite; false: there is none. */
bool tp_tail_scalar(const tp_view_run *run, uint32_t key, uint64_t step, double *value,
                    double *finite);

/* The norm of all gradients of that step, the largest of all ranks; NaN: none. */
double tp_tail_gradient(const tp_view_run *run, uint64_t step, double *finite);

/* For tp_tail_draw: the list, or one series, in rows before `end`. Returns the row behind it. */
tp_status tp_tail_collect(tp_tail *tail, const tp_view_run *run);
uint32_t tp_tail_draw_list(tp_tail *tail, const tp_view_run *run, tp_screen *screen, uint32_t row,
                           uint32_t end);
uint32_t tp_tail_draw_series(const tp_tail *tail, const tp_view_run *run, tp_screen *screen,
                             uint32_t row, uint32_t end);

#endif
