/* The tables that a database has (docs/ship.md shows them), and rows on their way into them. */
#ifndef TP_SHIP_ROWS_H
#define TP_SHIP_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

typedef enum tp_table_id {
    TP_TABLE_SERIES,
    TP_TABLE_STEP,
    TP_TABLE_VALUE,
    TP_TABLE_ROLLUP,
    TP_TABLE_ALERT,
    TP_TABLE_INCIDENT,
    TP_TABLE_COUNT,
} tp_table_id;

typedef enum tp_cell_kind {
    TP_CELL_NULL,
    TP_CELL_INTEGER,
    TP_CELL_REAL,
    TP_CELL_TEXT
} tp_cell_kind;

typedef struct tp_column {
    const char *name;
    tp_cell_kind kind;
    bool nullable; /* a real may always be NULL */
} tp_column;

/* Every table begins with the column `run`, which rows don't have: they are one run's. */
typedef struct tp_table {
    const char *name;
    const tp_column *columns;
    uint32_t column_count;
    const char *key;   /* columns of the primary key behind run; NULL: none */
    const char *index; /* columns of an index behind run; NULL: none */
} tp_table;

extern const tp_table tp_tables[TP_TABLE_COUNT];

/* Appends the names of its columns, but for run. */
void tp_table_put_columns(tp_buf *sql, const tp_table *table, const char *quote);

typedef struct tp_cell {
    tp_cell_kind kind;
    uint32_t size; /* of a text */
    union {
        int64_t integer;
        double real;
        uint64_t text; /* where it begins in the rows' texts; a zero byte ends it */
    } u;
} tp_cell;

/* Rows of one table. Cells are added from left to right. */
typedef struct tp_rows {
    tp_table_id table;
    uint64_t count;
    tp_buf cells; /* tp_cell */
    tp_buf texts;
} tp_rows;

void tp_rows_clear(tp_rows *rows);
void tp_rows_free(tp_rows *rows);

void tp_rows_add_integer(tp_rows *rows, uint64_t value);
void tp_rows_add_optional(tp_rows *rows, int64_t value, bool is_there);
void tp_rows_add_real(tp_rows *rows, double value);
void tp_rows_add_text(tp_rows *rows, const char *text); /* NULL is NULL */
void tp_rows_end(tp_rows *rows);                        /* of a row */

/* Cells of a row. */
const tp_cell *tp_rows_get(const tp_rows *rows, uint64_t row);
const char *tp_rows_text(const tp_rows *rows, const tp_cell *cell);

#endif
