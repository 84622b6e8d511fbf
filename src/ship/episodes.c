#include "ship/episodes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#define STORED_SIZE 20 /* rule, first and last step */

static tp_episode *find(const tp_episodes *episodes, const char *job, uint32_t rule)
{
    tp_episode *list = (void *)episodes->episodes.data;
    for (size_t i = 0; i < episodes->episodes.size / sizeof *list; i++) {
        if (list[i].rule == rule && strcmp(list[i].job, job) == 0) {
            return &list[i];
        }
    }
    return NULL;
}

static tp_pending *pending_at(const tp_episodes *episodes, size_t i)
{
    return (tp_pending *)(void *)episodes->pending.data + i;
}

static size_t pending_count(const tp_episodes *episodes)
{
    return episodes->pending.size / sizeof(tp_pending);
}

/* The message of this step that still waits, or of a later one of the same episode, whose beginning
 * this is. */
static tp_pending *find_pending(const tp_episodes *episodes, const tp_alert_place *place,
                                uint32_t rule)
{
    for (size_t i = 0; i < pending_count(episodes); i++) {
        tp_pending *pending = pending_at(episodes, i);
        if (pending->rule == rule && strcmp(pending->message.job, place->job) == 0 &&
            (pending->message.step == place->step || pending->message.step == place->step + 1)) {
            return pending;
        }
    }
    return NULL;
}

/* One line: what is in names may be anything. */
static char *describe(const tp_alert *alert, const tp_alert_place *place, uint64_t times)
{
    char what[TP_ALERT_TEXT];
    tp_buf text = TP_BUF_INIT;
    const char *rule = tp_rule_name(alert->rule);
    tp_alert_describe(alert, what, sizeof what);
    tp_buf_printf(&text, "step %" PRIu64 ", rank %" PRIu32 ": %s: first in %.512s (%s): %s",
                  place->step, place->rank, rule != NULL ? rule : "?",
                  place->row[0] != '\0' ? place->row : "the root module", place->quantity, what);
    if (alert->more > 0) {
        tp_buf_printf(&text, "; %" PRIu64 " more after it", alert->more);
    }
    if (times > 1) {
        tp_buf_printf(&text, "; the %" PRIu64 "th step in a row", times);
    }
    tp_buf_put(&text, "", 1);
    char *copy = text.failed ? NULL : tp_strdup((const char *)text.data);
    for (char *c = copy; copy != NULL && *c != '\0'; c++) {
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? ' ' : *c;
    }
    tp_buf_free(&text);
    return copy;
}

static tp_status add_pending(tp_episodes *episodes, const tp_alert *alert,
                             const tp_alert_place *place, uint64_t times)
{
    const char *rule = tp_rule_name(alert->rule);
    tp_pending pending = {
        .message = {.rule = rule != NULL ? rule : "?",
                    .step = place->step,
                    .wall_ns = place->wall_ns,
                    .rank = place->rank,
                    .ranks = 1,
                    .text = describe(alert, place, times)},
        .rule = alert->rule,
        .seen_at = tp_clock_monotonic(),
    };
    snprintf(pending.message.job, sizeof pending.message.job, "%s", place->job);
    const size_t size = episodes->pending.size;
    if (pending.message.text != NULL) {
        tp_buf_put(&episodes->pending, &pending, sizeof pending);
    }
    if (pending.message.text == NULL || episodes->pending.failed) {
        tp_free(pending.message.text);
        episodes->pending.size = size;
        episodes->pending.failed = false;
        return TP_ERR_NOMEM;
    }
    return TP_OK;
}

/* The same from another rank, or what came a step earlier there: the first of them is named. */
static tp_status join(tp_pending *pending, const tp_alert *alert, const tp_alert_place *place)
{
    tp_message *message = &pending->message;
    message->ranks++;
    if (place->step > message->step ||
        (place->step == message->step && place->rank > message->rank)) {
        return TP_OK;
    }
    char *text = describe(alert, place, 1);
    if (text == NULL) {
        return TP_ERR_NOMEM;
    }
    tp_free(message->text);
    message->text = text;
    message->step = place->step;
    message->rank = place->rank;
    message->wall_ns = place->wall_ns;
    return TP_OK;
}

static uint64_t power_of_ten_below(uint64_t number)
{
    uint64_t power = 1;
    while (number / 10 >= power) {
        power *= 10;
    }
    return power;
}

tp_status tp_episodes_add(tp_episodes *episodes, const tp_alert *alert, const tp_alert_place *place)
{
    tp_episode *episode = find(episodes, place->job, alert->rule);
    if (episode == NULL) {
        tp_episode first = {
            .rule = alert->rule, .first_step = place->step, .last_step = place->step};
        snprintf(first.job, sizeof first.job, "%s", place->job);
        tp_buf_put(&episodes->episodes, &first, sizeof first);
        return episodes->episodes.failed ? TP_ERR_NOMEM : add_pending(episodes, alert, place, 1);
    }
    tp_pending *pending = find_pending(episodes, place, alert->rule);
    if (pending != NULL && pending->message.step <= episode->first_step) {
        episode->first_step = place->step < episode->first_step ? place->step : episode->first_step;
        return join(pending, alert, place);
    }
    if (place->step > episode->last_step + 1 || place->step + 1 < episode->first_step) {
        if (place->step > episode->last_step) {
            episode->first_step = place->step;
            episode->last_step = place->step;
        }
        return add_pending(episodes, alert, place, 1);
    }
    if (place->step <= episode->last_step) {
        return TP_OK; /* another rank, where it is known by now */
    }
    episode->last_step = place->step;
    const uint64_t times = place->step - episode->first_step + 1;
    return power_of_ten_below(times) == times ? add_pending(episodes, alert, place, times) : TP_OK;
}

uint32_t tp_episodes_ready(const tp_episodes *episodes, uint64_t seen_before)
{
    uint32_t ready = 0;
    while (ready < pending_count(episodes) && pending_at(episodes, ready)->seen_at < seen_before) {
        ready++;
    }
    return ready;
}

void tp_episodes_sent(tp_episodes *episodes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        tp_free(pending_at(episodes, i)->message.text);
    }
    const size_t size = count * sizeof(tp_pending);
    memmove(episodes->pending.data, episodes->pending.data + size, episodes->pending.size - size);
    episodes->pending.size -= size;
}

void tp_episodes_store(const tp_episodes *episodes, const char *job, tp_buf *blob)
{
    const tp_episode *list = (const void *)episodes->episodes.data;
    for (size_t i = 0; i < episodes->episodes.size / sizeof *list; i++) {
        if (strcmp(list[i].job, job) == 0) {
            tp_buf_put_u32(blob, list[i].rule);
            tp_buf_put_u64(blob, list[i].first_step);
            tp_buf_put_u64(blob, list[i].last_step);
        }
    }
}

tp_status tp_episodes_load(tp_episodes *episodes, const char *job, const tp_buf *blob)
{
    for (size_t at = 0; at + STORED_SIZE <= blob->size; at += STORED_SIZE) {
        const uint8_t *bytes = blob->data + at;
        tp_episode stored = {.rule = tp_get_u32(bytes),
                             .first_step = tp_get_u64(bytes + 4),
                             .last_step = tp_get_u64(bytes + 12)};
        tp_episode *known = find(episodes, job, stored.rule);
        if (known != NULL) {
            if (stored.last_step > known->last_step) {
                known->first_step = stored.first_step;
                known->last_step = stored.last_step;
            }
            continue;
        }
        snprintf(stored.job, sizeof stored.job, "%s", job);
        tp_buf_put(&episodes->episodes, &stored, sizeof stored);
    }
    return episodes->episodes.failed ? TP_ERR_NOMEM : TP_OK;
}

void tp_episodes_free(tp_episodes *episodes)
{
    tp_episodes_sent(episodes, (uint32_t)pending_count(episodes));
    tp_buf_free(&episodes->episodes);
    tp_buf_free(&episodes->pending);
}
