/* URLs of databases as SQLAlchemy reads them, and secrets that stand elsewhere. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "config/config.h"
#include "config/url.h"

static void assert_text(const char *found, const char *wanted)
{
    if (wanted == NULL) {
        assert_null(found);
    } else {
        assert_non_null(found);
        assert_string_equal(found, wanted);
    }
}

/* What sqlalchemy.engine.make_url 2.0 makes of the same texts (urllib.parse of those of HTTP). */
static void test_parts(void **state)
{
    static const struct {
        const char *text;
        tp_url_kind kind;
        const char *user, *password, *host;
        uint32_t port;
        const char *path, *query, *shown;
    } cases[] = {
        {"postgresql://u:p@h:5433/d", TP_URL_POSTGRES, "u", "p", "h", 5433, "d", NULL,
         "postgresql://h:5433/d"},
        {"postgresql+psycopg2://u%40v:p%2Fq%40r%3A%25@h/d%20e?sslmode=require&x=%26",
         TP_URL_POSTGRES, "u@v", "p/q@r:%", "h", 0, "d e", "sslmode=require&x=%26",
         "postgresql://h/d e"},
        {"mysql+pymysql://root:p/q:r?s@127.0.0.1:3306/kj600", TP_URL_MARIADB, "root", "p/q:r?s",
         "127.0.0.1", 3306, "kj600", NULL, "mariadb://127.0.0.1:3306/kj600"},
        {"mariadb://u@[2001:db8::1]:3307/d", TP_URL_MARIADB, "u", NULL, "2001:db8::1", 3307, "d",
         NULL, "mariadb://[2001:db8::1]:3307/d"},
        {"postgres://u:@h/d", TP_URL_POSTGRES, "u", "", "h", 0, "d", NULL, "postgresql://h/d"},
        {"postgresql:///d?host=/run", TP_URL_POSTGRES, NULL, NULL, NULL, 0, "d", "host=/run",
         "postgresql:///d"},
        {"postgresql://h:1/d", TP_URL_POSTGRES, NULL, NULL, "h", 1, "d", NULL,
         "postgresql://h:1/d"},
        {"sqlite:///a/b.db", TP_URL_SQLITE, NULL, NULL, NULL, 0, "a/b.db", NULL,
         "sqlite:///a/b.db"},
        {"sqlite:////a/b.db", TP_URL_SQLITE, NULL, NULL, NULL, 0, "/a/b.db", NULL,
         "sqlite:////a/b.db"},
        {"https://t:s@h:8428/hooks/%41?db=a@b", TP_URL_HTTP, "t", "s", "h", 8428, "/hooks/%41",
         "db=a@b", "https://h:8428"},
        {"http://h:8086", TP_URL_HTTP, NULL, NULL, "h", 8086, NULL, NULL, "http://h:8086"},
        {"http://h/write?u=a:b@c", TP_URL_HTTP, NULL, NULL, "h", 0, "/write", "u=a:b@c",
         "http://h"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tp_url url;
        char shown[128];
        assert_int_equal(tp_url_parse(&url, cases[i].text, NULL), TP_OK);
        assert_int_equal(url.kind, cases[i].kind);
        assert_int_equal(url.tls, strncmp(cases[i].text, "https", 5) == 0);
        assert_text(url.user, cases[i].user);
        assert_text(url.password, cases[i].password);
        assert_text(url.host, cases[i].host);
        assert_int_equal(url.port, cases[i].port);
        assert_text(url.path, cases[i].path);
        assert_text(url.query, cases[i].query);
        tp_url_describe(&url, shown, sizeof shown);
        assert_string_equal(shown, cases[i].shown);
        tp_url_free(&url);
    }
}

static void test_options(void **state)
{
    tp_url url;
    char text[8];
    (void)state;
    assert_int_equal(tp_url_parse(&url, "mysql://h/d?a=1&bb=%2Fx&c=123456789&d=%", NULL), TP_OK);
    assert_int_equal(tp_url_option(&url, "a", text, sizeof text), TP_OK);
    assert_string_equal(text, "1");
    assert_int_equal(tp_url_option(&url, "bb", text, sizeof text), TP_OK);
    assert_string_equal(text, "/x");
    assert_int_equal(tp_url_option(&url, "b", text, sizeof text), TP_ERR_NOTFOUND);
    assert_int_equal(tp_url_option(&url, "c", text, sizeof text), TP_ERR_ARGUMENT);
    assert_int_equal(tp_url_option(&url, "d", text, sizeof text), TP_ERR_ARGUMENT);
    tp_url_free(&url);
}

/* No message may hold what could be a password, whatever is wrong with the text around it. */
static void test_errors_hold_no_secret(void **state)
{
    static const char *const texts[] = {
        "hunter2",
        "postgresql:/u:hunter2@h/d",
        "hunter2://u:hunter2@h/d",
        "postgresql://u:hunter2@h:x/d",
        "postgresql://u:hunter2@h",
        "postgresql://u:hunter2%zz@h/d",
        "postgresql://u:hunter2%00@h/d",
        "postgresql://hunter2%4:b@h/d",
        "postgresql://u:a@hunter2@h/d",
        "postgresql://u:hunter2@[h/d",
        "postgresql://u:hunter2 @h/d",
        "postgresql://u:hunter2@h:0/d",
        "postgresql://u:hunter2@h:123456/d",
        "postgresql://u:hunter2@h/%",
        "http://u:hunter2@/x",
        "https+x://u:hunter2@h/x",
        "sqlite://hunter2",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        tp_url url;
        tp_error error = {0};
        assert_int_equal(tp_url_parse(&url, texts[i], &error), TP_ERR_CONFIG);
        assert_int_equal(error.code, TP_ERR_CONFIG);
        assert_null(strstr(error.message, "hunter2"));
        assert_true(strlen(error.message) > 20);
    }
}

static void test_secrets_from_elsewhere(void **state)
{
    char path[] = "/tmp/tp_secret_XXXXXX";
    char named[64];
    char *secret = NULL;
    tp_url url;
    tp_error error = {0};
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "line one\r\nline two\n", 19) == 19);
    close(fd);
    snprintf(named, sizeof named, "file:%s", path);
    setenv("TP_TEST_SECRET", "p@:/%41", 1);
    unsetenv("TP_TEST_NONE");
    assert_int_equal(tp_secret_read(named, &secret, NULL), TP_OK);
    assert_string_equal(secret, "line one");
    tp_free(secret);
    unlink(path);
    assert_int_equal(tp_secret_read(named, &secret, &error), TP_ERR_NOTFOUND);
    assert_int_equal(tp_secret_read("$TP_TEST_SECRET", &secret, NULL), TP_OK);
    assert_string_equal(secret, "p@:/%41");
    tp_free(secret);
    assert_int_equal(tp_secret_read("$", &secret, NULL), TP_OK);
    assert_string_equal(secret, "$");
    tp_free(secret);
    assert_int_equal(tp_secret_read("$TP_TEST_NONE", &secret, &error), TP_ERR_CONFIG);
    assert_string_equal(error.message, "the environment variable TP_TEST_NONE is not set");
    /* In a URL it is taken as it is, without escapes. */
    assert_int_equal(tp_url_parse(&url, "mysql://u:$TP_TEST_SECRET@h/d", NULL), TP_OK);
    assert_string_equal(url.password, "p@:/%41");
    tp_url_free(&url);
    assert_int_equal(tp_url_parse(&url, "mysql://u:%24x@h/d", NULL), TP_OK);
    assert_string_equal(url.password, "$x");
    tp_url_free(&url);
}

/* What is handed to another process reads back to the same. */
static void test_delivery_reads_back(void **state)
{
    static const char text[] =
        "{\"wg_distribution\": true, \"database\": {\"url\": \"mysql://a:\\\"\\\\b@c/d\", "
        "\"targets\": [\"a.b\", \"c*\"], \"step_interval\": 3, \"rollup_steps\": 7}, \"alert\": "
        "{\"inform\": {\"recipient\": \"command\", \"command\": [\"/x\", \"é \\\"y\"], "
        "\"send_email_address\": \"a@b\", \"smtp_port\": 26}}}";
    tp_config first;
    tp_config second;
    tp_buf written = TP_BUF_INIT;
    (void)state;
    tp_config_defaults(&first, false);
    tp_config_defaults(&second, true);
    assert_int_equal(tp_config_parse(&first, text, sizeof text - 1, "t", NULL), TP_OK);
    tp_config_put_delivery(&first, &written);
    assert_int_equal(tp_config_parse(&second, (const char *)written.data, written.size, "t", NULL),
                     TP_OK);
    assert_string_equal(second.database.url, "mysql://a:\"\\b@c/d");
    assert_int_equal(second.database.selection.targets.count, 2);
    assert_string_equal(second.database.selection.targets.items[1], "c*");
    assert_int_equal(second.database.step_interval, 3);
    assert_int_equal(second.database.rollup_steps, 7);
    assert_int_equal(second.inform.recipient, TP_INFORM_COMMAND);
    assert_int_equal(second.inform.command.count, 2);
    assert_string_equal(second.inform.command.items[1], "é \"y");
    assert_string_equal(second.inform.send_email_address, "a@b");
    assert_int_equal(second.inform.smtp_port, 26);
    tp_buf_free(&written);
    tp_config_free(&first);
    tp_config_free(&second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_errors_hold_no_secret),
        cmocka_unit_test(test_secrets_from_elsewhere),
        cmocka_unit_test(test_delivery_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
