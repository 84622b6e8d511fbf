#include "ship/series.h"

#include <math.h>
#include <string.h>

#include "sinks/series.h"

/* What tells series apart, of a row of tp_series: the cells behind its number. */
static void put_identity(tp_buf *out, const tp_rows *rows, uint64_t row)
{
    const tp_cell *cells = tp_rows_get(rows, row);
    tp_buf_clear(out);
    for (uint32_t i = 1; i < tp_tables[TP_TABLE_SERIES].column_count; i++) {
        const tp_cell *cell = &cells[i];
        if (cell->kind == TP_CELL_TEXT) {
            tp_buf_put(out, tp_rows_text(rows, cell), cell->size + 1);
        } else {
            tp_buf_put(out, &cell->kind, sizeof cell->kind);
            tp_buf_put_u64(out, cell->kind == TP_CELL_INTEGER ? (uint64_t)cell->u.integer : 0);
        }
    }
}

/* Whether unreduced gradients are those of micro steps isn't known here: the first of a step has no
 * number then, the others have one. */
static bool has_micro_step(const tp_key *key, const tp_record *record)
{
    const tp_sink_options options = {.micro_gradients = record->micro_step > 0};
    return tp_has_micro_step(&options, key->quantity);
}

static void put_row(tp_rows *rows, uint32_t number, const tp_key *key, const tp_record *record)
{
    char row[TP_ROW_NAME_MAX];
    const char *quantity = tp_quantity_name(key->quantity);
    const char *role = tp_role_name(key->role);
    const bool has_global_name =
        key->global_name != NULL && strcmp(key->global_name, key->name) != 0;
    tp_row_name(key, record->call, row, sizeof row);
    tp_rows_add_integer(rows, number);
    tp_rows_add_text(rows, key->name);
    tp_rows_add_text(rows, row);
    tp_rows_add_text(rows, quantity != NULL ? quantity : "?");
    tp_rows_add_text(rows, role != NULL ? role : "?");
    tp_rows_add_integer(rows, (uint64_t)key->vpp_stage);
    tp_rows_add_optional(rows, key->slot, key->slot >= 0);
    tp_rows_add_integer(rows, record->call);
    tp_rows_add_optional(rows, record->micro_step, has_micro_step(key, record));
    tp_rows_add_text(rows, has_global_name ? key->global_name : NULL);
    tp_rows_add_text(rows, key->argument);
    tp_rows_end(rows);
}

/* Takes the last row out again. */
static void drop_row(tp_rows *rows, size_t texts)
{
    rows->count--;
    rows->cells.size -= tp_tables[TP_TABLE_SERIES].column_count * sizeof(tp_cell);
    rows->texts.size = texts;
}

static tp_status add_number(tp_series_table *table, uint32_t number, bool is_sent)
{
    static const tp_rollup none;
    const uint8_t sent = is_sent;
    if (number >= table->count) {
        for (uint32_t i = table->count; i <= number; i++) {
            tp_buf_put(&table->is_sent, &sent, 1);
            tp_buf_put(&table->rollups, &none, sizeof none);
        }
        table->count = number + 1;
    }
    if (table->is_sent.failed || table->rollups.failed) {
        return TP_ERR_NOMEM;
    }
    table->is_sent.data[number] = sent;
    return tp_map_set(&table->by_name, table->scratch.data, table->scratch.size, number);
}

tp_status tp_series_find(tp_series_table *table, const tp_key *key, const tp_record *record,
                         const tp_selection *selection, bool needed, tp_rows *rows,
                         uint32_t *number)
{
    const tp_series id = {record->key, record->call,
                          has_micro_step(key, record) ? record->micro_step : 0};
    if (tp_map_get(&table->by_id, &id, sizeof id, number) == TP_OK &&
        (*number != TP_NOT_SENT || !needed)) {
        return TP_OK;
    }
    const bool is_sent = tp_selection_has(selection, key->name);
    if (!is_sent && !needed) {
        *number = TP_NOT_SENT;
        return tp_map_set(&table->by_id, &id, sizeof id, TP_NOT_SENT);
    }
    const size_t texts = rows->texts.size;
    put_row(rows, table->count, key, record);
    if (rows->cells.failed || rows->texts.failed) {
        return TP_ERR_NOMEM;
    }
    put_identity(&table->scratch, rows, rows->count - 1);
    if (table->scratch.failed) {
        return TP_ERR_NOMEM;
    }
    tp_status status =
        tp_map_get(&table->by_name, table->scratch.data, table->scratch.size, number);
    if (status == TP_OK) {
        drop_row(rows, texts);
    } else {
        *number = table->count;
        status = add_number(table, *number, is_sent);
    }
    return status == TP_OK ? tp_map_set(&table->by_id, &id, sizeof id, *number) : status;
}

tp_status tp_series_take(tp_series_table *table, const tp_rows *row, const tp_selection *selection)
{
    const tp_cell *cells = tp_rows_get(row, 0);
    const int64_t number = cells[0].u.integer;
    put_identity(&table->scratch, row, 0);
    if (table->scratch.failed || number < 0 || number >= TP_NOT_SENT) {
        return TP_ERR_NOMEM;
    }
    return add_number(table, (uint32_t)number,
                      tp_selection_has(selection, tp_rows_text(row, &cells[1])));
}

bool tp_series_is_sent(const tp_series_table *table, uint32_t number)
{
    return table->is_sent.data[number] != 0;
}

/* The smaller or larger of two, where NaN is none. */
static double least(double a, double b)
{
    return isnan(a) || b < a ? b : a;
}

static double most(double a, double b)
{
    return isnan(a) || b > a ? b : a;
}

void tp_series_add_record(tp_series_table *table, uint32_t number, uint64_t step,
                          const tp_stats *stats)
{
    tp_rollup *rollup = (tp_rollup *)(void *)table->rollups.data + number;
    const double norm = tp_stats_norm(stats);
    if (rollup->records == 0) {
        *rollup = (tp_rollup){.first_step = step,
                              .norm_min = (double)NAN,
                              .norm_max = (double)NAN,
                              .finite_min = (double)NAN,
                              .finite_max = (double)NAN};
    }
    rollup->last_step = step;
    rollup->records++;
    rollup->nan += stats->nan > 0;
    rollup->inf += stats->nan == 0 && stats->pos_inf + stats->neg_inf > 0;
    rollup->norm_last = norm;
    if (isfinite(norm)) {
        rollup->norm_min = least(rollup->norm_min, norm);
        rollup->norm_max = most(rollup->norm_max, norm);
    }
    rollup->finite_min = least(rollup->finite_min, stats->finite_min);
    rollup->finite_max = most(rollup->finite_max, stats->finite_max);
}

void tp_series_put_rollups(tp_series_table *table, uint32_t attempt, tp_rows *rows)
{
    for (uint32_t i = 0; i < table->count; i++) {
        tp_rollup *rollup = (tp_rollup *)(void *)table->rollups.data + i;
        if (rollup->records == 0) {
            continue;
        }
        tp_rows_add_integer(rows, attempt);
        tp_rows_add_integer(rows, i);
        tp_rows_add_integer(rows, rollup->first_step);
        tp_rows_add_integer(rows, rollup->last_step);
        tp_rows_add_integer(rows, rollup->records);
        tp_rows_add_integer(rows, rollup->nan);
        tp_rows_add_integer(rows, rollup->inf);
        tp_rows_add_real(rows, rollup->norm_min);
        tp_rows_add_real(rows, rollup->norm_max);
        tp_rows_add_real(rows, rollup->norm_last);
        tp_rows_add_real(rows, rollup->finite_min);
        tp_rows_add_real(rows, rollup->finite_max);
        tp_rows_end(rows);
        rollup->records = 0;
    }
}

void tp_series_forget_ids(tp_series_table *table)
{
    tp_map_free(&table->by_id);
    table->by_id = (tp_map)TP_MAP_INIT;
}

void tp_series_clear(tp_series_table *table)
{
    tp_map_free(&table->by_id);
    tp_map_free(&table->by_name);
    tp_buf_free(&table->is_sent);
    tp_buf_free(&table->rollups);
    tp_buf_free(&table->scratch);
    *table = (tp_series_table){0};
}
