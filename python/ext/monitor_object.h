/* _core.Monitor, and what the hooks share through it. Everything here runs with the GIL held. */
#ifndef TP_EXT_MONITOR_OBJECT_H
#define TP_EXT_MONITOR_OBJECT_H

#include <pthread.h>

#include "base/clock.h"
#include "core.h"
#include "memo.h"
#include "monitor/hooks.h"
#include "tensor_access.h"

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
    core_state *state;
    tp_monitor *monitor;                /* NULL after close */
    tp_monitor_counters final_counters; /* once it is closed */
    const tp_config *config;            /* valid while monitor is */
    uint32_t users;                     /* calls that work with the GIL released */
    bool closing;
    bool exporting; /* torch.export runs the root's forward with tensors of its own */
    bool warned_export;
    bool warned;              /* of an exception in a hook */
    uint64_t unreadable;      /* tensors that could not be read */
    PyObject *warned_reasons; /* set of strings */

    tp_step *step;         /* the open one; NULL: ask, for a step is being ended without the GIL */
    uint32_t endings;      /* how many threads do that */
    bool collecting;       /* the open step is collected; else hooks return at once */
    PyObject *collectives; /* borrowed: it lets go of itself; NULL: none is watched */
    PyObject *collector_handles; /* list: handles of hooks that the last collected step ends */
    uint32_t ops[TP_OP_COUNT];   /* what the metrics show */
    uint32_t op_count;

    tp_quick_clock clock;
    uint64_t hook_ns;     /* own time in hooks of the open step, as far as the step hasn't got it */
    uint32_t untimed;     /* quick hooks until one is timed */
    uint32_t quick_ns[2]; /* what the timed ones take on average, by enum stopwatch_kind */
    bool is_busy;         /* the hook that runs has read more than a quick one does */
    bool is_fresh;        /* it has read the clock, and little else */
    uint64_t steps_ended;
    uint32_t most_forwards;   /* micro steps of the longest step so far */
    bool reduced_only;        /* parameters' gradients may be sums over processes */
    PyObject *on_change;      /* owned callable of the session, or NULL: the model has changed */
    PyObject *on_first_step;  /* likewise, once: the first collected step has ended */
    PyObject *scalar_numbers; /* dict: name of a logged scalar → its number; NULL: none yet */
    struct scalar_series *scalars;
    uint32_t scalar_count;

    uint64_t forward;      /* number of training forwards of root modules, since open */
    uint32_t *micro_steps; /* for each chunk: training forwards of its root module in this step */
    uint32_t chunk_count;
    bool follows_inputs;  /* a module wants the gradient of an input */
    uint64_t graph_nodes; /* looked at on the way back to inputs */
    memo_table memo;
    frame **frames;
    uint32_t frame_count, frame_capacity;
    frame *spare_frames; /* for reuse: as many as have run within one another */
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

/* reads: it may read a tensor. */
stopwatch stopwatch_start(monitor_object *monitor, bool quick, enum stopwatch_kind kind,
                          bool reads);
void stopwatch_stop(monitor_object *monitor, const stopwatch *watch);

/* Gives that time to the open step. Before it ends. */
void monitor_hand_over_time(monitor_object *monitor);

static inline unsigned long monitor_thread(void)
{
    return (unsigned long)pthread_self();
}

/* Frames. One is made and filled first, then pushed: while it is filled the GIL may be released,
 * and what is pushed may be forgotten by another thread. new returns NULL, push false with an error
 * set (the frame is freed then). pop takes the newest frame of that hook in this thread out, NULL
 * when it has none. */
frame *monitor_new_frame(monitor_object *monitor, struct module_hook *hook);
bool monitor_push_frame(monitor_object *monitor, frame *new);
frame *monitor_pop_frame(monitor_object *monitor, const struct module_hook *hook);

/* Of this thread; NULL: it has none. */
const frame *monitor_newest_frame(const monitor_object *monitor);

/* Takes out this thread's newest frames that belong to backwards, when none is running: a
 * recomputation stops in the middle of a module when it has what it needs. */
void monitor_forget_backward_frames(monitor_object *monitor);

/* Is a forward of this module running in this thread? */
bool monitor_is_running(const monitor_object *monitor, const struct module_hook *hook);

void monitor_free_frame(monitor_object *monitor, frame *old);
bool frame_add_edge(frame *owner, const input_edge *edge);

#endif
