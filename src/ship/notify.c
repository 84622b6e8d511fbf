#include "ship/notify.h"

#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "config/url.h"
#include "ship/backend.h"
#include "ship/web.h"
#include "sinks/messages.h"

/* As KJ600 has it: two minutes, and ten for mail. */
#define PAUSE_NS UINT64_C(120000000000)
#define MAIL_PAUSE_NS UINT64_C(600000000000)
#define COMMAND_NS UINT64_C(60000000000)
#define COMMAND_LOOK_NS 20000000

extern char **environ;

struct tp_notifier {
    const tp_inform_config *inform;
    char name[256];
    tp_url url; /* of the database or the webhook */
    char *user; /* of the mail server */
    char *password;
    const tp_backend *backend; /* of a database server */
    void *private;             /* NULL: not connected */
    tp_web *web;               /* NULL: not needed yet */
};

static tp_status read_url(tp_notifier *notifier, const char *text, tp_error *error)
{
    char *url = NULL;
    tp_status status = tp_secret_read(text, &url, error);
    if (status == TP_OK) {
        status = tp_url_parse(&notifier->url, url, error);
        tp_free(url);
    }
    if (status == TP_OK) {
        tp_url_describe(&notifier->url, notifier->name, sizeof notifier->name);
    }
    return status;
}

static tp_status need_curl(tp_error *error)
{
#ifdef TP_HAVE_LIBCURL
    (void)error;
    return TP_OK;
#else
    return tp_fail(error, TP_ERR_UNSUPPORTED,
                   "this tensorprobe was built without libcurl, which mails and webhooks need; "
                   "install its development files and build it again");
#endif
}

/* A line break would begin a header of its own. */
static bool is_address(const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c <= 0x20 || *c == '<' || *c == '>') {
            return false;
        }
    }
    return text[0] != '\0';
}

static tp_status prepare_mail(tp_notifier *notifier, tp_error *error)
{
    const tp_inform_config *inform = notifier->inform;
    tp_status status = need_curl(error);
    if (status == TP_OK &&
        (!is_address(inform->send_email_address) || !is_address(inform->receive_email_address) ||
         !is_address(inform->smtp_server))) {
        status = tp_fail(error, TP_ERR_CONFIG,
                         "the addresses and the server of an email are written without spaces and "
                         "brackets, as in name@example.org");
    }
    if (status == TP_OK && inform->send_email_username != NULL) {
        status = tp_secret_read(inform->send_email_username, &notifier->user, error);
    }
    if (status == TP_OK && inform->send_email_password != NULL) {
        status = tp_secret_read(inform->send_email_password, &notifier->password, error);
    }
    snprintf(notifier->name, sizeof notifier->name, "mail by %.200s", inform->smtp_server);
    return status;
}

static tp_status prepare_database(tp_notifier *notifier, tp_error *error)
{
    tp_status status = read_url(notifier, notifier->inform->connection_str, error);
    if (status != TP_OK || notifier->url.kind == TP_URL_SQLITE) {
        return status;
    }
    status = tp_backend_find(&notifier->backend, &notifier->url, error);
    if (status == TP_OK && notifier->backend->insert_message == NULL) {
        status = tp_fail(error, TP_ERR_CONFIG,
                         "connection_str is no database's; for a webhook write \"recipient\": "
                         "\"webhook\" and \"url\"");
    }
    return status;
}

static tp_status prepare_webhook(tp_notifier *notifier, tp_error *error)
{
    tp_status status = read_url(notifier, notifier->inform->url, error);
    if (status == TP_OK && notifier->url.kind != TP_URL_HTTP) {
        return tp_fail(error, TP_ERR_CONFIG, "a webhook's url begins with https:// or http://");
    }
    return status == TP_OK ? need_curl(error) : status;
}

tp_status tp_notifier_open(tp_notifier **out, const tp_inform_config *inform, tp_error *error)
{
    tp_notifier *notifier = tp_calloc(1, sizeof *notifier);
    tp_status status = TP_OK;
    if (notifier == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for messages");
    }
    notifier->inform = inform;
    switch (inform->recipient) {
    case TP_INFORM_DATABASE:
        status = prepare_database(notifier, error);
        break;
    case TP_INFORM_EMAIL:
        status = prepare_mail(notifier, error);
        break;
    case TP_INFORM_WEBHOOK:
        status = prepare_webhook(notifier, error);
        break;
    default:
        snprintf(notifier->name, sizeof notifier->name, "%.200s", inform->command.items[0]);
        break;
    }
    if (status != TP_OK) {
        tp_notifier_close(&notifier);
        return status;
    }
    *out = notifier;
    return TP_OK;
}

static void disconnect(tp_notifier *notifier)
{
    if (notifier->private != NULL) {
        notifier->backend->close(notifier->private);
        tp_free(notifier->private);
        notifier->private = NULL;
    }
}

void tp_notifier_close(tp_notifier **notifier)
{
    if (*notifier != NULL) {
        disconnect(*notifier);
#ifdef TP_HAVE_LIBCURL
        tp_web_close(&(*notifier)->web);
#endif
        tp_url_free(&(*notifier)->url);
        tp_free((*notifier)->user);
        tp_free((*notifier)->password);
        tp_free(*notifier);
        *notifier = NULL;
    }
}

uint64_t tp_notifier_pause(const tp_notifier *notifier)
{
    return notifier->inform->recipient == TP_INFORM_EMAIL ? MAIL_PAUSE_NS : PAUSE_NS;
}

const char *tp_notifier_name(const tp_notifier *notifier)
{
    return notifier->name;
}

static tp_status add_row(tp_notifier *notifier, const tp_message *message, tp_error *error)
{
    if (notifier->url.kind == TP_URL_SQLITE) {
        return tp_sqlite_add_message(notifier->url.path, message->job, message->text, message->rule,
                                     message->step, message->wall_ns, error);
    }
    tp_status status = TP_OK;
    if (notifier->private == NULL) {
        notifier->private = tp_calloc(1, notifier->backend->private_size);
        if (notifier->private == NULL) {
            return tp_fail(error, TP_ERR_NOMEM, "no memory for a connection");
        }
        status = notifier->backend->open(notifier->private, &notifier->url, error);
    }
    if (status == TP_OK) {
        status = notifier->backend->insert_message(notifier->private, message->job, message->text,
                                                   message->rule, message->step, message->wall_ns,
                                                   error);
    }
    if (status != TP_OK) {
        disconnect(notifier);
    }
    return status;
}

static tp_status send_rows(tp_notifier *notifier, const tp_message *messages, uint32_t count,
                           uint32_t *sent, tp_error *error)
{
    tp_status status = TP_OK;
    while (status == TP_OK && *sent < count) {
        status = add_row(notifier, &messages[*sent], error);
        *sent += status == TP_OK;
    }
    return status;
}

/* One object: what a program can take apart, and a `text` that chats show. */
static void put_json(tp_buf *out, const tp_message *messages, uint32_t count)
{
    tp_buf all = TP_BUF_INIT;
    for (uint32_t i = 0; i < count; i++) {
        tp_buf_printf(&all, "%s%s: %s", i > 0 ? "\n" : "", messages[i].job, messages[i].text);
    }
    tp_buf_put(&all, "", 1);
    tp_buf_printf(out, "{\"text\": ");
    tp_text_put_json(out, all.failed ? "" : (const char *)all.data);
    tp_buf_printf(out, ", \"messages\": [");
    for (uint32_t i = 0; i < count; i++) {
        const tp_message *m = &messages[i];
        tp_buf_printf(out, "%s{\"job_id\": ", i > 0 ? ", " : "");
        tp_text_put_json(out, m->job);
        tp_buf_printf(out,
                      ", \"rule\": \"%s\", \"step\": %" PRIu64 ", \"rank\": %" PRIu32
                      ", \"ranks\": %" PRIu32 ", \"wall_ns\": %" PRId64 ", \"message\": ",
                      m->rule, m->step, m->rank, m->ranks, m->wall_ns);
        tp_text_put_json(out, m->text);
        tp_buf_printf(out, "}");
    }
    tp_buf_printf(out, "]}\n");
    out->failed |= all.failed;
    tp_buf_free(&all);
}

/* Waits for the program, but not for ever. */
static tp_status await(pid_t child, const char *name, tp_error *error)
{
    const struct timespec pause = {0, COMMAND_LOOK_NS};
    const uint64_t begin = tp_clock_monotonic();
    int result = 0;
    while (waitpid(child, &result, WNOHANG) == 0) {
        if (tp_clock_monotonic() - begin > COMMAND_NS) {
            kill(-child, SIGKILL); /* with what it has started */
            waitpid(child, &result, 0);
            return tp_fail(error, TP_ERR_IO, "%s did not end within a minute", name);
        }
        nanosleep(&pause, NULL);
    }
    if (WIFEXITED(result) && WEXITSTATUS(result) == 0) {
        return TP_OK;
    }
    return WIFEXITED(result)
               ? tp_fail(error, TP_ERR_IO, "%s ended with %d", name, WEXITSTATUS(result))
               : tp_fail(error, TP_ERR_IO, "%s ended by signal %d", name, WTERMSIG(result));
}

static tp_status run_command(const tp_notifier *notifier, int input, tp_error *error)
{
    const tp_texts *command = &notifier->inform->command;
    pid_t child;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t signals;
    char **arguments = tp_calloc(command->count + 1, sizeof *arguments);
    if (arguments == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for a command");
    }
    memcpy(arguments, command->items, command->count * sizeof *arguments);
    sigemptyset(&signals);
    sigaddset(&signals, SIGPIPE);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigdefault(&attributes, &signals);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    const int code = posix_spawnp(&child, arguments[0], &actions, &attributes, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    tp_free(arguments);
    return code != 0
               ? tp_fail(error, TP_ERR_IO, "can't start %s: %s", notifier->name, strerror(code))
               : await(child, notifier->name, error);
}

static tp_status send_to_command(const tp_notifier *notifier, const tp_buf *json, tp_error *error)
{
    const int input = memfd_create("messages", MFD_CLOEXEC);
    if (input < 0) {
        return tp_fail(error, TP_ERR_IO, "no memory for messages");
    }
    tp_status status = tp_file_write(input, "messages", json->data, json->size, error);
    if (status == TP_OK) {
        lseek(input, 0, SEEK_SET);
        status = run_command(notifier, input, error);
    }
    tp_file_close(input);
    return status;
}

#ifdef TP_HAVE_LIBCURL
static tp_status need_web(tp_notifier *notifier, tp_error *error)
{
    return notifier->web != NULL ? TP_OK : tp_web_open(&notifier->web, error);
}

/* Lines end with CR LF; the text keeps to one line a message. */
static void put_mail(tp_buf *out, const tp_inform_config *inform, const tp_message *messages,
                     uint32_t count)
{
    static const char days[] = "SunMonTueWedThuFriSat";
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    const int64_t now = tp_clock_wall();
    const time_t seconds = (time_t)(now / 1000000000);
    const char *at = strrchr(inform->send_email_address, '@');
    struct tm t = {0};
    gmtime_r(&seconds, &t);
    tp_buf_printf(out, "From: <%s>\r\nTo: <%s>\r\n", inform->send_email_address,
                  inform->receive_email_address);
    tp_buf_printf(out, "Date: %.3s, %02d %.3s %d %02d:%02d:%02d +0000\r\n", days + 3 * t.tm_wday,
                  t.tm_mday, months + 3 * t.tm_mon, t.tm_year + 1900, t.tm_hour, t.tm_min,
                  t.tm_sec);
    tp_buf_printf(out, "Message-ID: <%" PRId64 ".%d@%s>\r\n", now, (int)getpid(),
                  at != NULL && at[1] != '\0' ? at + 1 : "localhost");
    tp_buf_printf(out, "Subject: Exception Detected in Your Program (%s, step %" PRIu64 ")\r\n",
                  messages[0].rule, messages[0].step);
    tp_buf_printf(out, "MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n"
                       "Content-Transfer-Encoding: 8bit\r\nAuto-Submitted: auto-generated\r\n\r\n");
    tp_buf_printf(out, "%" PRIu32 " exception%s detected in your program:\r\n\r\n", count,
                  count == 1 ? " was" : "s were");
    for (uint32_t i = 0; i < count; i++) {
        tp_buf_printf(out, "%s: %s\r\n", messages[i].job, messages[i].text);
    }
}

static tp_status send_mail(tp_notifier *notifier, const tp_message *messages, uint32_t count,
                           tp_error *error)
{
    tp_buf mail = TP_BUF_INIT;
    put_mail(&mail, notifier->inform, messages, count);
    tp_status status = mail.failed ? tp_fail(error, TP_ERR_NOMEM, "no memory for a mail")
                                   : need_web(notifier, error);
    if (status == TP_OK) {
        status = tp_web_mail(notifier->web, notifier->inform, notifier->user, notifier->password,
                             &mail, error);
    }
    tp_buf_free(&mail);
    return status;
}

static tp_status send_to_webhook(tp_notifier *notifier, const tp_buf *json, tp_error *error)
{
    tp_status status = need_web(notifier, error);
    return status == TP_OK
               ? tp_web_post(notifier->web, &notifier->url, "/", "application/json", json, error)
               : status;
}
#else
static tp_status send_mail(tp_notifier *notifier, const tp_message *messages, uint32_t count,
                           tp_error *error)
{
    (void)notifier;
    (void)messages;
    (void)count;
    return need_curl(error);
}

static tp_status send_to_webhook(tp_notifier *notifier, const tp_buf *json, tp_error *error)
{
    (void)notifier;
    (void)json;
    return need_curl(error);
}
#endif

tp_status tp_notifier_send(tp_notifier *notifier, const tp_message *messages, uint32_t count,
                           uint32_t *sent, tp_error *error)
{
    tp_status status;
    *sent = 0;
    if (notifier->inform->recipient == TP_INFORM_DATABASE) {
        return send_rows(notifier, messages, count, sent, error);
    }
    if (notifier->inform->recipient == TP_INFORM_EMAIL) {
        status = send_mail(notifier, messages, count, error);
    } else {
        tp_buf json = TP_BUF_INIT;
        put_json(&json, messages, count);
        status = json.failed ? tp_fail(error, TP_ERR_NOMEM, "no memory for messages")
                 : notifier->inform->recipient == TP_INFORM_COMMAND
                     ? send_to_command(notifier, &json, error)
                     : send_to_webhook(notifier, &json, error);
        tp_buf_free(&json);
    }
    *sent = status == TP_OK ? count : 0;
    return status;
}
