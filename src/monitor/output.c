#include "monitor/output.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "cause/incidents.h"
#include "journal/writer.h"
#include "monitor/carrier.h"
#include "monitor/console.h"
#include "monitor/learn.h"
#include "monitor/plan.h"
#include "monitor/rule_options.h"
#include "monitor/run.h"

struct tp_output {
    tp_writer_options options;
    tp_journal *journal; /* NULL until the first step */
    tp_rules *rules;
    tp_follower *followers[TP_PLAN_SINKS]; /* NULL: absent, or before the first step */
    bool has_batch;     /* the journal has the present step's batch, but not its alerts yet */
    bool no_room;       /* tp_output_no_room */
    bool knows_nothing; /* the rules have just been made, and there are earlier steps */
    bool said_warming;  /* which rules say nothing yet */
    tp_incidents *incidents;
    tp_buf alerts;       /* of the present step, incidents behind them */
    uint64_t new_alerts; /* among them */
    int lock_fd;
    /* Copies for readers of counters on other threads. */
    atomic_ullong alert_count, bytes_journal, bytes_followers[TP_PLAN_SINKS], followed_steps;
};

static tp_status make_rules(tp_rules **out, const tp_config *config, const tp_registry *registry)
{
    tp_rule_options rules[TP_MAX_RULES];
    for (uint32_t i = 0; i < config->rule_count; i++) {
        rules[i] = tp_rule_options_of(&config->rules[i]);
    }
    return tp_rules_new(out, rules, config->rule_count, config->ops, config->op_count, registry);
}

tp_status tp_output_new(tp_output **out, const tp_writer_options *options)
{
    tp_output *output = tp_calloc(1, sizeof *output);
    if (output == NULL) {
        return TP_ERR_NOMEM;
    }
    output->options = *options;
    output->lock_fd = options->lock_fd;
    output->knows_nothing = options->run.attempt > 0;
    tp_status status = make_rules(&output->rules, options->config, options->registry);
    if (status == TP_OK) {
        status = tp_incidents_new(&output->incidents, options->registry);
    }
    if (status != TP_OK) {
        tp_output_free(output);
        return status;
    }
    *out = output;
    return TP_OK;
}

/* Who makes the files anew, without their cursors, finds in the journal how they were. */
static void tell_settings(tp_output *output, const tp_plan *plan)
{
    tp_buf text = TP_BUF_INIT;
    tp_plan_tell(plan, &text);
    tp_journal_tell(output->journal, &text);
    tp_buf_free(&text);
}

/* Makes the directory with everything in it. The followers' cursors come before the journal's first
 * step, so that recovery finds out from any journal what was to be written. */
static tp_status open_directory(tp_output *output, tp_error *error)
{
    const tp_writer_options *options = &output->options;
    const tp_plan plan = tp_plan_of(options->config, options->run.rank);
    tp_status status = tp_dir_make_in(options->directory, error);
    if (status == TP_OK && output->lock_fd < 0) {
        status = tp_run_lock(options->directory, &output->lock_fd, error);
    }
    if (status == TP_OK) {
        status = tp_box_announce(options->box, error);
    }
    for (uint32_t i = 0; status == TP_OK && i < TP_PLAN_SINKS; i++) {
        if (output->followers[i] == NULL && tp_plan_wants(&plan, i)) {
            status = tp_plan_open(&plan, i, options->directory, &output->followers[i], error);
            if (status == TP_OK) {
                tp_follower_share(output->followers[i], &output->no_room);
            }
            if (status == TP_OK && options->run.attempt > 0) {
                tp_follower_suspect(
                    output->followers[i]); /* the attempt before may have ended so */
            }
        }
    }
    if (status == TP_OK) {
        status = tp_journal_open(&output->journal, options->directory, &options->run,
                                 options->registry, options->config->segment_bytes, error);
    }
    if (status == TP_OK) {
        tp_carrier_start(options->config, options->base, &options->run);
        const tp_retention limits = {options->config->keep_bytes,
                                     options->config->keep_days * 86400};
        tp_journal_keep(output->journal, &limits);
        tell_settings(output, &plan);
    }
    return status;
}

void tp_output_move(tp_output *output, const tp_run_info *run, int lock_fd)
{
    output->options.run = *run;
    output->lock_fd = lock_fd;
    output->knows_nothing = run->attempt > 0;
}

/* Are there others than those that this configuration wants? */
static bool has_other_files(const tp_output *output, const tp_config *config)
{
    const tp_config *before = output->options.config;
    const tp_plan plan = tp_plan_of(config, output->options.run.rank);
    bool other = config->segment_bytes != before->segment_bytes ||
                 (output->followers[TP_PLAN_CSV] != NULL &&
                  config->step_count_per_record != before->step_count_per_record);
    for (uint32_t i = 0; i < TP_PLAN_SINKS; i++) {
        other |= tp_plan_wants(&plan, i) != (output->followers[i] != NULL);
    }
    return other;
}

void tp_output_configure(tp_output *output, const tp_config *config)
{
    tp_rules *rules = NULL;
    if (config == output->options.config) {
        return;
    }
    if (output->journal != NULL && has_other_files(output, config)) {
        tp_log(TP_LOG_WARNING,
               "%s keeps its files as they are: format, step_count_per_record, alert.dump and "
               "journal count from the beginning",
               output->options.directory);
    }
    output->options.config = config;
    if (make_rules(&rules, config, output->options.registry) == TP_OK) {
        tp_rules_free(output->rules);
        output->rules = rules;
        output->knows_nothing = true;
        output->said_warming = false;
    } else {
        tp_log(TP_LOG_WARNING, "no memory for other rules: the earlier ones stay");
    }
    const tp_plan plan = tp_plan_of(config, output->options.run.rank);
    const tp_sink_options options = tp_plan_options(&plan, output->options.directory);
    if (output->journal != NULL) {
        tell_settings(output, &plan);
    }
    for (uint32_t i = 0; i < TP_PLAN_SINKS; i++) {
        if (output->followers[i] != NULL) {
            tp_follower_configure(output->followers[i], &options);
        }
    }
}

/* Once, for all ranks: they do alike. */
static void tell_warming(tp_output *output, uint64_t step)
{
    tp_buf text = TP_BUF_INIT;
    output->said_warming = true;
    tp_rules_put_warming(output->rules, step, output->options.config->step_interval, &text);
    if (text.size > 0 && output->options.run.rank == 0) {
        tp_log(TP_LOG_INFO, "rules that are warming up say nothing yet: %.*s", (int)text.size,
               (const char *)text.data);
    }
    tp_buf_free(&text);
}

static void check_rules(tp_output *output, const tp_batch *batch)
{
    if (output->knows_nothing) {
        tp_learn(output->rules, output->options.registry, output->options.directory, batch->step);
        output->knows_nothing = false;
    }
    if (!output->said_warming) {
        tell_warming(output, batch->step);
    }
    tp_buf_clear(&output->alerts);
    tp_status status = tp_rules_check(output->rules, batch, &output->alerts);
    output->new_alerts = output->alerts.size / sizeof(tp_record);
    if (status == TP_OK) {
        status = tp_incidents_update(output->incidents, batch, &output->alerts);
    }
    if (status != TP_OK) {
        tp_log(TP_LOG_WARNING, "step %llu: no memory to check the rules",
               (unsigned long long)batch->step);
        tp_buf_clear(&output->alerts);
        output->new_alerts = 0;
    }
}

tp_status tp_output_journal(tp_output *output, const tp_batch *batch, tp_error *error)
{
    tp_status status = output->journal != NULL ? TP_OK : open_directory(output, error);
    if (status == TP_OK && !output->has_batch) {
        tp_journal_begin_attempt(output->journal, batch->attempt);
        status = tp_journal_append_batch(output->journal, batch, error);
        if (status == TP_OK) {
            output->has_batch = true;
            check_rules(output, batch);
        }
    }
    const tp_record *alerts = (const void *)output->alerts.data;
    const uint64_t count = output->has_batch ? output->alerts.size / sizeof *alerts : 0;
    if (status == TP_OK && count > 0) {
        status = tp_journal_append_alerts(output->journal, batch->step, alerts, count, error);
    }
    if (status == TP_OK) {
        output->has_batch = false; /* the next call is for the next step */
        atomic_fetch_add(&output->alert_count, count > 0 ? output->new_alerts : 0);
        atomic_store(&output->bytes_journal, tp_journal_bytes(output->journal));
        tp_console_incidents(batch->step, alerts, count, output->options.registry,
                             output->options.directory);
    }
    return status;
}

static const tp_key *registry_key(const void *source, uint32_t id)
{
    return tp_registry_key(source, id);
}

static const int64_t *registry_shape(const void *source, uint32_t id, uint32_t *ndim)
{
    return tp_registry_shape(source, id, ndim);
}

static void tell_followers(const tp_output *output, uint64_t step, const tp_record *alerts,
                           uint64_t count)
{
    const tp_names names = {output->options.registry, registry_key, registry_shape};
    const tp_position position = tp_journal_position(output->journal);
    for (uint32_t i = 0; i < TP_PLAN_SINKS; i++) {
        if (output->followers[i] != NULL) {
            tp_follower_tell(output->followers[i], step, alerts, count, &names, position);
        }
    }
}

void tp_output_tell_stall(tp_output *output, uint64_t step, const tp_record *last, double seconds)
{
    const tp_batch batch = {.step = step, .pp_stage = output->options.pp_stage};
    tp_buf alerts = TP_BUF_INIT;
    tp_error error;
    if (last == NULL) {
        tp_log(TP_LOG_WARNING, "step %llu: no step has ended for %.0f s, and none has begun",
               (unsigned long long)step, seconds);
        return;
    }
    tp_record alert = *last;
    alert.state = TP_SLOT_DONE;
    alert.kind = TP_RECORD_ALERT;
    alert.flags = 0;
    alert.arena = 0;
    alert.u.alert = (tp_alert){.rule = TP_RULE_STALLED_STEP,
                               .op = TP_OP_ID,
                               .value = seconds,
                               .baseline = (double)NAN,
                               .threshold = (double)NAN};
    tp_buf_put(&alerts, &alert, sizeof alert);
    tp_status status =
        alerts.failed ? TP_ERR_NOMEM : tp_incidents_update(output->incidents, &batch, &alerts);
    const tp_record *fired = (const void *)alerts.data;
    const uint64_t count = alerts.size / sizeof *fired;
    if (status == TP_OK && output->journal != NULL && !output->has_batch) {
        status = tp_journal_append_alerts(output->journal, step, fired, count, &error);
        if (status == TP_OK) {
            tell_followers(output, step, fired, count);
        }
    }
    if (status == TP_OK) {
        atomic_fetch_add(&output->alert_count, 1);
    }
    tp_console_incidents(step, fired, count, output->options.registry, output->options.directory);
    tp_buf_free(&alerts);
}

const tp_record *tp_output_begun(const tp_output *output)
{
    const tp_record *alerts = (const void *)output->alerts.data;
    const tp_record *worst = NULL;
    for (uint64_t i = 0; i < output->alerts.size / sizeof *alerts; i++) {
        const tp_incident *incident = &alerts[i].u.incident;
        if (alerts[i].kind == TP_RECORD_INCIDENT && incident->state == TP_INCIDENT_BEGINS &&
            incident->severity >= TP_SEVERITY_WARNING &&
            (worst == NULL || incident->severity > worst->u.incident.severity)) {
            worst = &alerts[i];
        }
    }
    return worst;
}

static void update_counters(tp_output *output)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < TP_PLAN_SINKS; i++) {
        if (output->followers[i] != NULL) {
            uint64_t steps = tp_follower_steps(output->followers[i]);
            least = steps < least ? steps : least;
            atomic_store(&output->bytes_followers[i], tp_follower_bytes(output->followers[i]));
        }
    }
    atomic_store(&output->followed_steps, least != UINT64_MAX ? least : 0);
}

void tp_output_follow(tp_output *output, const tp_batch *batch)
{
    const tp_names names = {output->options.registry, registry_key, registry_shape};
    const tp_position position = tp_journal_position(output->journal);
    const tp_record *alerts = (const void *)output->alerts.data;
    bool is_behind = false;
    for (uint32_t i = 0; i < TP_PLAN_SINKS; i++) {
        if (output->followers[i] != NULL) {
            tp_follower_write(output->followers[i], batch, alerts,
                              output->alerts.size / sizeof *alerts, &names, position);
            is_behind |= tp_follower_is_behind(output->followers[i]);
        }
    }
    output->no_room &= is_behind;
    update_counters(output);
}

bool *tp_output_no_room(tp_output *output)
{
    return &output->no_room;
}

uint64_t tp_output_bytes(const tp_output *output)
{
    uint64_t bytes = atomic_load(&output->bytes_journal);
    for (uint32_t i = 0; i < TP_PLAN_SINKS; i++) {
        bytes += atomic_load(&output->bytes_followers[i]);
    }
    return bytes;
}

void tp_output_get_counters(const tp_output *output, tp_monitor_counters *counters)
{
    counters->alerts = atomic_load(&output->alert_count);
    counters->bytes_journal = atomic_load(&output->bytes_journal);
    counters->bytes_csv = atomic_load(&output->bytes_followers[TP_PLAN_CSV]);
    counters->bytes_tensorboard = atomic_load(&output->bytes_followers[TP_PLAN_TENSORBOARD]);
    counters->followed_steps = atomic_load(&output->followed_steps);
}

tp_status tp_output_finish(tp_output *output)
{
    tp_error error;
    bool opened = output->journal != NULL;
    tp_status result = tp_journal_close(&output->journal, &error);
    if (result != TP_OK) {
        tp_log(TP_LOG_WARNING, "the journal did not end cleanly: %s", error.message);
    }
    for (uint32_t i = 0; i < TP_PLAN_SINKS; i++) {
        tp_status status = TP_OK;
        if (opened && output->followers[i] != NULL && tp_follower_is_behind(output->followers[i])) {
            status = tp_follower_catch_up(output->followers[i], UINT64_MAX, &error);
        }
        if (status != TP_OK) {
            tp_log(TP_LOG_WARNING, "%s; `tensorprobe recover %s` will complete it", error.message,
                   output->options.directory);
            result = status;
        }
    }
    update_counters(output);
    for (uint32_t i = 0; i < TP_PLAN_SINKS; i++) {
        tp_follower_close(&output->followers[i]);
    }
    if (opened && result == TP_OK) {
        tp_box_discard(output->options.box);
    }
    tp_run_unlock(output->options.directory, output->lock_fd, opened && result == TP_OK);
    output->lock_fd = -1;
    return result;
}

void tp_output_free(tp_output *output)
{
    if (output != NULL) {
        tp_rules_free(output->rules);
        tp_incidents_free(output->incidents);
        tp_buf_free(&output->alerts);
        tp_free(output);
    }
}

void tp_output_abandon(tp_output *output)
{
    /* The lock belongs to the open file that parent and child share: without this, a child that
     * outlives its parent would keep the directory locked. Unlocking would unlock it for both. */
    tp_file_close(output->lock_fd);
    output->lock_fd = -1;
}
