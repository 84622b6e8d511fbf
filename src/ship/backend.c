#include "ship/backend.h"

#include <stddef.h>

/* What this build has, and what else there would be. */
static const struct known {
    tp_url_kind kind;
    const tp_backend *backend; /* NULL: built without */
    const char *library;
} known[] = {
#ifdef TP_HAVE_LIBPQ
    {TP_URL_POSTGRES, &tp_backend_postgres, "libpq"},
#else
    {TP_URL_POSTGRES, NULL, "libpq"},
#endif
#ifdef TP_HAVE_LIBMARIADB
    {TP_URL_MARIADB, &tp_backend_mariadb, "libmariadb"},
#else
    {TP_URL_MARIADB, NULL, "libmariadb"},
#endif
#ifdef TP_HAVE_LIBCURL
    {TP_URL_HTTP, &tp_backend_line, "libcurl"},
#else
    {TP_URL_HTTP, NULL, "libcurl"},
#endif
};

tp_status tp_backend_find(const tp_backend **out, const tp_url *url, tp_error *error)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].kind == url->kind && known[i].backend != NULL) {
            *out = known[i].backend;
            return TP_OK;
        }
        if (known[i].kind == url->kind) {
            return tp_fail(error, TP_ERR_UNSUPPORTED,
                           "this tensorprobe was built without %s, which such a URL needs; install "
                           "its development files and build it again",
                           known[i].library);
        }
    }
    return tp_fail(error, TP_ERR_CONFIG,
                   "a file is no server; \"format\": \"sqlite\" writes one beside each journal");
}

/* FNV-1a. */
uint32_t tp_backend_hash(const tp_url *url)
{
    char text[1024];
    uint32_t hash = 2166136261u;
    tp_url_describe(url, text, sizeof text);
    for (const char *c = text; *c != '\0'; c++) {
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    }
    for (const char *c = url->query != NULL ? url->query : ""; *c != '\0'; c++) {
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    }
    return hash;
}

void tp_dialect_put_table(tp_buf *sql, const tp_dialect *dialect, const tp_table *table)
{
    const char *const types[] = {
        [TP_CELL_INTEGER] = dialect->integer,
        [TP_CELL_REAL] = dialect->real,
        [TP_CELL_TEXT] = dialect->text,
    };
    const char *q = dialect->quote;
    const char *key = table->key;
    if (key == NULL && table == &tp_tables[TP_TABLE_VALUE] && dialect->value_key) {
        key = "attempt, step, position";
    }
    tp_buf_printf(sql, "CREATE TABLE IF NOT EXISTS %s (run %s NOT NULL", table->name,
                  dialect->integer);
    for (uint32_t i = 0; i < table->column_count; i++) {
        const tp_column *column = &table->columns[i];
        tp_buf_printf(sql, ", %s%s%s %s%s", q, column->name, q, types[column->kind],
                      column->nullable ? "" : " NOT NULL");
    }
    if (key != NULL) {
        tp_buf_printf(sql, ", PRIMARY KEY (run, %s)", key);
    }
    if (table->index != NULL && dialect->index_inside) {
        tp_buf_printf(sql, ", INDEX %s_index (run, %s)", table->name, table->index);
    }
    tp_buf_printf(sql, ")%s;", dialect->options);
    if (table->index != NULL && !dialect->index_inside) {
        tp_buf_printf(sql, "CREATE INDEX IF NOT EXISTS %s_index ON %s (run, %s);", table->name,
                      table->name, table->index);
    }
}
