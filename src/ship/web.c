#include "ship/web.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define CONNECT_SECONDS 10L
#define WHOLE_SECONDS 60L
#define ANSWER_MAX 200 /* bytes of what a server says that are shown */

struct tp_web {
    CURL *curl;
    char answer[ANSWER_MAX + 1];
    size_t answer_size;
    char message[CURL_ERROR_SIZE];
};

/* What is left of a mail. */
typedef struct upload {
    const tp_buf *bytes;
    size_t done;
} upload;

static void begin_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

tp_status tp_web_open(tp_web **out, tp_error *error)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin_curl);
    tp_web *web = tp_calloc(1, sizeof *web);
    if (web != NULL) {
        web->curl = curl_easy_init();
    }
    if (web == NULL || web->curl == NULL) {
        tp_free(web);
        return tp_fail(error, TP_ERR_NOMEM, "no memory for a connection");
    }
    *out = web;
    return TP_OK;
}

void tp_web_close(tp_web **web)
{
    if (*web != NULL) {
        curl_easy_cleanup((*web)->curl);
        tp_free(*web);
        *web = NULL;
    }
}

/* Keeps the beginning of the answer. */
static size_t take_answer(char *bytes, size_t size, size_t count, void *context)
{
    tp_web *web = context;
    const size_t room = ANSWER_MAX - web->answer_size;
    const size_t taken = size * count < room ? size * count : room;
    memcpy(web->answer + web->answer_size, bytes, taken);
    web->answer_size += taken;
    web->answer[web->answer_size] = '\0';
    return size * count;
}

static size_t give_mail(char *bytes, size_t size, size_t count, void *context)
{
    upload *mail = context;
    const size_t left = mail->bytes->size - mail->done;
    const size_t given = size * count < left ? size * count : left;
    memcpy(bytes, mail->bytes->data + mail->done, given);
    mail->done += given;
    return given;
}

static void begin(tp_web *web, const char *url)
{
    const char *certificates = getenv("SSL_CERT_FILE");
    curl_easy_reset(web->curl);
    web->answer_size = 0;
    web->answer[0] = '\0';
    web->message[0] = '\0';
    curl_easy_setopt(web->curl, CURLOPT_URL, url);
    curl_easy_setopt(web->curl, CURLOPT_ERRORBUFFER, web->message);
    curl_easy_setopt(web->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(web->curl, CURLOPT_CONNECTTIMEOUT, CONNECT_SECONDS);
    curl_easy_setopt(web->curl, CURLOPT_TIMEOUT, WHOLE_SECONDS);
    curl_easy_setopt(web->curl, CURLOPT_WRITEFUNCTION, take_answer);
    curl_easy_setopt(web->curl, CURLOPT_WRITEDATA, web);
    curl_easy_setopt(web->curl, CURLOPT_USERAGENT, "tensorprobe");
    if (certificates != NULL && certificates[0] != '\0') {
        curl_easy_setopt(web->curl, CURLOPT_CAINFO, certificates);
    }
}

static tp_status fail_curl(const tp_web *web, CURLcode code, tp_error *error)
{
    return tp_fail(error, code == CURLE_LOGIN_DENIED ? TP_ERR_STATE : TP_ERR_IO, "%s",
                   web->message[0] != '\0' ? web->message : curl_easy_strerror(code));
}

static tp_status post(tp_web *web, const tp_url *url, const char *address, const char *type,
                      const tp_buf *body, tp_error *error)
{
    char header[768];
    long answer = 0;
    const bool token =
        url->password != NULL && url->path != NULL && strncmp(url->path, "/api/", 5) == 0;
    begin(web, address);
    snprintf(header, sizeof header, "Content-Type: %s", type);
    struct curl_slist *headers = curl_slist_append(NULL, header);
    if (token) {
        snprintf(header, sizeof header, "Authorization: Token %s", url->password);
        headers = curl_slist_append(headers, header);
    } else if (url->password != NULL) {
        curl_easy_setopt(web->curl, CURLOPT_USERNAME, url->user);
        curl_easy_setopt(web->curl, CURLOPT_PASSWORD, url->password);
    }
    curl_easy_setopt(web->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(web->curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(web->curl, CURLOPT_POST, 1L);
    curl_easy_setopt(web->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->size);
    curl_easy_setopt(web->curl, CURLOPT_POSTFIELDS, (const char *)body->data);
    const CURLcode code = curl_easy_perform(web->curl);
    curl_slist_free_all(headers);
    if (code != CURLE_OK) {
        return fail_curl(web, code, error);
    }
    curl_easy_getinfo(web->curl, CURLINFO_RESPONSE_CODE, &answer);
    if (answer >= 200 && answer < 300) {
        return TP_OK;
    }
    web->answer[strcspn(web->answer, "\r\n")] = '\0';
    return tp_fail(error, answer == 401 || answer == 403 ? TP_ERR_STATE : TP_ERR_IO,
                   "the server answers %ld: %s", answer, web->answer);
}

tp_status tp_web_post(tp_web *web, const tp_url *url, const char *path, const char *type,
                      const tp_buf *body, tp_error *error)
{
    tp_buf address = TP_BUF_INIT;
    const bool bracket = strchr(url->host, ':') != NULL;
    const bool has_path = url->path != NULL && strcmp(url->path, "/") != 0;
    tp_buf_printf(&address, "http%s://%s%s%s", url->tls ? "s" : "", bracket ? "[" : "", url->host,
                  bracket ? "]" : "");
    if (url->port != 0) {
        tp_buf_printf(&address, ":%u", url->port);
    }
    tp_buf_printf(&address, "%s", has_path ? url->path : path);
    if (url->query != NULL) {
        tp_buf_printf(&address, "?%s", url->query);
    }
    tp_buf_put(&address, "", 1);
    tp_status status = address.failed
                           ? tp_fail(error, TP_ERR_NOMEM, "no memory for a request")
                           : post(web, url, (const char *)address.data, type, body, error);
    tp_buf_free(&address);
    return status;
}

tp_status tp_web_mail(tp_web *web, const tp_inform_config *to, const char *user,
                      const char *password, const tp_buf *mail, tp_error *error)
{
    char address[512];
    upload rest = {mail, 0};
    const bool tls = to->smtp_port == 465;
    snprintf(address, sizeof address, "%s://%s:%u", tls ? "smtps" : "smtp", to->smtp_server,
             to->smtp_port);
    begin(web, address);
    struct curl_slist *receivers = curl_slist_append(NULL, to->receive_email_address);
    curl_easy_setopt(web->curl, CURLOPT_PROTOCOLS_STR, "smtp,smtps");
    curl_easy_setopt(web->curl, CURLOPT_USE_SSL, (long)CURLUSESSL_ALL);
    curl_easy_setopt(web->curl, CURLOPT_MAIL_FROM, to->send_email_address);
    curl_easy_setopt(web->curl, CURLOPT_MAIL_RCPT, receivers);
    curl_easy_setopt(web->curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(web->curl, CURLOPT_READFUNCTION, give_mail);
    curl_easy_setopt(web->curl, CURLOPT_READDATA, &rest);
    if (user != NULL) {
        curl_easy_setopt(web->curl, CURLOPT_USERNAME, user);
        curl_easy_setopt(web->curl, CURLOPT_PASSWORD, password != NULL ? password : "");
    }
    const CURLcode code = curl_easy_perform(web->curl);
    curl_slist_free_all(receivers);
    return code == CURLE_OK ? TP_OK : fail_curl(web, code, error);
}
