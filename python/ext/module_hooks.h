/* Hooks on one module: activations, and the start of their gradients' hooks. */
#ifndef TP_EXT_MODULE_HOOKS_H
#define TP_EXT_MODULE_HOOKS_H

#include "forwards.h"
#include "monitor_object.h"
#include "passages.h"
#include "sides.h"

/* The sites of one side: number slot + 1. */
typedef struct site_list {
    site *sites;
    uint32_t count;
} site_list;

/* One of the tensors that are given by keyword, whatever the order of the keywords. */
typedef struct keyword_input {
    PyObject *keyword; /* owned; the name as a call has brought it */
    char *argument;    /* likewise, in UTF-8 */
    int32_t slot;      /* which of several tensors in it, -1: the only one */
    site activation, gradient;
} keyword_input;

/* The modules that a walk through the tree has met: open addressing, by their addresses. */
typedef struct module_set {
    const void **modules;
    uint32_t capacity; /* a power of two, or 0 */
    uint32_t count;
} module_set;

/* The forwards in compiled graphs that may be computed again in a backward. */
typedef struct compiled_calls {
    uint64_t step;
    uint32_t outstanding; /* since the last that was */
    bool known;           /* which one is computed again: there was only one */
    uint32_t micro_step;  /* of the last one */
    uint32_t call;
} compiled_calls;

/* How often the module has been called in a forward of its root. */
#define FORWARDS 4
typedef struct forward_calls {
    uint64_t forward;
    uint32_t count;
} forward_calls;

/* Python sees the methods forward_pre and forward, which are registered with the module. */
typedef struct module_hook {
    PyObject ob_base;         /* as PyObject_HEAD */
    monitor_object *monitor;  /* owned; NULL in an inert hook */
    PyObject *module;         /* weak reference: the one module that is watched */
    PyTypeObject *plain_type; /* owned; of the module, if "training" is in its dict; or NULL */
    char *name;
    int32_t vpp_stage;
    bool root;                     /* its training forwards count the micro steps */
    bool recorded;                 /* false: only counts */
    bool named;                    /* by a rule: no step leaves it out */
    bool linear;                   /* its forward is that of torch.nn.Linear */
    bool quick;                    /* its calls may be such as quick_hooks.h takes */
    bool fired;                    /* a training forward has been seen */
    uint64_t structure;            /* of a root: see structure.h */
    bool unsettled;                /* of a root: whether it has changed is to be asked again */
    module_set seen;               /* of a root: what its last walk has met, for the memory */
    forward_calls calls[FORWARDS]; /* of forwards that run side by side, in threads */
    owed_calls owed;
    compiled_calls compiled;
    side_filter filter;
    site_list activations[2]; /* input, output */
    site_list gradients[2];
    keyword_input *keywords;
    uint32_t keyword_count;
} module_hook;

/* monitor.module_hook(module, name, vpp_stage, root, recorded, target) */
PyObject *module_hook_new(monitor_object *monitor, PyObject *const *args, Py_ssize_t count);

/* What records and gradients of tensor i of one of the module's sides are known by: its number, -1
 * for the only one, or for what is given by keyword a number that its name has had from the first
 * call on. False: an error is set. */
#define KEYWORD_SLOTS (INT32_C(1) << 24)
bool module_hook_slot(module_hook *hook, const tensor_list *tensors, uint32_t i, int32_t *slot);

/* The number of a tensor in the argument of this name (which: as keyword_input.slot). */
bool module_hook_keyword_slot(module_hook *hook, PyObject *keyword, int32_t which, int32_t *slot);

/* The site of quantity (TP_ACTIVATION or TP_ACTIVATION_GRAD), role and slot, with its key. NULL: an
 * error is set. Valid until the next call. */
site *module_hook_site(module_hook *hook, uint32_t quantity, uint32_t role, int32_t slot);

/* The root's forward begins: a new micro step, and what older forwards left behind is forgotten.
 * Not when it calls itself, or is run again in a backward (task). A step's first one looks whether
 * the tree below the module has changed. False: an error is set. */
bool module_hook_begin_root(module_hook *hook, PyObject *module, enum forward_kind kind,
                            int64_t task);

/* How often the module has been called in this forward of the root, so far: in one of the newest
 * four. */
uint32_t *module_hook_calls(module_hook *hook, uint64_t forward);

/* A training forward of the module has begun: its micro step and call. */
void module_hook_number_call(module_hook *hook, frame *running);

#endif
