#include "scaler_hooks.h"

#include "recording.h"
#include "scalars.h"

/* A value that is in host memory; otherwise other: hooks don't wait for devices. */
static double number_in(core_state *state, PyObject *tensor, double other)
{
    tensor_view view;
    tp_stats stats;
    double value = other;
    if (tensor_type_kind(state, Py_TYPE(tensor)) == TYPE_OTHER ||
        !tensor_view_open_any(state, tensor, &view)) {
        return other;
    }
    if (view.why == NULL && tp_stats_compute(&view.data, 0, &stats) == TP_OK && stats.count == 1) {
        value = stats.min;
    }
    tensor_view_close(&view);
    return value;
}

bool scaler_note_fused(optimizer_hook *hook, PyObject *optimizer)
{
    core_state *state = hook->monitor->state;
    if (hook->scaler_depth == 0) {
        return true;
    }
    PyObject *found = core_attribute(optimizer, "found_inf");
    if (found != NULL && number_in(state, found, 0) != 0) {
        tp_monitor_mark_skipped(hook->monitor->monitor);
    }
    Py_XDECREF(found);
    PyObject *scale = hook->gradients_taken ? NULL : core_attribute(optimizer, "grad_scale");
    if (scale == NULL) {
        return true;
    }
    /* As the scaler itself does it: the reciprocal in f64, then f32. */
    PyObject *wide = PyObject_CallMethod(scale, "double", NULL);
    PyObject *inverse = wide == NULL ? NULL : PyObject_CallMethod(wide, "reciprocal", NULL);
    hook->inv_scale = inverse == NULL ? NULL : PyObject_CallMethod(inverse, "float", NULL);
    Py_XDECREF(inverse);
    Py_XDECREF(wide);
    Py_DECREF(scale);
    return hook->inv_scale != NULL;
}

/* Has the gradients taken now, once a step. optimizer: None is whichever will step. */
static PyObject *take_now(optimizer_hook *hook, PyObject *optimizer, const char *where)
{
    monitor_object *monitor = hook->monitor;
    const uint64_t begin = monitor_now(monitor);
    const int own = optimizer == Py_None ? 1 : optimizer_hook_owns(hook, optimizer);
    bool ok = own == 0;
    if (own > 0) {
        hook->gradients_taken = true;
        PyObject *hidden = core_hide_from_functions(monitor->state);
        ok = !optimizer_hook_has_gradients(hook, NULL) ||
             optimizer_hook_take_gradients(hook, optimizer);
        core_show(hidden);
    }
    PyObject *result = ok ? Py_NewRef(Py_None) : monitor_trouble(monitor, where);
    monitor_add_time(monitor, begin);
    return result;
}

PyObject *scaler_unscaled(PyObject *self, PyObject *optimizer)
{
    optimizer_hook *hook = (optimizer_hook *)self;
    if (!monitor_is_collecting(hook->monitor) || hook->gradients_taken) {
        Py_RETURN_NONE;
    }
    return take_now(hook, optimizer, "scaler.unscale_");
}

PyObject *scaler_scaled(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ((optimizer_hook *)self)->loss_is_scaled = true;
    Py_RETURN_NONE;
}

PyObject *scaler_clipping(PyObject *self, PyObject *Py_UNUSED(unused))
{
    optimizer_hook *hook = (optimizer_hook *)self;
    const bool is_stepping = hook->step_frame != NULL;
    if (!monitor_is_collecting(hook->monitor) || hook->gradients_taken || hook->loss_is_scaled ||
        is_stepping || hook->clipped_early > 1) {
        Py_RETURN_NONE;
    }
    hook->clipped_behind = 1 + hook->monitor->forward;
    return take_now(hook, Py_None, "clip_grad_norm_");
}

void scaler_check_clipping(optimizer_hook *hook)
{
    if (hook->clipped_behind == 0) {
        return;
    }
    if (hook->clipped_behind == 1 + hook->monitor->forward) {
        hook->clipped_early = 0;
        return;
    }
    hook->clipped_early++;
    if (!hook->has_warned_of_clipping) {
        hook->has_warned_of_clipping = true;
        core_warn("tensorprobe: step %llu: gradients were clipped before the last forward of the "
                  "step, so grad_reduced is what was there then; where that happens in two steps "
                  "in a row, later ones are recorded as the optimizer finds them, clipped",
                  (unsigned long long)tp_monitor_step_number(hook->monitor->monitor));
    }
}

PyObject *scaler_begin(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    optimizer_hook *hook = (optimizer_hook *)self;
    monitor_object *monitor = hook->monitor;
    if (count != 2 || !monitor_is_active(monitor)) {
        Py_RETURN_NONE;
    }
    const int own = optimizer_hook_owns(hook, args[0]);
    if (own <= 0) {
        return own == 0 ? Py_NewRef(Py_None) : monitor_trouble(monitor, "scaler.step");
    }
    if (hook->scaler_depth++ > 0) {
        Py_RETURN_NONE;
    }
    hook->stepped = false;
    if (args[1] == Py_None) {
        Py_RETURN_NONE;
    }
    PyObject *name = PyUnicode_FromString("grad_scale");
    if (name == NULL) {
        return NULL;
    }
    PyObject *const named[] = {name, args[1]};
    PyObject *result = scalars_log(monitor, named, 2);
    Py_DECREF(name);
    return result;
}

PyObject *scaler_end(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    optimizer_hook *hook = (optimizer_hook *)self;
    monitor_object *monitor = hook->monitor;
    if (count != 2 || hook->scaler_depth == 0 || --hook->scaler_depth > 0 || hook->stepped ||
        args[1] == Py_True || !monitor_is_active(monitor)) {
        Py_RETURN_NONE;
    }
    const uint64_t begin = monitor_now(monitor);
    tp_monitor_mark_skipped(monitor->monitor);
    PyObject *hidden = core_hide_from_functions(monitor->state);
    const bool ok =
        !monitor->collecting || optimizer_hook_take_before(hook, args[0], !hook->gradients_taken);
    core_show(hidden);
    return optimizer_hook_finish(hook, args[0], ok, begin);
}
