/* MariaDB: rows by prepared statements that take many at once, a run's row of tp_run as cursor in
 * the same transaction. A DOUBLE holds neither NaN nor infinities: they are NULL, and the counts
 * stand beside. */
#include <inttypes.h>
#include <math.h>
#include <mysql.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "ship/backend.h"

#define COLUMNS_MAX 24
#define NAME_MAX_LENGTH 255

typedef struct mariadb {
    MYSQL *connection;
    MYSQL_STMT *insert[TP_TABLE_COUNT]; /* prepared when needed */
    tp_buf arrays;                      /* the columns of one insertion */
} mariadb;

static const tp_dialect dialect = {
    "`",  "bigint", "double", "text", " ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    true, true};

static const char *const own_tables[] = {
    "CREATE TABLE IF NOT EXISTS tp_run (run bigint AUTO_INCREMENT PRIMARY KEY,"
    " name varchar(255) NOT NULL, run_id varchar(64) NOT NULL, rank bigint NOT NULL,"
    " start_ns bigint NOT NULL, segment bigint NOT NULL, place bigint NOT NULL,"
    " span_segment bigint NOT NULL, span_place bigint NOT NULL, UNIQUE (name, run_id, rank))"
    " ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "CREATE TABLE IF NOT EXISTS tp_message (id bigint AUTO_INCREMENT PRIMARY KEY,"
    " job_id varchar(64) NOT NULL, rule varchar(64) NOT NULL, step bigint NOT NULL,"
    " wall_ns bigint NOT NULL, message text NOT NULL)"
    " ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "CREATE TABLE IF NOT EXISTS exception_message (id int AUTO_INCREMENT PRIMARY KEY,"
    " job_id varchar(40) NOT NULL, message varchar(255), create_time datetime NOT NULL,"
    " INDEX ix_exception_message_job_id (job_id)) ENGINE=InnoDB CHARACTER SET utf8mb4",
};

/* Access denied (to the server, a database, a table), no such database. */
static bool is_refusal(unsigned code)
{
    return code == 1044 || code == 1045 || code == 1049 || code == 1142 || code == 1698 ||
           code == 2059;
}

static tp_status fail(const mariadb *db, tp_error *error)
{
    return tp_fail(error, is_refusal(mysql_errno(db->connection)) ? TP_ERR_STATE : TP_ERR_IO, "%s",
                   mysql_error(db->connection));
}

static tp_status fail_statement(MYSQL_STMT *statement, tp_error *error)
{
    return tp_fail(error, is_refusal(mysql_stmt_errno(statement)) ? TP_ERR_STATE : TP_ERR_IO, "%s",
                   mysql_stmt_error(statement));
}

static tp_status run(const mariadb *db, const char *sql, tp_error *error)
{
    return mysql_query(db->connection, sql) == 0 ? TP_OK : fail(db, error);
}

/* One that gives a result, which is of no interest. */
static tp_status run_select(const mariadb *db, const char *sql, tp_error *error)
{
    tp_status status = run(db, sql, error);
    if (status == TP_OK) {
        mysql_free_result(mysql_store_result(db->connection));
    }
    return status;
}

static tp_status make_tables(mariadb *db, tp_error *error)
{
    tp_buf sql = TP_BUF_INIT;
    tp_status status =
        run_select(db, "SELECT 1 FROM tp_run, tp_incident, exception_message LIMIT 0", NULL);
    if (status == TP_OK) {
        return TP_OK; /* who may not make tables may still fill them */
    }
    status = run_select(db, "SELECT GET_LOCK('tensorprobe tables', 60)", error);
    for (size_t i = 0; status == TP_OK && i < sizeof own_tables / sizeof own_tables[0]; i++) {
        status = run(db, own_tables[i], error);
    }
    for (int i = 0; status == TP_OK && i < TP_TABLE_COUNT; i++) {
        tp_buf_clear(&sql);
        tp_dialect_put_table(&sql, &dialect, &tp_tables[i]);
        tp_buf_put(&sql, "", 1);
        status = sql.failed ? tp_fail(error, TP_ERR_NOMEM, "no memory to make tables")
                            : run(db, (const char *)sql.data, error);
    }
    tp_buf_free(&sql);
    (void)run_select(db, "SELECT RELEASE_LOCK('tensorprobe tables')", NULL);
    return status;
}

/* Options of PyMySQL, which SQLAlchemy takes in a URL's query. */
static tp_status set_tls(MYSQL *connection, const tp_url *url, tp_error *error)
{
    static const char *const names[] = {"ssl_key", "ssl_cert", "ssl_ca", "ssl_verify_cert"};
    char texts[4][512];
    const char *values[4] = {NULL};
    for (int i = 0; i < 4; i++) {
        tp_status status = tp_url_option(url, names[i], texts[i], sizeof texts[i]);
        if (status == TP_OK) {
            values[i] = texts[i];
        } else if (status != TP_ERR_NOTFOUND) {
            return tp_fail(error, TP_ERR_CONFIG, "the URL's option %s is wrong", names[i]);
        }
    }
    if (values[0] == NULL && values[1] == NULL && values[2] == NULL && values[3] == NULL) {
        return TP_OK;
    }
    const my_bool on = 1;
    mysql_ssl_set(connection, values[0], values[1], values[2], NULL, NULL);
    mysql_options(connection, MYSQL_OPT_SSL_ENFORCE, &on);
    if (values[2] != NULL || (values[3] != NULL && strcmp(values[3], "true") == 0)) {
        mysql_options(connection, MYSQL_OPT_SSL_VERIFY_SERVER_CERT, &on);
    }
    return TP_OK;
}

static void begin_library(void)
{
    mysql_library_init(0, NULL, NULL);
}

static tp_status mariadb_open(void *private, const tp_url *url, tp_error *error)
{
    static const unsigned connect_seconds = 10;
    static const unsigned wait_seconds = 60;
    static const unsigned tcp = MYSQL_PROTOCOL_TCP;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    mariadb *db = private;
    char path[256];
    pthread_once(&once, begin_library); /* values and messages have a thread each */
    db->connection = mysql_init(NULL);
    if (db->connection == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for a connection");
    }
    const bool has_path = tp_url_option(url, "unix_socket", path, sizeof path) == TP_OK;
    mysql_options(db->connection, MYSQL_OPT_CONNECT_TIMEOUT, &connect_seconds);
    mysql_options(db->connection, MYSQL_OPT_READ_TIMEOUT, &wait_seconds);
    mysql_options(db->connection, MYSQL_OPT_WRITE_TIMEOUT, &wait_seconds);
    mysql_options(db->connection, MYSQL_SET_CHARSET_NAME, "utf8mb4");
    if (!has_path && url->host != NULL) { /* "localhost" would mean a socket */
        mysql_options(db->connection, MYSQL_OPT_PROTOCOL, &tcp);
    }
    tp_status status = set_tls(db->connection, url, error);
    if (status != TP_OK) {
        return status;
    }
    if (mysql_real_connect(db->connection, url->host, url->user, url->password, url->path,
                           url->port, has_path ? path : NULL, 0) == NULL) {
        return fail(db, error);
    }
    return make_tables(db, error);
}

static MYSQL_BIND bind_text(const char *text, unsigned long *length)
{
    *length = strlen(text);
    union {
        const char *in;
        void *out;
    } buffer = {.in = text}; /* read only, whatever its type says */
    return (MYSQL_BIND){.buffer_type = MYSQL_TYPE_STRING,
                        .buffer = buffer.out,
                        .buffer_length = *length,
                        .length = length};
}

static MYSQL_BIND bind_number(int64_t *number)
{
    return (MYSQL_BIND){.buffer_type = MYSQL_TYPE_LONGLONG, .buffer = number};
}

/* Runs a statement with parameters. result: the numbers of one row, or none; *found tells. */
static tp_status execute(const mariadb *db, const char *sql, MYSQL_BIND *parameters,
                         int64_t *result, unsigned result_count, bool *found, tp_error *error)
{
    MYSQL_BIND numbers[8];
    MYSQL_STMT *statement = mysql_stmt_init(db->connection);
    if (statement == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for a statement");
    }
    bool fine = mysql_stmt_prepare(statement, sql, strlen(sql)) == 0 &&
                mysql_stmt_bind_param(statement, parameters) == 0 &&
                mysql_stmt_execute(statement) == 0;
    if (fine && result_count > 0) {
        for (unsigned i = 0; i < result_count; i++) {
            numbers[i] = bind_number(&result[i]);
        }
        int fetched = 1;
        fine = mysql_stmt_bind_result(statement, numbers) == 0 &&
               mysql_stmt_store_result(statement) == 0 &&
               (fetched = mysql_stmt_fetch(statement)) != 1;
        *found = fetched == 0;
    }
    tp_status status = fine ? TP_OK : fail_statement(statement, error);
    mysql_stmt_close(statement);
    return status;
}

static tp_status load_series(const mariadb *db, int64_t number, const tp_series_sink *known,
                             tp_error *error)
{
    const tp_table *table = &tp_tables[TP_TABLE_SERIES];
    tp_rows row = {.table = TP_TABLE_SERIES};
    tp_buf sql = TP_BUF_INIT;
    tp_buf_printf(&sql, "SELECT ");
    tp_table_put_columns(&sql, table, "`");
    tp_buf_printf(&sql, " FROM tp_series WHERE run = %" PRId64, number);
    tp_buf_put(&sql, "", 1);
    tp_status status = sql.failed ? tp_fail(error, TP_ERR_NOMEM, "no memory for names of series")
                                  : run(db, (const char *)sql.data, error);
    tp_buf_free(&sql);
    MYSQL_RES *result = status == TP_OK ? mysql_store_result(db->connection) : NULL;
    if (result == NULL) {
        return status != TP_OK ? status : fail(db, error);
    }
    for (MYSQL_ROW cells = mysql_fetch_row(result); cells != NULL && status == TP_OK;
         cells = mysql_fetch_row(result)) {
        tp_rows_clear(&row);
        for (uint32_t i = 0; i < table->column_count; i++) {
            if (table->columns[i].kind == TP_CELL_TEXT) {
                tp_rows_add_text(&row, cells[i]);
            } else {
                tp_rows_add_optional(&row, cells[i] != NULL ? strtoll(cells[i], NULL, 10) : 0,
                                     cells[i] != NULL);
            }
        }
        tp_rows_end(&row);
        status =
            row.cells.failed || row.texts.failed ? TP_ERR_NOMEM : known->add(known->context, &row);
    }
    mysql_free_result(result);
    tp_rows_free(&row);
    return status == TP_OK ? TP_OK : tp_fail(error, TP_ERR_NOMEM, "no memory for names of series");
}

static tp_status mariadb_find_run(void *private, const tp_shipped_run *wanted, int64_t *number,
                                  tp_ship_cursor *cursor, const tp_series_sink *known,
                                  tp_error *error)
{
    static const char add[] = "INSERT IGNORE INTO tp_run (name, run_id, rank, start_ns, segment,"
                              " place, span_segment, span_place) VALUES (?, ?, ?, ?, 0, 0, 0, 0)";
    static const char find[] = "SELECT run, segment, place, span_segment, span_place FROM tp_run"
                               " WHERE name = ? AND run_id = ? AND rank = ?";
    mariadb *db = private;
    unsigned long lengths[2];
    int64_t rank = wanted->info->rank;
    int64_t start = wanted->info->start_wall_ns;
    int64_t row[5] = {0};
    bool found = false;
    if (strlen(wanted->name) > NAME_MAX_LENGTH) {
        return tp_fail(error, TP_ERR_ARGUMENT, "the directory's name is too long");
    }
    MYSQL_BIND binds[] = {bind_text(wanted->name, &lengths[0]),
                          bind_text(wanted->info->run_id, &lengths[1]), bind_number(&rank),
                          bind_number(&start)};
    tp_status status = execute(db, find, binds, row, 5, &found, error);
    if (status == TP_OK && !found) {
        status = execute(db, add, binds, NULL, 0, NULL, error);
        if (status == TP_OK) {
            status = execute(db, find, binds, row, 5, &found, error);
        }
    }
    if (status != TP_OK) {
        return status;
    }
    if (!found) {
        return tp_fail(error, TP_ERR_IO, "tp_run has lost a row");
    }
    *number = row[0];
    cursor->position = (tp_position){(uint64_t)row[1], (uint64_t)row[2]};
    cursor->span = (tp_position){(uint64_t)row[3], (uint64_t)row[4]};
    return load_series(db, *number, known, error);
}

static tp_status mariadb_begin(void *private, int64_t number, const tp_ship_cursor *cursor,
                               tp_error *error)
{
    mariadb *db = private;
    int64_t row[2] = {0};
    bool found = false;
    MYSQL_BIND which = bind_number(&number);
    tp_status status = run(db, "START TRANSACTION", error);
    if (status == TP_OK) {
        status = execute(db, "SELECT segment, place FROM tp_run WHERE run = ? FOR UPDATE", &which,
                         row, 2, &found, error);
    }
    if (status == TP_OK && (!found || (uint64_t)row[0] != cursor->position.segment ||
                            (uint64_t)row[1] != cursor->position.offset)) {
        status = tp_fail(error, TP_ERR_IO, "another process delivers this run, too");
    }
    return status;
}

static tp_status prepare(mariadb *db, tp_table_id which, tp_error *error)
{
    const tp_table *table = &tp_tables[which];
    tp_buf sql = TP_BUF_INIT;
    if (db->insert[which] != NULL) {
        return TP_OK;
    }
    tp_buf_printf(&sql, "INSERT INTO %s (run, ", table->name);
    tp_table_put_columns(&sql, table, "`");
    tp_buf_printf(&sql, ") VALUES (?");
    for (uint32_t i = 0; i < table->column_count; i++) {
        tp_buf_printf(&sql, ", ?");
    }
    tp_buf_printf(&sql, ")");
    MYSQL_STMT *statement = sql.failed ? NULL : mysql_stmt_init(db->connection);
    tp_status status = TP_OK;
    if (statement == NULL) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory for a statement");
    } else if (mysql_stmt_prepare(statement, (const char *)sql.data, sql.size) != 0) {
        status = fail_statement(statement, error);
        mysql_stmt_close(statement);
    } else {
        db->insert[which] = statement;
    }
    tp_buf_free(&sql);
    return status;
}

/* One column of all rows: an array of values, of lengths (texts alone), and of marks that say which
 * are NULL. */
typedef union value {
    int64_t integer;
    double real;
    const char *text;
} value;

static void fill_column(const tp_rows *rows, uint32_t column, value *values, unsigned long *lengths,
                        char *marks)
{
    for (uint64_t i = 0; i < rows->count; i++) {
        const tp_cell *cell = &tp_rows_get(rows, i)[column];
        marks[i] = STMT_INDICATOR_NONE;
        lengths[i] = 0;
        switch (cell->kind) {
        case TP_CELL_INTEGER:
            values[i].integer = cell->u.integer;
            break;
        case TP_CELL_REAL:
            values[i].real = cell->u.real;
            marks[i] = isfinite(cell->u.real) ? STMT_INDICATOR_NONE : STMT_INDICATOR_NULL;
            break;
        case TP_CELL_TEXT:
            values[i].text = tp_rows_text(rows, cell);
            lengths[i] = cell->size;
            break;
        default:
            values[i].text = "";
            marks[i] = STMT_INDICATOR_NULL;
            break;
        }
    }
}

static tp_status mariadb_insert(void *private, int64_t number, const tp_rows *rows, tp_error *error)
{
    static const enum enum_field_types types[] = {
        [TP_CELL_INTEGER] = MYSQL_TYPE_LONGLONG,
        [TP_CELL_REAL] = MYSQL_TYPE_DOUBLE,
        [TP_CELL_TEXT] = MYSQL_TYPE_STRING,
    };
    mariadb *db = private;
    const tp_table *table = &tp_tables[rows->table];
    const uint64_t count = rows->count;
    const size_t row_size = sizeof(value) + sizeof(unsigned long) + 1;
    MYSQL_BIND binds[COLUMNS_MAX];
    tp_status status = prepare(db, rows->table, error);
    if (status != TP_OK) {
        return status;
    }
    tp_buf_clear(&db->arrays);
    uint8_t *memory = tp_buf_extend(&db->arrays, (table->column_count + 1) * count * row_size);
    if (memory == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory to insert rows");
    }
    memset(binds, 0, sizeof binds);
    value *values = (value *)(void *)memory;
    unsigned long *lengths = (void *)(values + (table->column_count + 1) * count);
    char *marks = (char *)(lengths + (table->column_count + 1) * count);
    for (uint32_t i = 0; i <= table->column_count; i++) {
        const tp_cell_kind kind = i == 0 ? TP_CELL_INTEGER : table->columns[i - 1].kind;
        binds[i].buffer_type = types[kind];
        binds[i].buffer = values + i * count;
        binds[i].length = lengths + i * count;
        binds[i].u.indicator = marks + i * count;
        if (i > 0) {
            fill_column(rows, i - 1, values + i * count, lengths + i * count, marks + i * count);
        }
    }
    for (uint64_t i = 0; i < count; i++) {
        values[i].integer = number;
        lengths[i] = 0;
        marks[i] = STMT_INDICATOR_NONE;
    }
    MYSQL_STMT *insert = db->insert[rows->table];
    const unsigned array_size = (unsigned)count;
    if (mysql_stmt_attr_set(insert, STMT_ATTR_ARRAY_SIZE, &array_size) != 0 ||
        mysql_stmt_bind_param(insert, binds) != 0 || mysql_stmt_execute(insert) != 0) {
        return fail_statement(insert, error);
    }
    return TP_OK;
}

static tp_status mariadb_commit(void *private, int64_t number, const tp_ship_cursor *cursor,
                                tp_error *error)
{
    mariadb *db = private;
    char sql[320];
    snprintf(sql, sizeof sql,
             "UPDATE tp_run SET segment = %" PRIu64 ", place = %" PRIu64 ", span_segment = %" PRIu64
             ", span_place = %" PRIu64 " WHERE run = %" PRId64,
             cursor->position.segment, cursor->position.offset, cursor->span.segment,
             cursor->span.offset, number);
    tp_status status = run(db, sql, error);
    return status == TP_OK ? run(db, "COMMIT", error) : status;
}

static tp_status mariadb_insert_message(void *private, const char *job, const char *text,
                                        const char *rule, uint64_t step, int64_t wall_ns,
                                        tp_error *error)
{
    mariadb *db = private;
    unsigned long lengths[3];
    int64_t step_number = (int64_t)step;
    int64_t seconds = wall_ns / 1000000000;
    MYSQL_BIND ours[] = {bind_text(job, &lengths[0]), bind_text(rule, &lengths[1]),
                         bind_number(&step_number), bind_number(&wall_ns),
                         bind_text(text, &lengths[2])};
    MYSQL_BIND theirs[] = {ours[0], ours[4], bind_number(&seconds)};
    tp_status status = run(db, "START TRANSACTION", error);
    if (status == TP_OK) {
        status = execute(db,
                         "INSERT INTO tp_message (job_id, rule, step, wall_ns, message)"
                         " VALUES (?, ?, ?, ?, ?)",
                         ours, NULL, 0, NULL, error);
    }
    if (status == TP_OK) {
        status = execute(db,
                         "INSERT INTO exception_message (job_id, message, create_time)"
                         " VALUES (LEFT(?, 40), LEFT(?, 255), FROM_UNIXTIME(?))",
                         theirs, NULL, 0, NULL, error);
    }
    return status == TP_OK ? run(db, "COMMIT", error) : status;
}

static void mariadb_close(void *private)
{
    mariadb *db = private;
    for (int i = 0; i < TP_TABLE_COUNT; i++) {
        if (db->insert[i] != NULL) {
            mysql_stmt_close(db->insert[i]);
        }
    }
    if (db->connection != NULL) {
        mysql_close(db->connection);
    }
    tp_buf_free(&db->arrays);
}

const tp_backend tp_backend_mariadb = {
    .kind = TP_URL_MARIADB,
    .private_size = sizeof(mariadb),
    .open = mariadb_open,
    .find_run = mariadb_find_run,
    .begin = mariadb_begin,
    .insert = mariadb_insert,
    .commit = mariadb_commit,
    .insert_message = mariadb_insert_message,
    .close = mariadb_close,
};
