/* All journals of the scope to one server, through one connection. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "config/url.h"
#include "ship/retry.h"
#include "ship/ship.h"
#include "ship/stream.h"

#define PAUSE_NS 100000000     /* when there was nothing to do */
#define OPEN_AT_MOST 64        /* journals that are kept open */
#define JOURNAL_FAILURES_MAX 8 /* of one journal, before it is given up */

typedef struct shipment {
    const tp_ship_options *options;
    const int *stop;
    tp_members members;
    tp_url url;
    char what[512]; /* the URL, as it may be shown */
    tp_link link;
    tp_retry retry;
    bool worked; /* something was delivered in this round */
} shipment;

static bool must_stop(const shipment *s)
{
    return __atomic_load_n(s->stop, __ATOMIC_ACQUIRE) != 0;
}

static void disconnect(shipment *s)
{
    if (s->link.private != NULL) {
        s->link.backend->close(s->link.private);
        tp_free(s->link.private);
        s->link.private = NULL;
    }
    for (uint32_t i = 0; i < s->members.count; i++) {
        if (s->members.list[i].own != NULL) {
            tp_stream_forget(s->members.list[i].own);
        }
    }
}

static tp_status connect_server(shipment *s, tp_error *error)
{
    if (s->link.private != NULL) {
        return TP_OK;
    }
    s->link.private = tp_calloc(1, s->link.backend->private_size);
    if (s->link.private == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for a connection");
    }
    tp_status status = s->link.backend->open(s->link.private, &s->url, error);
    if (status != TP_OK) {
        disconnect(s);
    }
    return status;
}

/* A journal that can't be read holds up the others no longer than this. */
static void note_failure(tp_member *member, tp_status status, bool is_written,
                         const tp_error *error)
{
    char text[1024];
    if (status == TP_ERR_NOTFOUND && is_written) {
        return; /* not begun yet */
    }
    if (++member->failures == 1) {
        tp_log(TP_LOG_WARNING, "%s", tp_error_format(error, text, sizeof text));
    }
    if (member->failures >= JOURNAL_FAILURES_MAX) {
        member->is_done = true;
        member->has_failed = true;
    }
}

static tp_status deliver(shipment *s, tp_member *member, tp_error *error)
{
    const bool follow = s->options->scope.follow;
    tp_status status = TP_OK;
    if (member->own == NULL) {
        tp_stream *stream;
        status = tp_stream_new(&stream, member->directory, &s->options->config->database, error);
        if (status != TP_OK) {
            return status;
        }
        member->own = stream;
    }
    const bool is_written = tp_member_is_written(member); /* before its end is looked for */
    status = tp_stream_deliver(member->own, &s->link, !is_written, error);
    if (status == TP_OK) {
        s->worked = true;
    } else if (status == TP_END) {
        status = TP_OK;
        member->is_done = !is_written || !follow;
        if (member->is_done || s->members.count > OPEN_AT_MOST) {
            tp_stream_forget(member->own);
        }
    } else if (!s->link.failed && status != TP_ERR_NOMEM) {
        note_failure(member, status, is_written, error);
        status = TP_OK;
    }
    return status;
}

/* Every journal once. */
static tp_status go_round(shipment *s, tp_error *error)
{
    tp_status status = tp_members_look(&s->members, error);
    if (status == TP_OK && tp_retry_is_due(&s->retry)) {
        s->worked = false;
        s->link.failed = true; /* a failure to connect is the server's */
        status = connect_server(s, error);
        for (uint32_t i = 0; status == TP_OK && i < s->members.count && !must_stop(s); i++) {
            if (!s->members.list[i].is_done) {
                status = deliver(s, &s->members.list[i], error);
            }
        }
        if (status == TP_OK) {
            tp_retry_worked(&s->retry, s->what);
            return TP_OK;
        }
        disconnect(s);
        tp_retry_failed(&s->retry, s->what, error);
    } else if (status == TP_OK) {
        *error = s->retry.last;
        status = error->code;
    }
    return status;
}

/* Whether a failure is the end: it won't pass, or there is nothing new to wait for. */
static bool gives_up(shipment *s, const tp_error *error)
{
    if (s->retry.since == 0 || error->code == TP_ERR_CONFIG || error->code == TP_ERR_ARGUMENT ||
        error->code == TP_ERR_UNSUPPORTED) {
        return true;
    }
    const bool refused_by_hand = error->code == TP_ERR_STATE && s->options->scope.trainer < 0;
    return refused_by_hand || (tp_retry_lasts(&s->retry) > s->options->patience_ns &&
                               (!s->options->scope.follow || tp_members_have_ended(&s->members)));
}

static void count(const shipment *s, tp_ship_report *report)
{
    for (uint32_t i = 0; i < s->members.count; i++) {
        report->journals += s->members.list[i].is_mine;
        if (s->members.list[i].own != NULL) {
            report->steps += tp_stream_steps(s->members.list[i].own);
        }
    }
}

static tp_status unreadable(const shipment *s, tp_error *error)
{
    uint32_t failed = 0;
    for (uint32_t i = 0; i < s->members.count; i++) {
        failed += s->members.list[i].has_failed;
    }
    return failed == 0
               ? TP_OK
               : tp_fail(error, TP_ERR_IO, "%u journal%s could not be read and not be delivered",
                         failed, tp_plural(failed));
}

static tp_status ship(shipment *s, tp_error *error)
{
    for (;;) {
        const struct timespec pause = {0, PAUSE_NS};
        tp_status status = go_round(s, error);
        if (must_stop(s)) {
            return TP_END;
        }
        if (status != TP_OK && gives_up(s, error)) {
            return status;
        }
        if (status == TP_OK && tp_members_are_done(&s->members)) {
            return unreadable(s, error);
        }
        if (status != TP_OK || !s->worked) {
            nanosleep(&pause, NULL);
        }
    }
}

tp_status tp_ship_values(const tp_ship_options *options, const int *stop, tp_ship_report *report,
                         tp_error *error)
{
    shipment s = {.options = options, .stop = stop, .members = {.scope = &options->scope}};
    for (int i = 0; i < TP_TABLE_COUNT; i++) {
        s.link.rows[i].table = (tp_table_id)i;
    }
    tp_status status = tp_ship_find_server(options->config, &s.url, &s.link.backend, error);
    if (status == TP_OK) {
        tp_url_describe(&s.url, s.what, sizeof s.what);
        s.link.server_hash = tp_backend_hash(&s.url);
        status = ship(&s, error);
        count(&s, report);
    }
    disconnect(&s);
    for (uint32_t i = 0; i < s.members.count; i++) {
        tp_stream *stream = s.members.list[i].own;
        tp_stream_free(&stream);
    }
    for (int i = 0; i < TP_TABLE_COUNT; i++) {
        tp_rows_free(&s.link.rows[i]);
    }
    tp_members_free(&s.members);
    tp_url_free(&s.url);
    return status;
}
