/* Running forwards: one frame for each of a watched module, from its pre-hook to its hook. */
#ifndef TP_EXT_FRAMES_H
#define TP_EXT_FRAMES_H

#include "monitor_object.h"

/* A frame is made and filled first, then pushed: while it is filled the GIL may be released, and
 * what is pushed may be forgotten by another thread. A spare one keeps what most frames leave as it
 * is: no task, no edges, nothing within. */

/* Of this thread; NULL: it has none. */
static inline const frame *monitor_newest_frame(const monitor_object *monitor)
{
    const unsigned long thread = monitor_thread();
    for (uint32_t i = monitor->frame_count; i-- > 0;) {
        if (monitor->frames[i]->thread == thread) {
            return monitor->frames[i];
        }
    }
    return NULL;
}

/* Without spare frames; NULL: an error is set. */
frame *monitor_make_frame(void);

/* Drops edges and what is within. */
void monitor_empty_frame(frame *old);

/* Makes room for one more. False: an error is set. */
bool monitor_grow_frames(monitor_object *monitor);

static inline void monitor_free_frame(monitor_object *monitor, frame *old)
{
    if (old->edge_count > 0 || old->within != NULL || old->edges != old->inline_edges) {
        monitor_empty_frame(old);
    }
    Py_DECREF((PyObject *)(void *)old->hook);
    old->next_spare = monitor->spare_frames;
    monitor->spare_frames = old;
}

/* Of a hook of a chunk's module, within the forward of another (NULL: within none). NULL: an error
 * is set. */
static inline frame *monitor_new_frame(monitor_object *monitor, struct module_hook *hook,
                                       int32_t vpp_stage, const frame *around)
{
    frame *new = monitor->spare_frames;
    if (new != NULL) {
        monitor->spare_frames = new->next_spare;
    } else if ((new = monitor_make_frame()) == NULL) {
        return NULL;
    }
    new->hook = (struct module_hook *)(void *)Py_NewRef((PyObject *)(void *)hook);
    new->vpp_stage = vpp_stage;
    new->module = NULL;
    new->training = false;
    new->values = false;
    new->gradients = false;
    new->graph_task = -1;
    new->thread = monitor_thread();
    new->call = 0;
    new->entry_sequence_nr = 0;
    /* Another thread's forward may have begun since the one that this is a part of. */
    const bool is_part = around != NULL && around->vpp_stage == vpp_stage;
    new->forward = is_part ? around->forward : monitor->forward;
    new->micro_step = is_part ? around->micro_step : monitor_micro_step(monitor, vpp_stage);
    return new;
}

/* False: an error is set, and the frame is freed. */
static inline bool monitor_push_frame(monitor_object *monitor, frame *new)
{
    if (monitor->frame_count == monitor->frame_capacity && !monitor_grow_frames(monitor)) {
        monitor_free_frame(monitor, new);
        return false;
    }
    monitor->frames[monitor->frame_count++] = new;
    return true;
}

/* Takes out the newest frame of that hook in this thread, wherever it is; NULL: there is none. */
frame *monitor_find_frame(monitor_object *monitor, const struct module_hook *hook);

/* The same, which it mostly is the newest of all. */
static inline frame *monitor_pop_frame(monitor_object *monitor, const struct module_hook *hook)
{
    const uint32_t count = monitor->frame_count;
    frame *newest = count > 0 ? monitor->frames[count - 1] : NULL;
    if (newest == NULL || newest->hook != hook || newest->thread != monitor_thread()) {
        return monitor_find_frame(monitor, hook);
    }
    monitor->frame_count--;
    return newest;
}

/* Takes out this thread's newest frames that belong to backwards, when none is running: a
 * recomputation stops in the middle of a module when it has what it needs. */
void monitor_forget_backward_frames(monitor_object *monitor);

/* Is a forward of this module running in this thread? */
bool monitor_is_running(const monitor_object *monitor, const struct module_hook *hook);

bool frame_add_edge(frame *owner, const input_edge *edge);

#endif
