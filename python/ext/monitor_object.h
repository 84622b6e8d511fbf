/* _core.Monitor, and what the hooks share through it. Everything here runs with the GIL held. */
#ifndef TP_EXT_MONITOR_OBJECT_H
#define TP_EXT_MONITOR_OBJECT_H

#include <pthread.h>

#include "base/clock.h"
#include "core.h"
#include "memo.h"
#include "monitor/hooks.h"
#include "tensor_access.h"

struct collection;
struct module_hook;
struct input_grad;
struct passages;
struct scalar_series;

/* One series that a hook writes to: its key, and the shape that came last. */
#define SITE_DIMS 8
typedef struct site {
    bool has_key;
    bool has_shape;
    uint32_t key;
    uint32_t shape;
    uint32_t ndim;
    int64_t dims[SITE_DIMS];
} site;

/* Where the gradient of an input starts: the node that made the input, and which of its outputs. */
typedef struct input_edge {
    PyObject *node; /* owned */
    uint32_t output_nr;
    int32_t slot;    /* as module_hook_slot says */
    uint32_t number; /* in the list of inputs */
} input_edge;

/* One running forward of one module, from its pre-hook to its hook. */
#define FRAME_INLINE_EDGES 4
typedef struct frame {
    struct frame *next_spare; /* while it isn't in use */
    struct module_hook *hook; /* owned */
    int32_t vpp_stage;        /* the hook's */
    const void *module;       /* whose forward it is, which holds it; NULL: not told */
    bool training;            /* a training forward, recorded or not */
    bool values;              /* its activations are recorded */
    bool gradients;           /* and their gradients */
    int64_t graph_task;       /* the backward in which it runs, -1: none */
    unsigned long thread;
    uint64_t forward; /* number of the root's forward that it belongs to */
    uint32_t micro_step;
    uint32_t call;
    int64_t entry_sequence_nr;
    struct passages *within; /* owned: what the modules inside left; NULL: nothing */
    input_edge *edges;
    uint32_t edge_count;
    uint32_t edge_capacity;
    input_edge inline_edges[FRAME_INLINE_EDGES];
} frame;

/* A forward that a backward goes through. */
typedef struct backward_forward {
    int32_t vpp_stage;
    uint32_t micro_step;
} backward_forward;

/* The gradient of an input of which some consumers have not run yet in this backward. */
typedef struct pending_grad {
    struct input_grad *grad; /* owned */
    int64_t graph_task;
} pending_grad;

typedef struct monitor_object {
    PyObject ob_base; /* as PyObject_HEAD */
    /* What the hooks of every module use, side by side. */
    core_state *state;
    tp_monitor *monitor;     /* NULL after close */
    const tp_config *config; /* of the open step: what is configured, or less (collection.h) */
    double eps;              /* of the configuration */
    tp_step *step; /* the open one; NULL: ask, for a step is being ended without the GIL */
    bool closing;
    bool collecting;      /* the open step is collected; else hooks return at once */
    bool exporting;       /* torch.export runs the root's forward with tensors of its own */
    bool quick;           /* the configuration lets hooks of quick_hooks.h do */
    bool is_busy;         /* the hook that runs has read more than a quick one does */
    bool is_fresh;        /* it has read the clock, and little else */
    uint32_t untimed;     /* quick hooks until one is timed */
    uint32_t quick_ns[2]; /* what the timed ones take on average, by enum stopwatch_kind */
    uint32_t frame_count, frame_capacity;
    frame **frames;
    frame *spare_frames; /* for reuse: as many as have run within one another */
    uint64_t hook_ns;    /* own time in hooks of the open step, as far as the step hasn't got it */
    tp_quick_clock clock;
    uint64_t forward;      /* number of training forwards of root modules, since open */
    uint32_t *micro_steps; /* for each chunk: training forwards of its root module in this step */

    tp_monitor_counters final_counters; /* once it is closed */
    uint64_t final_step;                /* likewise: the one that was open */
    uint32_t users;                     /* calls that work with the GIL released */
    bool warned_export;
    bool warned;              /* of an exception in a hook */
    uint64_t unreadable;      /* tensors that could not be read */
    PyObject *warned_reasons; /* set of strings */

    uint32_t endings;            /* how many threads end a step */
    PyObject *collectives;       /* borrowed: it lets go of itself; NULL: none is watched */
    PyObject *collector_handles; /* list: handles of hooks that the last collected step ends */
    uint32_t ops[TP_OP_COUNT];   /* what the metrics show */
    uint32_t op_count;

    const tp_config *configured;   /* valid while monitor is */
    struct collection *collection; /* NULL: every step has what is configured */
    uint64_t optimizer_ns;         /* of hook_ns, around the optimizer's step */
    uint64_t steps_ended;
    uint32_t most_forwards;   /* micro steps of the longest step so far */
    bool reduced_only;        /* parameters' gradients may be sums over processes */
    PyObject *on_change;      /* owned callable of the session, or NULL: the model has changed */
    PyObject *on_zoom;        /* likewise: see collection.h */
    PyObject *on_first_step;  /* likewise, once: the first collected step has ended */
    PyObject *scalar_numbers; /* dict: name of a logged scalar → its number; NULL: none yet */
    struct scalar_series *scalars;
    uint32_t scalar_count;

    uint32_t chunk_count;
    bool follows_inputs;  /* a module wants the gradient of an input */
    uint64_t graph_nodes; /* looked at on the way back to inputs */
    memo_table memo;
    pending_grad *pending;
    uint32_t pending_count, pending_capacity;
    PyObject *leaf_handles; /* list: handles of hooks on nodes that outlive the graph */
    int64_t backward_task;  /* where there are such: the newest backward, and its forwards */
    backward_forward *backward_forwards;
    uint32_t backward_forward_count, backward_forward_capacity;
} monitor_object;

/* False: return at once (closed, or a forked child). */
static inline bool monitor_is_active(const monitor_object *monitor)
{
    return monitor->monitor != NULL && !monitor->closing && tp_monitor_is_active(monitor->monitor);
}

/* Active, and the open step is one that is collected. */
static inline bool monitor_is_collecting(const monitor_object *monitor)
{
    return monitor->collecting && monitor_is_active(monitor);
}

/* The micro step that a chunk's records belong to now. */
static inline uint32_t monitor_micro_step(const monitor_object *monitor, int32_t vpp_stage)
{
    const uint32_t forwards = monitor->micro_steps[vpp_stage];
    return forwards > 0 ? forwards - 1 : 0;
}

/* Makes room for the counter of the chunk with this number. False: an error is set. */
bool monitor_add_chunk(monitor_object *monitor, long vpp_stage);

/* The next step to be ended has this number. False: an error is set. */
bool monitor_start_at(monitor_object *monitor, uint64_t step);

/* A hook failed, with or without a Python error set. Counts, warns once, clears the error, returns
 * None. Under "strict" it returns NULL with an error set; so it does when the error isn't its own
 * but KeyboardInterrupt or SystemExit, raised by a signal's handler while Python code ran. */
PyObject *monitor_trouble(monitor_object *monitor, const char *where);

/* Clears the error that is set, unless it is one of those two. */
void monitor_clear_error(void);

/* A tensor that can't be read: counts, and warns once per reason. False: an error is set. */
bool monitor_unreadable(monitor_object *monitor, const tensor_view *view, const char *name);

/* Ends the step. False: an error is set (only under "strict"). */
bool monitor_boundary(monitor_object *monitor);

/* Forgets what belongs to forwards that have ended in this thread. */
void monitor_forget_forward(monitor_object *monitor);

/* Forgets what belongs to the step, gradients that are still awaited included. */
void monitor_forget_step(monitor_object *monitor);

/* Tells the open step how many training forwards it has seen, and counts anew. */
void monitor_hand_over_micro_steps(monitor_object *monitor);

/* Has input_grad_finish called for it at the end of the backward that is running, unless it is
 * complete by then. False: an error is set. */
bool monitor_await_end_of_backward(monitor_object *monitor, struct input_grad *grad);

static inline uint64_t monitor_now(monitor_object *monitor)
{
    return tp_quick_clock_read(&monitor->clock);
}

/* Adds the time since begin to the monitor's own time. */
void monitor_add_time(monitor_object *monitor, uint64_t begin);

/* Of a hook around a forward. A quick one, which reads small tensors or none, would spend a fifth
 * of its time on the clock: one of thirteen is timed, and the others are taken to take as long. */
enum stopwatch_kind { STOPWATCH_BEFORE, STOPWATCH_AFTER };
typedef struct stopwatch {
    bool quick; /* unless it comes to do more */
    bool timed;
    enum stopwatch_kind kind;
    uint64_t begin;
} stopwatch;

#define TIMED_HOOKS 13                 /* few layers are made of a multiple of so many modules */
#define INTERRUPTED_NS UINT64_C(20000) /* no quick one takes so long */

/* reads: it may read a tensor. */
static inline stopwatch stopwatch_start(monitor_object *monitor, bool quick,
                                        enum stopwatch_kind kind, bool reads)
{
    const bool timed = !quick || monitor->untimed == 0 || monitor->quick_ns[kind] == 0;
    if (quick) {
        monitor->untimed = timed ? TIMED_HOOKS - 1 : monitor->untimed - 1;
    }
    monitor->is_busy = false;
    monitor->is_fresh = timed || reads;
    return (stopwatch){quick, timed, kind, monitor->is_fresh ? monitor_now(monitor) : 0};
}

static inline void stopwatch_stop(monitor_object *monitor, const stopwatch *watch)
{
    uint32_t *mean = &monitor->quick_ns[watch->kind];
    const bool quick = watch->quick && !monitor->is_busy;
    monitor->is_fresh = false;
    if (quick && !watch->timed) {
        monitor->hook_ns += *mean;
        return;
    }
    const uint64_t took = monitor_now(monitor) - watch->begin;
    monitor->hook_ns += took;
    if (quick && took < INTERRUPTED_NS) {
        *mean = *mean == 0 ? (uint32_t)took + 1 : (*mean * 7 + (uint32_t)took + 4) / 8;
    }
}

/* Gives that time to the open step. Before it ends. */
void monitor_hand_over_time(monitor_object *monitor);

/* What tells this thread from others. */
static inline unsigned long monitor_thread(void)
{
#if defined(__has_builtin)
#if __has_builtin(__builtin_thread_pointer)
#define MONITOR_HAS_THREAD_POINTER
#endif
#endif
#if defined(MONITOR_HAS_THREAD_POINTER)
    return (unsigned long)(uintptr_t)__builtin_thread_pointer();
#else
    return (unsigned long)pthread_self();
#endif
}

#endif
