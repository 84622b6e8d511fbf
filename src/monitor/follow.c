#include "monitor/follow.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "config/config.h"
#include "journal/settings.h"
#include "monitor/follower.h"

static const tp_sink *const sinks[] = {&tp_sink_csv, &tp_sink_tensorboard, &tp_sink_anomaly,
                                       &tp_sink_sqlite};

#define SINKS (sizeof sinks / sizeof sinks[0])

tp_status tp_follow_directory(const char *directory, const int *stop, uint64_t *steps,
                              tp_error *error)
{
    tp_status result = TP_OK;
    *steps = 0;
    for (size_t i = 0; i < SINKS; i++) {
        uint32_t ops[TP_OP_COUNT];
        tp_sink_options options = {.directory = directory};
        bool found;
        tp_status status =
            tp_follower_load_options(directory, sinks[i], &options, ops, &found, error);
        if (status == TP_OK && found) {
            status = tp_follower_bring(sinks[i], &options, stop, steps, error);
        }
        if (status != TP_OK) {
            result = status;
        }
    }
    return result;
}

void tp_follow_names(const char *directory, tp_buf *names)
{
    for (size_t i = 0; i < SINKS; i++) {
        uint32_t ops[TP_OP_COUNT];
        tp_sink_options options;
        bool found;
        (void)tp_follower_load_options(directory, sinks[i], &options, ops, &found, NULL);
        if (found) {
            tp_buf_printf(names, "%s%s", names->size > 0 ? ", " : "", sinks[i]->name);
        }
    }
}

/* The settings that the journal tells, over the defaults. */
static tp_status read_settings(const char *directory, tp_config *config, tp_error *error)
{
    char folder[TP_PATH_MAX];
    tp_buf text = TP_BUF_INIT;
    tp_status status = tp_path_join(folder, directory, "journal");
    tp_config_defaults(config, true);
    if (status == TP_OK && tp_settings_find(folder, &text) == TP_OK) {
        status = tp_config_parse(config, (const char *)text.data, text.size, folder, error);
    }
    tp_buf_free(&text);
    return status;
}

tp_status tp_follow_options(const tp_sink *sink, tp_sink_options *options,
                            uint32_t ops[TP_OP_COUNT], tp_error *error)
{
    bool found;
    tp_status status =
        tp_follower_load_options(options->directory, sink, options, ops, &found, error);
    for (size_t i = 0; status == TP_OK && !found && i < SINKS; i++) {
        status =
            tp_follower_load_options(options->directory, sinks[i], options, ops, &found, error);
    }
    if (status != TP_OK || found) {
        return status;
    }
    tp_reader *reader = NULL;
    tp_config config;
    status = tp_reader_open(&reader, options->directory, error);
    if (status == TP_OK) {
        status = read_settings(options->directory, &config, error);
    }
    if (status == TP_OK) {
        memcpy(ops, config.ops, config.op_count * sizeof *ops);
        options->ops = ops;
        options->op_count = config.op_count;
        options->ndigits = config.ndigits;
        options->steps_per_file = config.step_count_per_record;
        options->max_tags = config.tensorboard_tags;
        options->rank = tp_reader_run(reader)->rank;
        tp_config_free(&config);
    }
    tp_reader_close(&reader);
    return status;
}

const tp_sink *tp_follow_sink(const char *name)
{
    for (size_t i = 0; i < SINKS; i++) {
        if (strcmp(sinks[i]->name, name) == 0) {
            return sinks[i];
        }
    }
    return NULL;
}

bool tp_follow_is_name(const char *name)
{
    return tp_follow_sink(name) != NULL;
}

tp_status tp_follow_anew(const char *directory, const char *name, uint64_t *steps, tp_error *error)
{
    char path[TP_PATH_MAX];
    char file[80];
    uint32_t ops[TP_OP_COUNT];
    tp_sink_options options = {.directory = directory};
    const tp_sink *sink = tp_follow_sink(name);
    *steps = 0;
    tp_status status = tp_follow_options(sink, &options, ops, error);
    if (status != TP_OK) {
        return status;
    }
    if (!tp_follower_has_beginning(directory)) {
        return tp_fail(error, TP_ERR_STATE,
                       "%s: the journal's first segment is gone, or has lost its steps: what is "
                       "there of %s may be more "
                       "than can be made from the others, and stays",
                       directory, name);
    }
    snprintf(file, sizeof file, "followers/%s.cursor", name);
    if (tp_path_join(path, directory, file) != TP_OK) {
        return tp_fail(error, TP_ERR_ARGUMENT, "path is too long: %.100s", directory);
    }
    if (unlink(path) != 0 && errno != ENOENT) {
        return tp_fail(error, tp_status_from_errno(errno), "can't remove %s: %s", path,
                       strerror(errno));
    }
    return tp_follower_bring(sink, &options, NULL, steps, error);
}
