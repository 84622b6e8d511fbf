/* The series of one run, with the numbers that a server has for them. */
#ifndef TP_SHIP_SERIES_H
#define TP_SHIP_SERIES_H

#include "base/map.h"
#include "config/selection.h"
#include "ship/rows.h"
#include "tensorprobe/record.h"

#define TP_NOT_SENT UINT32_MAX

/* What one span of steps had of a series. */
typedef struct tp_rollup {
    uint64_t first_step;
    uint64_t last_step;
    uint64_t records; /* 0: none */
    uint64_t nan;     /* of them, those with a NaN, and those with an infinity */
    uint64_t inf;
    double norm_min; /* of finite norms; NaN: none */
    double norm_max;
    double norm_last;
    double finite_min;
    double finite_max;
} tp_rollup;

typedef struct tp_series_table {
    tp_map by_id;   /* key's id, call, micro step → number, or TP_NOT_SENT */
    tp_map by_name; /* what a row of tp_series has, without its number → number */
    uint32_t count; /* numbers count from 0 */
    tp_buf is_sent; /* of each number: 1 when its values are sent, 0 when roll-ups alone are */
    tp_buf rollups; /* tp_rollup of each */
    tp_buf scratch;
} tp_series_table;

/* Number of the record's series. A new one is added to rows, unless neither its values are selected
 * nor needed is set: TP_NOT_SENT. */
tp_status tp_series_find(tp_series_table *table, const tp_key *key, const tp_record *record,
                         const tp_selection *selection, bool needed, tp_rows *rows,
                         uint32_t *number);

/* Takes in a row that the server has. */
tp_status tp_series_take(tp_series_table *table, const tp_rows *row, const tp_selection *selection);

bool tp_series_is_sent(const tp_series_table *table, uint32_t number);

void tp_series_add_record(tp_series_table *table, uint32_t number, uint64_t step,
                          const tp_stats *stats);

/* Roll-ups of all series as rows; they begin anew. */
void tp_series_put_rollups(tp_series_table *table, uint32_t attempt, tp_rows *rows);

/* Ids mean other keys from now on. */
void tp_series_forget_ids(tp_series_table *table);

void tp_series_clear(tp_series_table *table);

#endif
