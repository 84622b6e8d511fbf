#include "sinks/layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "sinks/event.h"
#include "sinks/series.h"

#define KINDS (TP_COMM + 1)
#define MOST_CHARTS 500u /* of a category */
#define TITLE_MAX 200u
#define PATTERN_MAX (2 * TITLE_MAX + 100)

static const char *const titles[KINDS] = {
    [TP_ACTIVATION] = "Activations",
    [TP_ACTIVATION_GRAD] = "Gradients of activations",
    [TP_GRAD_UNREDUCED] = "Gradients of parameters, before the reduction",
    [TP_GRAD_REDUCED] = "Gradients of parameters, as the optimizer gets them",
    [TP_PARAM_ORIGIN] = "Parameters, before the optimizer's step",
    [TP_PARAM_UPDATED] = "Parameters, after the optimizer's step",
    [TP_EXP_AVG] = "Moments exp_avg",
    [TP_EXP_AVG_SQ] = "Moments exp_avg_sq",
    [TP_SCALAR] = "Logged by the training loop",
    [TP_ADAM_UPDATE] = "Adam's updates",
    [TP_ADAM_RATIO] = "Adam's ratios",
    [TP_MG_DIRECTION] = "Agreement of gradient and exp_avg",
    [TP_COMM] = "Collectives, before (pre) and after (post)",
};

void tp_layout_put_page(tp_buf *out, const tp_sink_options *options)
{
    tp_buf_printf(out,
                  "# What the tags mean\n\n"
                  "`0:fc1.weight/rank%" PRIu32 "/post_grad_norm` is the norm of the gradient of "
                  "`fc1.weight`, in chunk 0 of the model, on rank %" PRIu32 ". "
                  "`0:fc1.output:2/rank%" PRIu32 "/actv_max` is the largest element of what the "
                  "module `fc1` gave in the micro step 2.\n\n"
                  "| kind | of what |\n|---|---|\n",
                  options->rank, options->rank, options->rank);
    for (uint32_t kind = 1; kind < KINDS; kind++) {
        tp_buf_printf(out, "| `%s` | %s |\n", kind == TP_COMM ? "pre_0, post_0" : tp_tag_kind(kind),
                      titles[kind]);
    }
    tp_buf_printf(
        out,
        "\n| statistic | |\n|---|---|\n"
        "| `norm` | root of the sum of squares |\n"
        "| `min`, `max`, `mean` | NaN when any element is NaN |\n"
        "| `zeros` | share of elements smaller than eps |\n"
        "| `nans` | number of elements that are NaN |\n"
        "| `id` | the value itself, of tensors without dimensions |\n\n"
        "**Custom Scalars** groups them: a category for each kind, a chart for each layer. "
        "`others/…` are the smallest and the largest values of series beyond the limit of tags, "
        "`tensorprobe/…` what the step itself and the monitor's part of it took. "
        "Pictures with `_heatmap` show Adam's updates and ratios over steps: a row for each bin, "
        "the lowest on top.\n\n"
        "Scalars are drawn in single precision; the exact number is in the file as well. All "
        "statistics of every tensor are in the journal: `tensorprobe show DIRECTORY`.\n");
}

/* What is drawn together: up to the first number in the name ("blocks.3"), else the first part. */
static void group_of(const char *name, char group[TITLE_MAX])
{
    size_t length = strcspn(name, ".");
    for (size_t at = 0; name[at] != '\0';) {
        const size_t part = strcspn(name + at, ".");
        const size_t digits = strspn(name + at, "0123456789");
        if (part > 0 && digits == part) {
            length = at + part;
            break;
        }
        at += part + (name[at + part] == '.');
    }
    length = length < TITLE_MAX - 1 ? length : TITLE_MAX - 1;
    memcpy(group, name, length);
    group[length] = '\0';
}

/* The tags of a group as a regular expression. */
static void write_pattern(char pattern[PATTERN_MAX], const tp_key *key, const char *group,
                          const tp_sink_options *options, const char *op)
{
    size_t used = 0;
    if (key->quantity == TP_SCALAR) {
        snprintf(pattern, PATTERN_MAX, ".*/rank%" PRIu32 "/scalar$", options->rank);
        return;
    }
    if (key->quantity != TP_COMM) {
        used = (size_t)snprintf(pattern, PATTERN_MAX, "%" PRId32 ":", key->vpp_stage);
    }
    for (; *group != '\0'; group++) {
        if (strchr("\\^$.|?*+()[]{}", *group) != NULL) {
            pattern[used++] = '\\';
        }
        pattern[used++] = *group;
    }
    if (key->quantity == TP_COMM) {
        snprintf(pattern + used, PATTERN_MAX - used,
                 "([./:].*)?/rank%" PRIu32 "/p[a-z]+_[0-9]+_%s$", options->rank, op);
    } else {
        snprintf(pattern + used, PATTERN_MAX - used, "([./:].*)?/rank%" PRIu32 "/%s_%s$",
                 options->rank, tp_tag_kind(key->quantity), op);
    }
}

static tp_status add_chart(tp_buf *category, char *title, char *pattern)
{
    TpEvent__MultilineChartContent lines;
    TpEvent__Chart chart;
    TpEvent__Category one;
    char *patterns[] = {pattern};
    TpEvent__Chart *charts[] = {&chart};
    tp_event__multiline_chart_content__init(&lines);
    tp_event__chart__init(&chart);
    tp_event__category__init(&one);
    lines.n_tag = 1;
    lines.tag = patterns;
    chart.title = title;
    chart.multiline = &lines;
    one.n_chart = 1;
    one.chart = charts;
    tp_event_put_packed(category, &one.base); /* joined end to end the charts are repeated */
    return category->failed ? TP_ERR_NOMEM : TP_OK;
}

/* The statistic that the charts show: the first one that is a number. */
static const char *shown_op(const tp_sink_options *options)
{
    for (uint32_t i = 0; i < options->op_count; i++) {
        const uint32_t op = options->ops[i];
        if (op != TP_OP_SHAPE && op != TP_OP_DTYPE && op != TP_OP_ID) {
            return tp_op_name(op);
        }
    }
    return NULL;
}

static void put_category(tp_buf *out, uint32_t kind, const tp_buf *charts)
{
    TpEvent__Category head;
    char title[64];
    snprintf(title, sizeof title, "%s", titles[kind]);
    tp_event__category__init(&head);
    head.title = title;
    head.closed = kind != TP_SCALAR;
    const size_t size = protobuf_c_message_get_packed_size(&head.base) + charts->size;
    uint64_t rest = size;
    tp_buf_put(out, "\x12", 1); /* field 2 of the layout, a message of this length */
    for (; rest >= 0x80; rest >>= 7) {
        const uint8_t byte = (uint8_t)(rest | 0x80);
        tp_buf_put(out, &byte, 1);
    }
    const uint8_t byte = (uint8_t)rest;
    tp_buf_put(out, &byte, 1);
    tp_event_put_packed(out, &head.base);
    tp_buf_put_buf(out, charts);
}

tp_status tp_layout_put(tp_buf *out, const tp_batch *batch, const tp_names *names,
                        const tp_sink_options *options)
{
    tp_buf charts[KINDS] = {0};
    uint32_t counts[KINDS] = {0};
    tp_map seen = {0};
    tp_status status = TP_OK;
    const char *op = shown_op(options);
    for (uint64_t i = 0; i < batch->count && status == TP_OK; i++) {
        char title[TITLE_MAX + 16];
        char group[TITLE_MAX];
        char pattern[PATTERN_MAX];
        uint32_t unused;
        const tp_key *key = names->key(names->source, batch->records[i].key);
        if (key == NULL || key->quantity >= KINDS || key->quantity == 0 ||
            (op == NULL && key->quantity != TP_SCALAR) || counts[key->quantity] == MOST_CHARTS) {
            continue;
        }
        group_of(key->quantity == TP_SCALAR ? "all" : key->name, group);
        write_pattern(pattern, key, group, options, op);
        if (tp_map_get(&seen, pattern, strlen(pattern), &unused) == TP_OK) {
            continue;
        }
        counts[key->quantity]++;
        snprintf(title, sizeof title, "%s %s", group[0] != '\0' ? group : "the model",
                 key->quantity == TP_SCALAR ? "" : op);
        status = tp_map_set(&seen, pattern, strlen(pattern), 0);
        if (status == TP_OK) {
            status = add_chart(&charts[key->quantity], title, pattern);
        }
    }
    if (counts[TP_SCALAR] > 0) { /* what a run is looked at for comes first */
        put_category(out, TP_SCALAR, &charts[TP_SCALAR]);
    }
    for (uint32_t kind = 1; kind < KINDS; kind++) {
        if (counts[kind] > 0 && kind != TP_SCALAR) {
            put_category(out, kind, &charts[kind]);
        }
    }
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        tp_buf_free(&charts[kind]);
    }
    tp_map_free(&seen);
    return out->failed ? TP_ERR_NOMEM : status;
}
