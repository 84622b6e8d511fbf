#include "config/url.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

#define SECRET_MAX 65536

static const struct scheme {
    const char *name;
    tp_url_kind kind;
    bool tls;
} schemes[] = {
    {"postgresql", TP_URL_POSTGRES, false}, {"postgres", TP_URL_POSTGRES, false},
    {"mysql", TP_URL_MARIADB, false},       {"mariadb", TP_URL_MARIADB, false},
    {"sqlite", TP_URL_SQLITE, false},       {"http", TP_URL_HTTP, false},
    {"https", TP_URL_HTTP, true},
};

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool is_plain(char c)
{
    return (unsigned char)c > 0x20 && c != 0x7f;
}

/* A copy of the part without its escapes. NULL and *error: no memory, or a wrong escape. */
static char *decode(const char *part, size_t length, const char *what, tp_error *error)
{
    char *copy = tp_alloc(length + 1);
    size_t used = 0;
    if (copy == NULL) {
        tp_fail(error, TP_ERR_NOMEM, "no memory for a URL");
        return NULL;
    }
    for (size_t i = 0; i < length; i++) {
        char c = part[i];
        if (c == '%') {
            int high = length - i > 2 ? hex_digit(part[i + 1]) : -1;
            int low = length - i > 2 ? hex_digit(part[i + 2]) : -1;
            if (high < 0 || low < 0 || high * 16 + low == 0) {
                tp_fail(error, TP_ERR_CONFIG,
                        "the %s of the URL has a %% without two hexadecimal digits behind it; "
                        "write a %% as %%25",
                        what);
                tp_free(copy);
                return NULL;
            }
            c = (char)(high * 16 + low);
            i += 2;
        }
        copy[used++] = c;
    }
    copy[used] = '\0';
    return copy;
}

static tp_status fail_scheme(tp_error *error)
{
    return tp_fail(error, TP_ERR_CONFIG,
                   "is no URL that is known here; write postgresql://USER:PASSWORD@HOST:PORT/"
                   "DATABASE, mysql+pymysql://…, sqlite:///FILE, or http://HOST:PORT/PATH");
}

/* Which scheme the text begins with; *rest is behind its "://". */
static const struct scheme *find_scheme(const char *text, const char **rest)
{
    const char *end = strstr(text, "://");
    const size_t length = end != NULL ? strcspn(text, "+:") : 0;
    for (size_t i = 0; end != NULL && i < sizeof schemes / sizeof schemes[0]; i++) {
        const struct scheme *scheme = &schemes[i];
        const bool has_driver = text[length] == '+';
        if (strlen(scheme->name) == length && strncmp(text, scheme->name, length) == 0 &&
            (!has_driver || scheme->kind != TP_URL_HTTP) &&
            strspn(text + length, "+abcdefghijklmnopqrstuvwxyz0123456789_") ==
                (size_t)(end - text) - length) {
            *rest = end + 3;
            return scheme;
        }
    }
    return NULL;
}

/* The value of an environment variable, or NULL and *error. */
static char *from_environment(const char *name, tp_error *error)
{
    const char *value = getenv(name);
    if (value == NULL || value[0] == '\0') {
        tp_fail(error, TP_ERR_CONFIG, "the environment variable %.100s is not set", name);
        return NULL;
    }
    char *copy = tp_strdup(value);
    if (copy == NULL) {
        tp_fail(error, TP_ERR_NOMEM, "no memory for a secret");
    }
    return copy;
}

static char *decode_password(const char *part, size_t length, tp_error *error)
{
    char *password = decode(part, length, "password", error);
    if (password != NULL && part[0] == '$' && length > 1) {
        char *value = from_environment(password + 1, error);
        tp_free(password);
        return value;
    }
    return password;
}

/* "user:password@", if it is there. As SQLAlchemy reads it, a password ends at the first @. */
static tp_status read_user(tp_url *url, const char **rest, tp_error *error)
{
    const char *begin = *rest;
    const char *end = begin + strcspn(begin, ":/@?");
    const char *at = end;
    if (*end == ':') {
        at = url->kind == TP_URL_HTTP ? end + strcspn(end, "/@?") : strchr(end, '@');
    }
    if (at == NULL || *at != '@') {
        return TP_OK;
    }
    url->user = decode(begin, (size_t)(end - begin), "user name", error);
    if (url->user == NULL) {
        return TP_ERR_CONFIG;
    }
    if (*end == ':') {
        url->password = decode_password(end + 1, (size_t)(at - end - 1), error);
        if (url->password == NULL) {
            return TP_ERR_CONFIG;
        }
    }
    *rest = at + 1;
    return TP_OK;
}

static tp_status read_port(tp_url *url, const char *digits, size_t length, tp_error *error)
{
    unsigned long port = length > 0 && length <= 5 ? strtoul(digits, NULL, 10) : 0;
    if (strspn(digits, "0123456789") < length || port < 1 || port > 65535) {
        return tp_fail(error, TP_ERR_CONFIG,
                       "the port of the URL must be a number from 1 to 65535, as in "
                       "HOST:5432; in a password write : as %%3A, / as %%2F and @ as %%40");
    }
    url->port = (uint32_t)port;
    return TP_OK;
}

static tp_status read_host(tp_url *url, const char **rest, tp_error *error)
{
    const char *begin = *rest;
    size_t length = strcspn(begin, "/?");
    if (memchr(begin, '@', length) != NULL) {
        return tp_fail(error, TP_ERR_CONFIG,
                       "the URL has more than one @; in a user name or password write it as %%40");
    }
    *rest = begin + length;
    if (begin[0] == '[') {
        const char *close = memchr(begin, ']', length);
        if (close == NULL || (close[1] != ':' && close + 1 != begin + length)) {
            return tp_fail(error, TP_ERR_CONFIG,
                           "the URL's host has a [ without ]; write [::1] or [::1]:5432");
        }
        url->host = decode(begin + 1, (size_t)(close - begin - 1), "host", error);
        if (url->host != NULL && close[1] == ':') {
            return read_port(url, close + 2, (size_t)(begin + length - close - 2), error);
        }
        return url->host != NULL ? TP_OK : TP_ERR_CONFIG;
    }
    const char *colon = memchr(begin, ':', length);
    const size_t host = colon != NULL ? (size_t)(colon - begin) : length;
    if (host > 0) {
        url->host = decode(begin, host, "host", error);
        if (url->host == NULL) {
            return TP_ERR_CONFIG;
        }
    }
    return colon != NULL ? read_port(url, colon + 1, length - host - 1, error) : TP_OK;
}

/* What is behind the host. */
static tp_status read_rest(tp_url *url, const char *rest, tp_error *error)
{
    const size_t length = strcspn(rest, "?");
    if (rest[length] == '?') {
        url->query = tp_strdup(rest + length + 1);
        if (url->query == NULL) {
            return tp_fail(error, TP_ERR_NOMEM, "no memory for a URL");
        }
    }
    if (url->kind == TP_URL_HTTP) {
        if (length > 0) {
            url->path = tp_alloc(length + 1);
            if (url->path == NULL) {
                return tp_fail(error, TP_ERR_NOMEM, "no memory for a URL");
            }
            memcpy(url->path, rest, length);
            url->path[length] = '\0';
        }
    } else if (length > 1) {
        url->path = decode(rest + 1, length - 1, "database", error);
        if (url->path == NULL) {
            return TP_ERR_CONFIG;
        }
    }
    return TP_OK;
}

static tp_status check_parts(const tp_url *url, tp_error *error)
{
    if (url->kind == TP_URL_SQLITE && (url->path == NULL || url->host != NULL)) {
        return tp_fail(error, TP_ERR_CONFIG,
                       "names no file; write sqlite:///FILE, or sqlite:////FILE for an absolute "
                       "path");
    }
    if (url->kind == TP_URL_HTTP && url->host == NULL) {
        return tp_fail(error, TP_ERR_CONFIG, "the URL has no host; write http://HOST:PORT/PATH");
    }
    if ((url->kind == TP_URL_POSTGRES || url->kind == TP_URL_MARIADB) && url->path == NULL) {
        return tp_fail(error, TP_ERR_CONFIG,
                       "the URL names no database; write …@HOST:PORT/DATABASE");
    }
    return TP_OK;
}

tp_status tp_url_parse(tp_url *out, const char *text, tp_error *error)
{
    const char *rest;
    tp_error local;
    tp_error *where = error != NULL ? error : &local;
    *out = (tp_url){0};
    const struct scheme *scheme = find_scheme(text, &rest);
    if (scheme == NULL) {
        return fail_scheme(error);
    }
    for (const char *c = text; *c != '\0'; c++) {
        if (!is_plain(*c)) {
            return tp_fail(error, TP_ERR_CONFIG,
                           "the URL holds a space or a control character; write a space as %%20");
        }
    }
    out->kind = scheme->kind;
    out->tls = scheme->tls;
    tp_status status = read_user(out, &rest, where);
    if (status == TP_OK) {
        status = read_host(out, &rest, where);
    }
    if (status == TP_OK) {
        status = read_rest(out, rest, where);
    }
    if (status == TP_OK) {
        status = check_parts(out, where);
    }
    if (status != TP_OK) {
        tp_url_free(out);
        return where->code;
    }
    return TP_OK;
}

tp_status tp_url_option(const tp_url *url, const char *name, char *text, size_t size)
{
    const size_t length = strlen(name);
    const char *next = url->query;
    while (next != NULL && *next != '\0') {
        const size_t whole = strcspn(next, "&");
        if (whole > length && strncmp(next, name, length) == 0 && next[length] == '=') {
            char *value = decode(next + length + 1, whole - length - 1, "query", NULL);
            tp_status status = TP_ERR_ARGUMENT;
            if (value != NULL && strlen(value) < size) {
                memcpy(text, value, strlen(value) + 1);
                status = TP_OK;
            }
            tp_free(value);
            return status;
        }
        next += whole + (next[whole] == '&');
    }
    return TP_ERR_NOTFOUND;
}

void tp_url_describe(const tp_url *url, char *text, size_t size)
{
    static const char *const names[] = {[TP_URL_POSTGRES] = "postgresql",
                                        [TP_URL_MARIADB] = "mariadb",
                                        [TP_URL_SQLITE] = "sqlite",
                                        [TP_URL_HTTP] = "http"};
    char port[16] = "";
    /* The path of a webhook may be its secret. */
    const char *path = url->path != NULL && url->kind != TP_URL_HTTP ? url->path : "";
    const bool bracket = url->host != NULL && strchr(url->host, ':') != NULL;
    if (url->port != 0) {
        snprintf(port, sizeof port, ":%u", url->port);
    }
    snprintf(text, size, "%s%s://%s%s%s%s%s%s", names[url->kind], url->tls ? "s" : "",
             bracket ? "[" : "", url->host != NULL ? url->host : "", bracket ? "]" : "", port,
             url->kind == TP_URL_HTTP ? "" : "/", path);
}

void tp_url_free(tp_url *url)
{
    tp_free(url->user);
    tp_free(url->password);
    tp_free(url->host);
    tp_free(url->path);
    tp_free(url->query);
    *url = (tp_url){0};
}

bool tp_secret_is_elsewhere(const char *text)
{
    return (text[0] == '$' && text[1] != '\0') || strncmp(text, "file:", 5) == 0;
}

tp_status tp_secret_read(const char *text, char **out, tp_error *error)
{
    tp_error local;
    tp_error *where = error != NULL ? error : &local;
    if (!tp_secret_is_elsewhere(text)) {
        *out = tp_strdup(text);
        return *out != NULL ? TP_OK : tp_fail(error, TP_ERR_NOMEM, "no memory for a secret");
    }
    if (text[0] == '$') {
        *out = from_environment(text + 1, where);
        return *out != NULL ? TP_OK : where->code;
    }
    tp_buf file = TP_BUF_INIT;
    tp_status status = tp_file_read_at_most(text + 5, SECRET_MAX, &file, error);
    if (status == TP_OK) {
        tp_buf_put(&file, "", 1);
        if (file.failed || (*out = tp_strdup((const char *)file.data)) == NULL) {
            status = tp_fail(error, TP_ERR_NOMEM, "no memory for a secret");
        } else {
            (*out)[strcspn(*out, "\r\n")] = '\0';
        }
    }
    tp_buf_free(&file);
    return status;
}
