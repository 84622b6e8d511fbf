#include "sinks/messages.h"

#include <sqlite3.h>
#include <stddef.h>

#define BUSY_MS 5000

static const char tables[] =
    "BEGIN IMMEDIATE;"
    "CREATE TABLE IF NOT EXISTS exception_message (id INTEGER PRIMARY KEY,"
    " job_id VARCHAR(40) NOT NULL, message VARCHAR(255), create_time DATETIME NOT NULL);"
    "CREATE INDEX IF NOT EXISTS ix_exception_message_job_id ON exception_message (job_id);"
    "CREATE TABLE IF NOT EXISTS tp_message (id INTEGER PRIMARY KEY, job_id TEXT NOT NULL,"
    " rule TEXT NOT NULL, step INTEGER NOT NULL, wall_ns INTEGER NOT NULL, message TEXT NOT NULL);";

static const char *const inserts[] = {
    "INSERT INTO exception_message (job_id, message, create_time)"
    " VALUES (substr(?1, 1, 40), substr(?2, 1, 255), datetime(?5 / 1000000000, 'unixepoch'))",
    "INSERT INTO tp_message (job_id, message, rule, step, wall_ns) VALUES (?1, ?2, ?3, ?4, ?5)",
};

static int insert(sqlite3 *db, const char *sql, const char *job, const char *text, const char *rule,
                  uint64_t step, int64_t wall_ns)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(db, sql, -1, &statement, NULL);
    if (code == SQLITE_OK) {
        /* The shorter of the two takes no more than the numbers that it names. */
        sqlite3_bind_text(statement, 1, job, -1, SQLITE_STATIC);
        sqlite3_bind_text(statement, 2, text, -1, SQLITE_STATIC);
        sqlite3_bind_text(statement, 3, rule, -1, SQLITE_STATIC);
        sqlite3_bind_int64(statement, 4, (sqlite3_int64)step);
        sqlite3_bind_int64(statement, 5, wall_ns);
        code = sqlite3_step(statement) == SQLITE_DONE ? SQLITE_OK : sqlite3_errcode(db);
    }
    sqlite3_finalize(statement);
    return code;
}

tp_status tp_sqlite_add_message(const char *path, const char *job, const char *text,
                                const char *rule, uint64_t step, int64_t wall_ns, tp_error *error)
{
    sqlite3 *db = NULL;
    tp_status status = TP_OK;
    int code = sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
    if (code == SQLITE_OK) {
        sqlite3_busy_timeout(db, BUSY_MS);
        code = sqlite3_exec(db, tables, NULL, NULL, NULL);
    }
    for (int i = 0; code == SQLITE_OK && i < 2; i++) {
        code = insert(db, inserts[i], job, text, rule, step, wall_ns);
    }
    if (code == SQLITE_OK) {
        code = sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
    }
    if (code != SQLITE_OK) {
        status = tp_fail(error, TP_ERR_IO, "can't write to %s: %s", path,
                         db != NULL ? sqlite3_errmsg(db) : "no memory");
    }
    sqlite3_close(db); /* what has not been committed is gone */
    return status;
}
