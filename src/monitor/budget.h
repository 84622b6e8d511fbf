/* What watching may take of the training's thread, kept by recording costly quantities in fewer
 * steps. Plain arithmetic: a frontend tells what each step took, and asks what the next one leaves
 * out. */
#ifndef TP_MONITOR_BUDGET_H
#define TP_MONITOR_BUDGET_H

#include "config/config.h"

/* What is recorded, or left out, together. */
enum {
    TP_GROUP_ACTIVATIONS,
    TP_GROUP_ACTIVATION_GRADS,
    TP_GROUP_GRADIENTS, /* of parameters; last, as what goes wrong anywhere reaches them */
    TP_GROUP_PARAMETERS,
    TP_GROUP_MOMENTS,
    TP_GROUP_UPDATES, /* Adam's, and mg_direction */
    TP_GROUP_COUNT
};

#define TP_BUDGET_MAX_INTERVAL 256u

typedef struct tp_budget {
    tp_budget_config limit;
    uint32_t groups;   /* bits 1 << TP_GROUP_…: those that may be left out */
    uint32_t thinned;  /* of these, those that are recorded in one of `interval` steps alone */
    uint32_t interval; /* a power of two */
    bool is_too_small; /* even without them the budget isn't kept */
    uint32_t seen;     /* steps, the first few of which aren't typical */
    uint32_t whole_seen, lean_seen;
    double whole_ns, lean_ns; /* own time of steps that record everything, and of the others */
    double step_ns;           /* the whole time of a step */
    double cost[TP_GROUP_COUNT];
} tp_budget;

/* What a step took. */
typedef struct tp_budget_step {
    uint32_t left_out; /* groups that it left out */
    double own_ns;     /* of step_ns, of the monitor's */
    double step_ns;
    double cost[TP_GROUP_COUNT]; /* of own_ns, by group, as far as can be told */
} tp_budget_step;

/* groups: those that are recorded at all and may be left out. */
void tp_budget_init(tp_budget *budget, const tp_budget_config *limit, uint32_t groups);

/* Takes a step into account. True: what is left out, or how often, is different from now on. */
bool tp_budget_take(tp_budget *budget, const tp_budget_step *step);

/* The groups that a step leaves out; number: of the steps that could be recorded, from 0. Processes
 * with the same interval record the same steps whole. */
uint32_t tp_budget_left_out(const tp_budget *budget, uint64_t number);

/* Own time that a step may take. */
double tp_budget_allowed_ns(const tp_budget *budget);

/* Quantities, as bits 1 << TP_ACTIVATION …, of groups. */
uint32_t tp_budget_quantities(uint32_t groups);

/* A configuration without these groups: a copy that shares what the first one owns. */
tp_config tp_budget_config_without(const tp_config *config, uint32_t groups);

/* The groups that a configuration records, without those that a check over processes needs. */
uint32_t tp_budget_groups(const tp_config *config);

#endif
