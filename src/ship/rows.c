#include "ship/rows.h"

#include <string.h>

#include "base/text.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

#define INTEGER(name)                                                                              \
    {                                                                                              \
        name, TP_CELL_INTEGER, false                                                               \
    }
#define OPTIONAL(name)                                                                             \
    {                                                                                              \
        name, TP_CELL_INTEGER, true                                                                \
    }
#define REAL(name)                                                                                 \
    {                                                                                              \
        name, TP_CELL_REAL, true                                                                   \
    }
#define TEXT(name)                                                                                 \
    {                                                                                              \
        name, TP_CELL_TEXT, false                                                                  \
    }

static const tp_column series_columns[] = {
    INTEGER("series"),
    TEXT("name"),
    TEXT("row_name"),
    TEXT("quantity"),
    TEXT("role"),
    INTEGER("vpp_stage"),
    OPTIONAL("slot"),
    INTEGER("call_index"),
    OPTIONAL("micro_step"),
    {"global_name", TP_CELL_TEXT, true},
    {"argument", TP_CELL_TEXT, true},
};

static const tp_column step_columns[] = {
    INTEGER("attempt"), INTEGER("step"),    OPTIONAL("pp_stage"),   INTEGER("micro_steps"),
    INTEGER("skipped"), INTEGER("wall_ns"), INTEGER("duration_ns"), INTEGER("hook_ns"),
    INTEGER("errors"),  INTEGER("records"),
};

static const tp_column value_columns[] = {
    INTEGER("attempt"),  INTEGER("step"),  INTEGER("series"),
    INTEGER("position"), TEXT("dtype"),    TEXT("shape"),
    INTEGER("count"),    INTEGER("nan"),   INTEGER("pos_inf"),
    INTEGER("neg_inf"),  INTEGER("zeros"), INTEGER("subnormal"),
    REAL("norm"),        REAL("min"),      REAL("max"),
    REAL("mean"),        REAL("std"),      REAL("finite_min"),
    REAL("finite_max"),  REAL("abs_max"),  OPTIONAL("abs_max_index"),
    REAL("sum_abs"),
};

static const tp_column rollup_columns[] = {
    INTEGER("attempt"), INTEGER("series"), INTEGER("first_step"), INTEGER("last_step"),
    INTEGER("records"), INTEGER("nan"),    INTEGER("inf"),        REAL("norm_min"),
    REAL("norm_max"),   REAL("norm_last"), REAL("finite_min"),    REAL("finite_max"),
};

static const tp_column alert_columns[] = {
    INTEGER("attempt"),  INTEGER("step"),  INTEGER("series"),
    INTEGER("position"), TEXT("rule"),     {"op", TP_CELL_TEXT, true},
    REAL("value"),       REAL("baseline"), REAL("threshold"),
    INTEGER("samples"),  TEXT("message"),
};

static const tp_column incident_columns[] = {
    INTEGER("attempt"),    INTEGER("step"),      INTEGER("series"), INTEGER("number"),
    TEXT("state"),         TEXT("severity"),     TEXT("cause"),     TEXT("rule"),
    INTEGER("first_step"), INTEGER("last_step"), INTEGER("steps"),  INTEGER("alerts"),
    TEXT("message"),
};

const tp_table tp_tables[TP_TABLE_COUNT] = {
    [TP_TABLE_SERIES] = {"tp_series", series_columns, LENGTH(series_columns), "series", NULL},
    [TP_TABLE_STEP] = {"tp_step", step_columns, LENGTH(step_columns), "attempt, step", NULL},
    [TP_TABLE_VALUE] = {"tp_value", value_columns, LENGTH(value_columns), NULL, "series, step"},
    [TP_TABLE_ROLLUP] = {"tp_rollup", rollup_columns, LENGTH(rollup_columns), NULL,
                         "series, first_step"},
    [TP_TABLE_ALERT] = {"tp_alert", alert_columns, LENGTH(alert_columns), NULL, "step"},
    [TP_TABLE_INCIDENT] = {"tp_incident", incident_columns, LENGTH(incident_columns), NULL, "step"},
};

void tp_rows_clear(tp_rows *rows)
{
    rows->count = 0;
    tp_buf_clear(&rows->cells);
    tp_buf_clear(&rows->texts);
}

void tp_rows_free(tp_rows *rows)
{
    tp_buf_free(&rows->cells);
    tp_buf_free(&rows->texts);
}

static void add(tp_rows *rows, tp_cell cell)
{
    tp_buf_put(&rows->cells, &cell, sizeof cell);
}

void tp_rows_add_integer(tp_rows *rows, uint64_t value)
{
    add(rows, (tp_cell){.kind = TP_CELL_INTEGER, .u.integer = (int64_t)value});
}

void tp_rows_add_optional(tp_rows *rows, int64_t value, bool is_there)
{
    add(rows, (tp_cell){.kind = is_there ? TP_CELL_INTEGER : TP_CELL_NULL, .u.integer = value});
}

void tp_rows_add_real(tp_rows *rows, double value)
{
    add(rows, (tp_cell){.kind = TP_CELL_REAL, .u.real = value});
}

/* Servers refuse what is no UTF-8, and would refuse it again and again. */
void tp_rows_add_text(tp_rows *rows, const char *text)
{
    const size_t begin = rows->texts.size;
    if (text == NULL) {
        add(rows, (tp_cell){.kind = TP_CELL_NULL});
        return;
    }
    while (*text != '\0') {
        const size_t size = tp_text_character(text);
        if (size > 0) {
            tp_buf_put(&rows->texts, text, size);
        } else {
            tp_buf_put(&rows->texts, TP_TEXT_REPLACEMENT, strlen(TP_TEXT_REPLACEMENT));
        }
        text += size > 0 ? size : 1;
    }
    add(rows, (tp_cell){.kind = TP_CELL_TEXT,
                        .size = (uint32_t)(rows->texts.size - begin),
                        .u.text = begin});
    tp_buf_put(&rows->texts, "", 1);
}

void tp_table_put_columns(tp_buf *sql, const tp_table *table, const char *quote)
{
    for (uint32_t i = 0; i < table->column_count; i++) {
        tp_buf_printf(sql, "%s%s%s%s", i > 0 ? ", " : "", quote, table->columns[i].name, quote);
    }
}

void tp_rows_end(tp_rows *rows)
{
    rows->count++;
}

const tp_cell *tp_rows_get(const tp_rows *rows, uint64_t row)
{
    const tp_cell *cells = (const void *)rows->cells.data;
    return cells + row * tp_tables[rows->table].column_count;
}

const char *tp_rows_text(const tp_rows *rows, const tp_cell *cell)
{
    return (const char *)rows->texts.data + cell->u.text;
}
