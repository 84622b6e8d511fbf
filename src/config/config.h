/* The configuration: one JSON object, one validated struct. */
#ifndef TP_CONFIG_CONFIG_H
#define TP_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"
#include "config/selection.h"
#include "tensorprobe/record.h"

#define TP_FORMAT_CSV 1u
#define TP_FORMAT_TENSORBOARD 2u
#define TP_FORMAT_API 4u /* nothing on disk but the journal */
#define TP_FORMAT_SQLITE 8u
#define TP_FORMAT_DATABASE 16u /* read only: becomes SQLITE, or API where database.url is given */

#define TP_DEVICE_PATH_NATIVE 0u /* the kernels, where they can read the tensor */
#define TP_DEVICE_PATH_TORCH 1u  /* torch operations, for every tensor */

#define TP_MAX_RULES 32

#define TP_MODE_RELATIVE 0 /* |x - mean| > t * |mean| */
#define TP_MODE_FACTOR 1   /* x > t * mean or x < mean / t, of norms: the default of watch() */
#define TP_MODE_COMPAT 2   /* as msprobe: |x| > mean * (1 + t), the mean a moving one */

typedef struct tp_rule_config {
    uint32_t rule;        /* TP_RULE_… */
    uint32_t mode;        /* AnomalyTurbulence: TP_MODE_… */
    double threshold;     /* NaN: none (AnomalyNan without a bound) */
    uint64_t min_samples; /* earlier finite values, or steps, needed before the rule speaks */
    uint32_t window;      /* earlier values of which a median is taken; 0: none is */
    uint32_t dtype;       /* whose range counts; 0: the tensor's own */
    uint32_t ops; /* bit 1 << TP_OP_… of each that it looks at; 0: all that are configured */
    tp_selection selection; /* what it looks at; none: everything */
} tp_rule_config;

/* One side of a target, "tensor" or "tuple[n]" or "tuple[n]:i"; of inputs also "keyword:NAME". */
typedef struct tp_side_spec {
    bool given;
    bool tuple;
    uint32_t length; /* n */
    uint32_t index;  /* i, 0 when it was left out */
    char *keyword;   /* NULL: it is one of the others */
} tp_side_spec;

typedef struct tp_target {
    char *name;          /* module name, or prefix of parameter names; "" is everything */
    tp_pattern *pattern; /* NULL: the name is one */
    tp_side_spec input, output, input_grad, output_grad; /* none given: all sides */
} tp_target;

#define TP_INFORM_NOBODY 0u
#define TP_INFORM_DATABASE 1u
#define TP_INFORM_EMAIL 2u
#define TP_INFORM_COMMAND 3u
#define TP_INFORM_WEBHOOK 4u

/* Who is told of alerts. Texts that don't belong to the recipient may be NULL. URLs, names and
 * passwords may stand for others: tp_secret_read. */
typedef struct tp_inform_config {
    uint32_t recipient;   /* TP_INFORM_… */
    char *connection_str; /* URL of the database */
    tp_texts command;     /* a program with its arguments */
    char *url;            /* of the webhook */
    char *send_email_address, *receive_email_address;
    char *send_email_username, *send_email_password, *smtp_server;
    uint32_t smtp_port;
} tp_inform_config;

/* A database server, or a collector of metrics, to which `tensorprobe ship` carries the journals of
 * a node. */
typedef struct tp_database_config {
    char *url;              /* NULL: none; may stand for another (tp_secret_read) */
    tp_selection selection; /* the series of which each value is sent; none: all */
    uint64_t step_interval; /* of these, every so many steps; 0: none */
    uint64_t rollup_steps;  /* a summary of every series for so many steps; 0: none */
} tp_database_config;

/* What watching may take of the training thread: a share of a step's time, or a time a step. Both
 * 0: whatever it takes. */
typedef struct tp_budget_config {
    double share;
    double ns;
} tp_budget_config;

/* What is recorded in addition when an incident begins. */
typedef struct tp_zoom_config {
    uint64_t steps; /* 0: nothing */
    uint64_t bytes; /* of records and tensors, for one incident */
    bool tensors;   /* the values of the tensors that the incident speaks of, too */
} tp_zoom_config;

#define TP_STAMP_SIZE 16 /* of "Dec03_21-34-40" */

typedef struct tp_config {
    tp_target *targets; /* as many as target_count; none configured becomes the one target "" */
    uint32_t target_count;
    bool xy_distribution, all_xy, forward_only, backward_only;
    bool integers; /* all_xy was asked for in so many words: tensors of integers and bools, too */
    bool wg_distribution, param_distribution, mv_distribution;
    bool input_grad_tensor; /* "input_grad": "tensor": a tensor's total gradient, not this module's
                               share */
    bool strict;            /* errors of the monitor end the training */
    uint32_t device_path;   /* TP_DEVICE_PATH_… */
    uint32_t *module_ranks; /* the ranks that are watched; module_rank_count 0: all of them */
    uint32_t module_rank_count;
    uint64_t start_step;    /* a step s is collected when s >= start_step, */
    uint64_t step_interval; /* (s - start_step) % step_interval == 0, */
    uint64_t collect_times; /* and fewer than collect_times steps have been */
    bool string_prefix;     /* a parameter's target needs no dot behind it */
    bool squash_name;       /* rows carry shortened names; targets match both */
    bool print_struct;      /* the first step only records what the modules pass around, */
    bool exit_after_struct; /* and the training ends with it */
    bool mg_direction, ur_distribution, monitor_mbs_grad, dynamic_on;
    bool self_check;
    uint64_t replica_check; /* steps from one to the next; 0: never */
    bool cc_enable, cc_pre_hook, cc_log_only;
    tp_texts cc_codeline;
    char append_output[2][TP_STAMP_SIZE]; /* first and last stamp of directories to go on with;
                                             "": none */
    bool alert_dump;
    tp_inform_config inform;
    tp_database_config database;
    bool all_exponents;
    uint32_t exponents; /* bit 1 << TP_ACTIVATION … of those of which exponents are counted */
    tp_budget_config budget;
    tp_zoom_config zoom;
    uint32_t ops[TP_OP_COUNT];
    uint32_t op_count;
    double eps;
    uint32_t formats; /* TP_FORMAT_… */
    uint32_t ndigits; /* 0: exact */
    uint64_t step_count_per_record;
    uint64_t tensorboard_tags; /* 0: no limit */
    tp_rule_config rules[TP_MAX_RULES];
    uint32_t rule_count;
    uint64_t segment_bytes; /* journal.segment_bytes */
    uint64_t budget_bytes;  /* journal.budget_bytes: records waiting for the writer */
    uint32_t wait_ms;       /* journal.wait_ms */
    uint64_t keep_bytes;    /* journal.keep_bytes; 0: all */
    uint64_t keep_days;     /* journal.keep_days; 0: all */
} tp_config;

/* TrainerMon's defaults, or those of watch(). */
void tp_config_defaults(tp_config *config, bool watch);

/* Reads text over defaults that are set already. source names it in messages (a path, or
 * "configuration"). On failure *config is freed and error says file, line, column, field and what
 * to write instead. Fields of the ancestors that this version does not act on give a warning. */
tp_status tp_config_parse(tp_config *config, const char *text, size_t size, const char *source,
                          tp_error *error);

tp_status tp_config_read(tp_config *config, const char *path, tp_error *error);

/* One that records every module and parameter: a copy that shares what the first one owns. */
tp_config tp_config_with_everything(const tp_config *config);

void tp_config_free(tp_config *config);

/* Appends a configuration that has this one's `database` and `alert.inform`, and no more. */
void tp_config_put_delivery(const tp_config *config, tp_buf *out);

#endif
