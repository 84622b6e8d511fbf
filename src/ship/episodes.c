#include "ship/episodes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

#define STORED_SIZE 24 /* kind, rank, first and last step */

static tp_episode *find(const tp_episodes *episodes, const char *job, uint32_t kind)
{
    tp_episode *list = (void *)episodes->episodes.data;
    for (size_t i = 0; i < episodes->episodes.size / sizeof *list; i++) {
        if (list[i].kind == kind && strcmp(list[i].job, job) == 0) {
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

/* The message of an episode's beginning, if it still waits. */
static tp_pending *find_beginning(const tp_episodes *episodes, const tp_episode *episode)
{
    for (size_t i = 0; i < pending_count(episodes); i++) {
        tp_pending *pending = pending_at(episodes, i);
        if (pending->kind == episode->kind && strcmp(pending->message.job, episode->job) == 0 &&
            pending->message.step == episode->first_step) {
            return pending;
        }
    }
    return NULL;
}

/* One line: what is in names may be anything. */
static char *describe(const tp_finding *finding)
{
    tp_buf text = TP_BUF_INIT;
    tp_buf_printf(&text, "step %" PRIu64 ", rank %" PRIu32 ": %s%s", finding->step, finding->rank,
                  finding->state == TP_FINDING_GROWS ? "goes on: " : "", finding->text);
    tp_buf_put(&text, "", 1);
    char *copy = text.failed ? NULL : tp_strdup((const char *)text.data);
    for (char *c = copy; copy != NULL && *c != '\0'; c++) {
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? ' ' : *c;
    }
    tp_buf_free(&text);
    return copy;
}

static tp_status add_pending(tp_episodes *episodes, const tp_finding *finding)
{
    tp_pending pending = {
        .message = {.rule = finding->rule,
                    .step = finding->step,
                    .wall_ns = finding->wall_ns,
                    .rank = finding->rank,
                    .ranks = 1,
                    .text = describe(finding)},
        .kind = finding->kind,
        .seen_at = tp_clock_monotonic(),
    };
    snprintf(pending.message.job, sizeof pending.message.job, "%s", finding->job);
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

static tp_status begin(tp_episodes *episodes, tp_episode *episode, const tp_finding *finding)
{
    tp_episode new = {.kind = finding->kind,
                      .rank = finding->rank,
                      .first_step = finding->step,
                      .last_step = finding->step};
    snprintf(new.job, sizeof new.job, "%s", finding->job);
    tp_status status = add_pending(episodes, finding);
    if (status == TP_OK && episode != NULL) {
        *episode = new;
    } else if (status == TP_OK) {
        tp_buf_put(&episodes->episodes, &new, sizeof new);
        status = episodes->episodes.failed ? TP_ERR_NOMEM : TP_OK;
    }
    return status;
}

/* Another rank has it, too. The one that had it first is named, as long as nobody has been told. */
static tp_status join(tp_episodes *episodes, tp_episode *episode, const tp_finding *finding)
{
    tp_pending *pending = find_beginning(episodes, episode);
    const bool is_first = finding->step < episode->first_step ||
                          (finding->step == episode->first_step && finding->rank < episode->rank);
    if (pending == NULL) {
        return TP_OK;
    }
    if (is_first) {
        char *text = describe(finding);
        if (text == NULL) {
            return TP_ERR_NOMEM;
        }
        tp_free(pending->message.text);
        pending->message.text = text;
        pending->message.rule = finding->rule;
        pending->message.step = finding->step;
        pending->message.rank = finding->rank;
        pending->message.wall_ns = finding->wall_ns;
        episode->first_step = finding->step;
        episode->rank = finding->rank;
    }
    pending->message.ranks++;
    return TP_OK;
}

tp_status tp_episodes_add(tp_episodes *episodes, const tp_finding *finding)
{
    tp_episode *episode = find(episodes, finding->job, finding->kind);
    const bool is_same = episode != NULL &&
                         finding->step <= episode->last_step + TP_INCIDENT_QUIET &&
                         finding->step + TP_INCIDENT_QUIET >= episode->first_step;
    tp_status status = TP_OK;
    if (finding->state == TP_FINDING_GOES_ON) {
        if (!is_same) {
            return TP_OK;
        }
    } else if (!is_same) {
        return begin(episodes, episode, finding);
    } else if (finding->state == TP_FINDING_BEGINS) {
        status = join(episodes, episode, finding);
    } else if (finding->rank == episode->rank) {
        status = add_pending(episodes, finding);
    }
    if (status == TP_OK && finding->step > episode->last_step) {
        episode->last_step = finding->step;
    }
    return status;
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
    const size_t size = count * sizeof(tp_pending);
    for (uint32_t i = 0; i < count; i++) {
        tp_free(pending_at(episodes, i)->message.text);
    }
    if (count > 0) {
        memmove(episodes->pending.data, episodes->pending.data + size,
                episodes->pending.size - size);
        episodes->pending.size -= size;
    }
}

void tp_episodes_store(const tp_episodes *episodes, const char *job, tp_buf *blob)
{
    const tp_episode *list = (const void *)episodes->episodes.data;
    for (size_t i = 0; i < episodes->episodes.size / sizeof *list; i++) {
        if (strcmp(list[i].job, job) == 0) {
            tp_buf_put_u32(blob, list[i].kind);
            tp_buf_put_u32(blob, list[i].rank);
            tp_buf_put_u64(blob, list[i].first_step);
            tp_buf_put_u64(blob, list[i].last_step);
        }
    }
}

tp_status tp_episodes_load(tp_episodes *episodes, const char *job, const tp_buf *blob)
{
    for (size_t at = 0; at + STORED_SIZE <= blob->size; at += STORED_SIZE) {
        const uint8_t *bytes = blob->data + at;
        tp_episode stored = {.kind = tp_get_u32(bytes),
                             .rank = tp_get_u32(bytes + 4),
                             .first_step = tp_get_u64(bytes + 8),
                             .last_step = tp_get_u64(bytes + 16)};
        tp_episode *known = find(episodes, job, stored.kind);
        snprintf(stored.job, sizeof stored.job, "%s", job);
        if (known == NULL) {
            tp_buf_put(&episodes->episodes, &stored, sizeof stored);
        } else if (stored.last_step > known->last_step) {
            *known = stored;
        }
    }
    return episodes->episodes.failed ? TP_ERR_NOMEM : TP_OK;
}

void tp_episodes_free(tp_episodes *episodes)
{
    tp_episodes_sent(episodes, (uint32_t)pending_count(episodes));
    tp_buf_free(&episodes->episodes);
    tp_buf_free(&episodes->pending);
}
