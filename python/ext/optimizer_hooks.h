/* Hooks on an optimizer: parameters, their gradients and moments, and the end of the step. */
#ifndef TP_EXT_OPTIMIZER_HOOKS_H
#define TP_EXT_OPTIMIZER_HOOKS_H

#include "monitor_object.h"

/* Series of one parameter. */
enum {
    UNREDUCED,
    REDUCED,
    EXP_AVG,
    EXP_AVG_SQ,
    ORIGIN,
    UPDATED,
    ADAM_UPDATE,
    ADAM_RATIO,
    DIRECTION,
    SERIES,
};

/* Of the parameter group that a parameter is in; NaN where it has no such thing. */
typedef struct adam_group {
    double beta1;
    double beta2;
    double eps;
    double step; /* of the whole group: some optimizers count so */
} adam_group;

typedef struct watched {
    PyObject *parameter; /* owned, as the optimizer owns it */
    uint32_t next;       /* index of the row of its next name; 0: there is none */
    bool is_alias;       /* such a row */
    bool foreign;        /* the optimizer doesn't have it: its update comes from elsewhere */
    char *name;
    char *global_name; /* NULL: the name */
    struct tp_span *span;
    struct tp_span *local_span; /* of the gradient before the reduction */
    bool absent;                /* the process has no part of it but that gradient */
    bool named;                 /* by a rule: no step leaves it out */
    bool duplicate;             /* its reduced gradient is recorded by another process */
    uint64_t unreduced_in;      /* the step that has its unreduced gradient, from 1; 0: none has */
    int32_t vpp_stage;
    adam_group group;
    site series[SERIES];
} watched;

/* Python sees the methods step_pre and step_post, which are registered with the optimizer. */
typedef struct optimizer_hook {
    PyObject ob_base;        /* as PyObject_HEAD */
    monitor_object *monitor; /* owned */
    bool main_grad;          /* look for .main_grad before .grad */
    PyObject *members;       /* owned set of the model's parameters: the hooks are torch's global
                                ones, and optimizers without any of these are somebody else's. NULL:
                                the hooks are one optimizer's own */
    bool ends_step;          /* its step is the training's */
    bool gradients_taken;    /* before the step: unscaled, and not clipped yet */
    bool loss_is_scaled;     /* by a gradient scaler, in this step */
    uint64_t clipped_behind; /* 1 + the newest forward when clipping began; 0: it has not */
    uint32_t clipped_early;  /* steps in a row in which other forwards came behind that */
    bool has_warned_of_clipping;
    bool stepped;          /* since the scaler's step began */
    uint32_t scaler_depth; /* scaler.step of a subclass may call that of its base */
    PyObject *inv_scale;   /* owned tensor, while gradients are scaled; else NULL */
    PyObject *optimizer;   /* weak reference to the one that was found so, or NULL */
    bool names;            /* has parameters that a rule names */
    uint32_t busy; /* calls that look at the parameters: they may work with the GIL released */
    uint32_t count;
    watched *parameters;
    const void *foreign_to; /* the optimizer for which foreign was found out; NULL: none */
    Py_ssize_t foreign_at;  /* and how many parameters it had then */
    PyObject *rows;         /* owned dict, or NULL: for optimizer_rows.c */
    PyObject *locate;       /* owned callable of an adapter; NULL: torch's places are looked at */
    PyObject *parts;        /* owned: what it said, while somebody looks at it */
    PyObject *reducer;      /* owned (object, attribute), NULL: nothing is reduced */
    PyObject *ending;       /* owned callable, NULL: none; before the end of the training's step */
    bool reduces_often;     /* several times a step: no buffer holds the sum of the micro steps */
    double reduced_sq;   /* sum of squares of the reduced gradients taken last, copies left out */
    bool checked;        /* that the optimizer keeps moments, if they are to be recorded */
    bool stale_gradient; /* what is there before the step is the step before's */
    uint64_t begun_in;   /* 1 + the step whose beginning is recorded, while it has not ended */
    uint64_t begun_forward; /* the newest forward at that time */
    PyObject *step_frame;   /* owned: the frame that runs the step's hooks, while one is running */
} optimizer_hook;

/* monitor.optimizer_hook(parameters, main_grad, members, ends_step) */
PyObject *optimizer_hook_new(monitor_object *monitor, PyObject *const *args, Py_ssize_t count);

/* Is it the optimizer whose hooks these are? With the global hooks that is the first one seen that
 * has parameters of the model, as long as it lives. 1, 0, or -1 with an error set. */
int optimizer_hook_owns(optimizer_hook *hook, PyObject *optimizer);

/* Records the values under this series of each of the parameter's names. False: an error is set. */
struct reading;
bool optimizer_hook_record_rows(optimizer_hook *hook, watched *entry, const struct reading *values,
                                int series, uint32_t micro_step);

/* Whether the open step has gradients, or those of this parameter (NULL: of any). */
bool optimizer_hook_has_gradients(const optimizer_hook *hook, const watched *entry);

/* The gradients as they are now; and with the moments and parameters, as they are before a step.
 * False: an error is set. */
bool optimizer_hook_take_gradients(optimizer_hook *hook, PyObject *optimizer);
bool optimizer_hook_take_before(optimizer_hook *hook, PyObject *optimizer, bool gradients);

/* The optimizer has made its update, or has been kept from it: records what is there after it, and
 * ends the training's step if that is this optimizer's to do. ok: nothing has failed yet. begin: of
 * the own time so far. Returns as a hook does. */
PyObject *optimizer_hook_finish(optimizer_hook *hook, PyObject *optimizer, bool ok, uint64_t begin);

#endif
