#include "ship/ship.h"

#include <pthread.h>

#include "base/log.h"
#include "base/mem.h"
#include "ship/notify.h"

/* The half that runs on a thread of its own. */
typedef struct half {
    const tp_ship_options *options;
    const int *stop;
    tp_ship_report report;
    tp_error error;
    tp_status status;
} half;

static void *run_messages(void *context)
{
    half *messages = context;
    messages->status =
        tp_ship_messages(messages->options, messages->stop, &messages->report, &messages->error);
    return NULL;
}

tp_status tp_ship_find_server(const tp_config *config, tp_url *url, const tp_backend **backend,
                              tp_error *error)
{
    char *text = NULL;
    tp_status status = tp_secret_read(config->database.url, &text, error);
    if (status == TP_OK) {
        status = tp_url_parse(url, text, error);
        tp_free(text);
    }
    return status == TP_OK ? tp_backend_find(backend, url, error) : status;
}

tp_status tp_ship_check(const tp_config *config, tp_error *error)
{
    tp_url url = {0};
    const tp_backend *backend;
    tp_notifier *notifier = NULL;
    tp_status status = TP_OK;
    if (config->database.url == NULL && config->inform.recipient == TP_INFORM_NOBODY) {
        return tp_fail(error, TP_ERR_CONFIG,
                       "nothing to deliver: neither database.url nor alert.inform is configured");
    }
    if (config->database.url != NULL) {
        status = tp_ship_find_server(config, &url, &backend, error);
        tp_url_free(&url);
    }
    if (status == TP_OK && config->inform.recipient != TP_INFORM_NOBODY) {
        status = tp_notifier_open(&notifier, &config->inform, error);
        tp_notifier_close(&notifier);
    }
    return status;
}

tp_status tp_ship_run(const tp_ship_options *options, const int *stop, tp_ship_report *report,
                      tp_error *error)
{
    const bool has_values = options->config->database.url != NULL;
    const bool has_messages = options->config->inform.recipient != TP_INFORM_NOBODY;
    half messages = {.options = options, .stop = stop, .status = TP_OK};
    pthread_t thread;
    *report = (tp_ship_report){0};
    if (!has_values) {
        return tp_ship_messages(options, stop, report, error);
    }
    if (has_messages && pthread_create(&thread, NULL, run_messages, &messages) != 0) {
        return tp_fail(error, TP_ERR_IO, "can't start a thread");
    }
    tp_status status = tp_ship_values(options, stop, report, error);
    if (has_messages) {
        if (status != TP_OK && status != TP_END) {
            tp_log(TP_LOG_ERROR, "%s", error->message); /* the messages may take their time */
        }
        pthread_join(thread, NULL);
        report->messages = messages.report.messages;
        if (messages.status != TP_OK && (status == TP_OK || status == TP_END)) {
            status = messages.status;
            *error = messages.error;
        }
    }
    return status;
}
