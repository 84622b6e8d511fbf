/* Alerts of all journals of the scope to people. How far a journal's alerts are known to them is in
 * ship/inform.cursor, which is written when nothing waits to be sent. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "journal/cursor.h"
#include "ship/episodes.h"
#include "ship/retry.h"
#include "ship/ship.h"

#define PAUSE_NS 200000000
#define SETTLE_NS UINT64_C(2000000000) /* for the same alert on other ranks */
#define STORE_NS UINT64_C(1000000000)
#define RULES_MAX 64
#define INCIDENTS_MAX 4 /* of a rank that are open: two at most */
#define FAILURES_MAX 8

/* A journal that is read for its alerts. */
typedef struct source {
    tp_reader *reader;
    char cursor_path[TP_PATH_MAX];
    tp_position position; /* read up to here, */
    tp_position stored;   /* and known to people up to here */
    uint64_t step;        /* last one that was read */
    uint32_t attempt;
    tp_cursor told;  /* any: alerts up to its step are known to people; read again nevertheless */
    int64_t wall_ns; /* of it */
    struct {
        uint64_t number;
        uint32_t kind;
    } incidents[INCIDENTS_MAX]; /* that began last */
    uint32_t next_incident;
} source;

typedef struct post {
    const tp_ship_options *options;
    const int *stop;
    tp_members members;
    tp_notifier *notifier;
    tp_episodes episodes;
    tp_retry retry;
    uint64_t sent_at; /* monotonic; 0: nothing yet */
    uint64_t store_at;
    uint64_t sent;
} post;

static tp_status open_source(post *p, tp_member *member, tp_error *error)
{
    source *s = member->own;
    char folder[TP_PATH_MAX];
    tp_cursor cursor;
    tp_buf blob = TP_BUF_INIT;
    if (tp_path_join(folder, member->directory, "ship") != TP_OK ||
        tp_path_join(s->cursor_path, folder, "inform.cursor") != TP_OK) {
        return tp_fail(error, TP_ERR_ARGUMENT, "path is too long: %.100s", member->directory);
    }
    tp_status status = tp_reader_open(&s->reader, member->directory, error);
    if (status == TP_OK) {
        status = tp_dir_make(folder, error);
    }
    if (status == TP_OK) {
        status = tp_cursor_load(s->cursor_path, &cursor, &blob, error);
    }
    if (status == TP_OK &&
        tp_episodes_load(&p->episodes, tp_reader_run(s->reader)->run_id, &blob) != TP_OK) {
        status = tp_fail(error, TP_ERR_NOMEM, "no memory for messages");
    }
    if (status == TP_OK && cursor.any) {
        s->told = (tp_cursor){0};
        status = tp_reader_seek(s->reader, cursor.position, error);
        if (status == TP_ERR_ARGUMENT) {
            /* The segment has lost its steps. Its alerts are still there. */
            s->told = cursor;
            tp_reader_close(&s->reader);
            status = tp_reader_open(&s->reader, member->directory, error);
        }
        s->step = cursor.step;
        s->attempt = cursor.attempt;
        s->position = cursor.position;
        s->stored = cursor.position;
    }
    tp_buf_free(&blob);
    return status;
}

/* The kind of an incident of this rank by its number; 0: its beginning was not seen. */
static uint32_t kind_of(const source *s, uint64_t number)
{
    for (uint32_t i = 0; number != 0 && i < INCIDENTS_MAX; i++) {
        if (s->incidents[i].number == number) {
            return s->incidents[i].kind;
        }
    }
    return 0;
}

static void remember(source *s, const tp_incident *incident, uint32_t kind)
{
    s->incidents[s->next_incident].number = incident->number;
    s->incidents[s->next_incident].kind = kind;
    s->next_incident = (s->next_incident + 1) % INCIDENTS_MAX;
}

static tp_status add_incident(post *p, source *s, const tp_record *record, tp_finding *finding)
{
    const tp_incident *incident = &record->u.incident;
    const tp_key *key = tp_reader_key(s->reader, record->key);
    char text[TP_INCIDENT_TEXT];
    if (key == NULL || incident->state == TP_INCIDENT_ENDS) {
        return TP_OK;
    }
    finding->kind = incident->severity == TP_SEVERITY_CRITICAL ? TP_KIND_BROKEN : TP_KIND_OTHER;
    if (kind_of(s, incident->number) == 0) {
        remember(s, incident, finding->kind);
    }
    tp_incident_describe(record, key, tp_reader_key(s->reader, incident->witness), text,
                         sizeof text);
    const char *rule = tp_rule_name(incident->rule);
    finding->state = incident->state == TP_INCIDENT_GROWS ? TP_FINDING_GROWS : TP_FINDING_BEGINS;
    finding->rule = rule != NULL ? rule : "?";
    finding->text = text;
    return tp_episodes_add(&p->episodes, finding);
}

/* One that belongs to no incident tells for itself, as older journals have them. */
static tp_status add_alert(post *p, source *s, const tp_record *record, tp_finding *finding)
{
    const tp_alert *alert = &record->u.alert;
    const tp_key *key = tp_reader_key(s->reader, record->key);
    const char *rule = tp_rule_name(alert->rule);
    char what[TP_ALERT_TEXT];
    char row[512];
    char text[1024];
    if (alert->incident != 0) {
        finding->kind = kind_of(s, alert->incident);
        finding->state = TP_FINDING_GOES_ON;
        return tp_episodes_add(&p->episodes, finding);
    }
    if (key == NULL) {
        return TP_OK;
    }
    const char *quantity = tp_quantity_name(key->quantity);
    tp_row_name(key, record->call, row, sizeof row);
    tp_alert_describe(alert, what, sizeof what);
    finding->kind = alert->rule;
    finding->state = TP_FINDING_BEGINS;
    finding->rule = rule != NULL ? rule : "?";
    snprintf(text, sizeof text, "%s: first in %s (%s): %s", finding->rule,
             row[0] != '\0' ? row : "the root module", quantity != NULL ? quantity : "?", what);
    finding->text = text;
    return tp_episodes_add(&p->episodes, finding);
}

/* Of the alerts the first of each rule is enough: they come in execution order. */
static tp_status add_alerts(post *p, source *s, const tp_item *item, tp_error *error)
{
    bool seen[RULES_MAX] = {false};
    tp_status status = TP_OK;
    const tp_run_info *run = tp_reader_run(s->reader);
    tp_finding finding = {
        .job = run->run_id,
        .rank = run->rank,
        .step = item->batch.step,
        .wall_ns = item->batch.step == s->step ? s->wall_ns : tp_clock_wall(),
    };
    for (uint64_t i = 0; status == TP_OK && i < item->batch.count; i++) {
        const tp_record *record = &item->batch.records[i];
        if (record->kind == TP_RECORD_INCIDENT) {
            status = add_incident(p, s, record, &finding);
        } else if (record->kind == TP_RECORD_ALERT && record->u.alert.rule < RULES_MAX &&
                   !seen[record->u.alert.rule]) {
            seen[record->u.alert.rule] = true;
            status = add_alert(p, s, record, &finding);
        }
    }
    return status == TP_OK ? TP_OK : tp_fail(error, status, "no memory for messages");
}

static bool is_told(const source *s, const tp_batch *batch)
{
    return s->told.any && (batch->attempt < s->told.attempt ||
                           (batch->attempt == s->told.attempt && batch->step <= s->told.step));
}

static tp_status read_source(post *p, source *s, tp_error *error)
{
    while (__atomic_load_n(p->stop, __ATOMIC_ACQUIRE) == 0) {
        tp_item item;
        tp_status status = tp_reader_next(s->reader, &item, error);
        if (status == TP_ERR_CORRUPT) {
            continue; /* who reads for values, or shows, says so */
        }
        if (status == TP_OK && item.type == TP_ITEM_BATCH) {
            s->step = item.batch.step;
            s->attempt = item.batch.attempt;
            s->wall_ns = item.batch.wall_ns;
        } else if (status == TP_OK && item.type == TP_ITEM_ALERTS && !is_told(s, &item.batch)) {
            status = add_alerts(p, s, &item, error);
        }
        if (status != TP_OK) {
            return status;
        }
        if (!tp_position_is_before(item.position, s->position)) {
            s->position = item.position;
        }
    }
    return TP_END;
}

static tp_status read_member(post *p, tp_member *member, tp_error *error)
{
    if (member->own == NULL) {
        member->own = tp_calloc(1, sizeof(source));
        if (member->own == NULL) {
            return tp_fail(error, TP_ERR_NOMEM, "no memory for messages");
        }
    }
    source *s = member->own;
    const bool is_written = tp_member_is_written(member);
    tp_status status = s->reader != NULL ? TP_OK : open_source(p, member, error);
    if (status == TP_OK) {
        status = read_source(p, s, error);
    }
    if (status == TP_END) {
        member->is_done = !is_written || !p->options->scope.follow;
        if (member->is_done) {
            tp_reader_close(&s->reader);
        }
        return TP_OK;
    }
    tp_reader_close(&s->reader);
    if (status != TP_ERR_NOMEM && (!is_written || status != TP_ERR_NOTFOUND) &&
        ++member->failures == FAILURES_MAX) {
        tp_log(TP_LOG_WARNING, "%s", error->message);
        member->is_done = true;
    }
    return status == TP_ERR_NOMEM ? status : TP_OK;
}

/* Nothing waits: all that was read is known to people. */
static void store_cursors(post *p)
{
    for (uint32_t i = 0; i < p->members.count; i++) {
        source *s = p->members.list[i].own;
        if (s == NULL ||
            (s->position.segment == s->stored.segment && s->position.offset == s->stored.offset)) {
            continue;
        }
        tp_reader *reader = NULL;
        tp_buf blob = TP_BUF_INIT;
        tp_error error;
        const tp_cursor cursor = {
            .any = true, .step = s->step, .attempt = s->attempt, .position = s->position};
        tp_status status = tp_reader_open(&reader, p->members.list[i].directory, &error);
        if (status == TP_OK) {
            tp_episodes_store(&p->episodes, tp_reader_run(reader)->run_id, &blob);
            status = tp_cursor_store(s->cursor_path, &cursor, &blob, &error);
        }
        if (status == TP_OK) {
            s->stored = s->position;
        }
        tp_reader_close(&reader);
        tp_buf_free(&blob);
    }
}

/* Messages that may be sent now. */
static uint32_t count_ready(const post *p, bool at_end)
{
    const uint64_t now = tp_clock_monotonic();
    const uint64_t settled = now > SETTLE_NS ? now - SETTLE_NS : 0;
    if (!tp_retry_is_due(&p->retry) ||
        (!at_end && p->sent_at != 0 && now - p->sent_at < tp_notifier_pause(p->notifier))) {
        return 0;
    }
    return tp_episodes_ready(&p->episodes, at_end ? UINT64_MAX : settled);
}

static tp_status send_messages(post *p, uint32_t count, tp_error *error)
{
    uint32_t sent = 0;
    tp_message *messages = tp_calloc(count, sizeof *messages);
    if (messages == NULL) {
        return tp_fail(error, TP_ERR_NOMEM, "no memory for messages");
    }
    const tp_pending *pending = (const void *)p->episodes.pending.data;
    for (uint32_t i = 0; i < count; i++) {
        messages[i] = pending[i].message;
    }
    tp_status status = tp_notifier_send(p->notifier, messages, count, &sent, error);
    tp_free(messages);
    tp_episodes_sent(&p->episodes, sent);
    p->sent += sent;
    if (sent > 0) {
        p->sent_at = tp_clock_monotonic();
    }
    if (status == TP_OK) {
        tp_retry_worked(&p->retry, tp_notifier_name(p->notifier));
    } else {
        tp_retry_failed(&p->retry, tp_notifier_name(p->notifier), error);
    }
    return status;
}

static tp_status go_round(post *p, bool *at_end, tp_error *error)
{
    tp_status status = tp_members_look(&p->members, error);
    for (uint32_t i = 0; status == TP_OK && i < p->members.count; i++) {
        if (!p->members.list[i].is_done) {
            status = read_member(p, &p->members.list[i], error);
        }
    }
    if (status != TP_OK) {
        return status;
    }
    *at_end = tp_members_are_done(&p->members);
    const uint32_t count = count_ready(p, *at_end);
    if (count > 0) {
        status = send_messages(p, count, error);
    }
    const uint64_t now = tp_clock_monotonic();
    if (status == TP_OK && p->episodes.pending.size == 0 && (*at_end || now >= p->store_at)) {
        store_cursors(p);
        p->store_at = now + STORE_NS;
    }
    return status;
}

static tp_status deliver(post *p, tp_error *error)
{
    for (;;) {
        const struct timespec pause = {0, PAUSE_NS};
        bool at_end = false;
        tp_status status = go_round(p, &at_end, error);
        if (__atomic_load_n(p->stop, __ATOMIC_ACQUIRE) != 0) {
            return TP_END;
        }
        if (status != TP_OK && p->retry.since == 0) {
            return status; /* nothing that passes */
        }
        if (at_end && p->episodes.pending.size == 0) {
            return TP_OK;
        }
        const bool refused_by_hand = p->retry.since != 0 && p->retry.last.code == TP_ERR_STATE &&
                                     p->options->scope.trainer < 0;
        if (at_end && (refused_by_hand || tp_retry_lasts(&p->retry) > p->options->patience_ns)) {
            *error = p->retry.last;
            return error->code;
        }
        nanosleep(&pause, NULL);
    }
}

tp_status tp_ship_messages(const tp_ship_options *options, const int *stop, tp_ship_report *report,
                           tp_error *error)
{
    post p = {.options = options, .stop = stop, .members = {.scope = &options->scope}};
    tp_status status = tp_notifier_open(&p.notifier, &options->config->inform, error);
    if (status == TP_OK) {
        status = deliver(&p, error);
    }
    report->messages = p.sent;
    for (uint32_t i = 0; i < p.members.count; i++) {
        source *s = p.members.list[i].own;
        if (s != NULL) {
            tp_reader_close(&s->reader);
            tp_free(s);
        }
        report->journals += options->config->database.url == NULL && p.members.list[i].is_mine;
    }
    tp_members_free(&p.members);
    tp_episodes_free(&p.episodes);
    tp_notifier_close(&p.notifier);
    return status;
}
