#include "monitor_object.h"

#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "collection.h"
#include "collectives.h"
#include "config_object.h"
#include "counters.h"
#include "errors.h"
#include "metrics.h"
#include "module_hooks.h"
#include "optimizer_hooks.h"
#include "recording.h"
#include "scalars.h"

/* For "O&": a path in the file system's encoding as an owned bytes object, NULL for None. */
static int convert_path(PyObject *value, void *place)
{
    return value == Py_None || PyUnicode_FSConverter(value, place);
}

static const char *path_text(PyObject *path)
{
    return path == NULL ? NULL : PyBytes_AsString(path);
}

/* False: an error is set. */
static bool take_config(monitor_object *self)
{
    if (!collection_take_config(self)) {
        return false;
    }
    memcpy(self->ops, self->config->ops, sizeof(self->ops));
    self->op_count = self->config->op_count;
    self->collecting = tp_monitor_is_collecting(self->monitor);
    return true;
}

static PyObject *open_monitor(PyTypeObject *type, const tp_monitor_options *options)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    monitor_object *self = (monitor_object *)(void *)alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->state = PyType_GetModuleState(type);
    self->warned_reasons = PySet_New(NULL);
    self->leaf_handles = PyList_New(0);
    self->collector_handles = PyList_New(0);
    if (self->warned_reasons == NULL || self->leaf_handles == NULL ||
        self->collector_handles == NULL) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    tp_error error = {0};
    const tp_status status = tp_monitor_open(&self->monitor, options, &error);
    if (status != TP_OK) {
        error.code = status;
        self->monitor = NULL;
        errors_raise(self->state, &error);
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    if (!take_config(self)) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    self->step = tp_monitor_open_step(self->monitor);
    return (PyObject *)self;
}

static PyObject *monitor_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"config_json", "config_path", "rank",   "output_dir", "run_id",
                            "watch",       "pp_stage",    "resume", NULL};
    tp_monitor_options options;
    tp_monitor_defaults(&options);
    PyObject *config_path = NULL;
    PyObject *output_dir = NULL;
    PyObject *resume = NULL;
    PyObject *monitor = NULL;
    long long rank = 0;
    int watch = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|zO&LO&zpiO&:Monitor", names,
                                     &options.config_text, convert_path, &config_path, &rank,
                                     convert_path, &output_dir, &options.run_id, &watch,
                                     &options.pp_stage, convert_path, &resume)) {
        return NULL; /* a path that had been converted is freed */
    }
    if (rank < 0 || rank > UINT32_MAX) {
        PyErr_Format(PyExc_ValueError, "rank must be from 0 to 4294967295, not %lld", rank);
        goto end;
    }
    options.config_path = path_text(config_path);
    options.output_dir = path_text(output_dir);
    options.resume = path_text(resume);
    options.rank = (uint32_t)rank;
    options.watch_defaults = (uint32_t)watch;
    monitor = open_monitor(type, &options);

end:
    Py_XDECREF(config_path);
    Py_XDECREF(output_dir);
    Py_XDECREF(resume);
    return monitor;
}

/* Waits for calls in other threads that work with the GIL released, then ends the monitor. */
static tp_status close_monitor(monitor_object *self)
{
    tp_status status = TP_OK;
    self->closing = true;
    while (self->users > 0) {
        Py_BEGIN_ALLOW_THREADS;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        Py_END_ALLOW_THREADS;
    }
    if (self->monitor != NULL) {
        tp_monitor *monitor = self->monitor;
        collectives_end_step(self);
        monitor_hand_over_micro_steps(self);
        monitor_hand_over_time(self);
        self->final_step = tp_monitor_step_number(monitor);
        self->monitor = NULL;
        self->config = self->configured = NULL;
        collection_free(self);
        self->step = NULL;
        Py_BEGIN_ALLOW_THREADS;
        status = tp_monitor_finish(monitor);
        tp_monitor_get_counters(monitor, &self->final_counters);
        tp_monitor_close(&monitor);
        Py_END_ALLOW_THREADS;
    }
    monitor_forget_step(self);
    return status;
}

static void monitor_dealloc(PyObject *object)
{
    monitor_object *self = (monitor_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->collector_handles != NULL) {
        PyObject *error = NULL;
        PyObject *value = NULL;
        PyObject *traceback = NULL;
        PyErr_Fetch(&error, &value, &traceback);
        close_monitor(self);
        PyErr_Restore(error, value, traceback);
    }
    memo_free(&self->memo);
    scalars_free(self);
    Py_CLEAR(self->on_change);
    Py_CLEAR(self->on_first_step);
    Py_CLEAR(self->on_zoom);
    tp_free(self->micro_steps);
    tp_free(self->frames);
    while (self->spare_frames != NULL) {
        frame *spare = self->spare_frames;
        self->spare_frames = spare->next_spare;
        tp_free(spare);
    }
    tp_free(self->pending);
    tp_free(self->backward_forwards);
    Py_XDECREF(self->warned_reasons);
    Py_XDECREF(self->leaf_handles);
    Py_XDECREF(self->collector_handles);
    PyObject_Free(object);
    Py_DECREF((PyObject *)type);
}

static bool is_open(const monitor_object *self)
{
    if (!monitor_is_active(self)) {
        PyErr_SetString(PyExc_RuntimeError, "the monitor is closed");
        return false;
    }
    return true;
}

static PyObject *monitor_step(PyObject *object, PyObject *Py_UNUSED(unused))
{
    monitor_object *self = (monitor_object *)object;
    if (!is_open(self) || !monitor_boundary(self)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *monitor_start_at_step(PyObject *object, PyObject *number)
{
    monitor_object *self = (monitor_object *)object;
    const unsigned long long step = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred() || !is_open(self) || !monitor_start_at(self, step)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *monitor_go_on(PyObject *object, PyObject *run)
{
    monitor_object *self = (monitor_object *)object;
    PyObject *path = NULL;
    if (!is_open(self) || !convert_path(run, &path)) {
        return NULL;
    }
    tp_error error = {0};
    tp_status status = TP_ERR_ARGUMENT;
    if (path != NULL) {
        Py_BEGIN_ALLOW_THREADS;
        status = tp_monitor_go_on(self->monitor, path_text(path), &error);
        Py_END_ALLOW_THREADS;
        self->collecting = tp_monitor_is_collecting(self->monitor);
    }
    Py_XDECREF(path);
    if (status == TP_ERR_STATE) {
        PyErr_SetString(PyExc_RuntimeError, error.message);
        return NULL;
    }
    if (status != TP_OK) {
        error.code = status;
        errors_raise(self->state, &error);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *monitor_run(PyObject *object, void *Py_UNUSED(closure))
{
    const monitor_object *self = (monitor_object *)object;
    if (!is_open(self)) {
        return NULL;
    }
    const tp_run_info *run = tp_monitor_run(self->monitor);
    return Py_BuildValue("{s:s,s:I,s:I}", "run_id", run->run_id, "rank", run->rank, "attempt",
                         run->attempt);
}

static PyObject *monitor_configure(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"config_json", "config_path", NULL};
    monitor_object *self = (monitor_object *)object;
    PyObject *path = NULL;
    const char *text = NULL;
    if (!is_open(self) || !PyArg_ParseTupleAndKeywords(args, kwargs, "|zO&:configure", names, &text,
                                                       convert_path, &path)) {
        return NULL;
    }
    tp_error error = {0};
    const tp_status status = tp_monitor_configure(self->monitor, path_text(path), text, &error);
    Py_XDECREF(path);
    if (status != TP_OK) {
        error.code = status;
        errors_raise(self->state, &error);
        return NULL;
    }
    if (!take_config(self)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *monitor_pause(PyObject *object, PyObject *Py_UNUSED(unused))
{
    monitor_object *self = (monitor_object *)object;
    if (!is_open(self)) {
        return NULL;
    }
    tp_monitor_pause(self->monitor);
    self->collecting = tp_monitor_is_collecting(self->monitor);
    Py_RETURN_NONE;
}

static PyObject *monitor_resume(PyObject *object, PyObject *Py_UNUSED(unused))
{
    monitor_object *self = (monitor_object *)object;
    if (!is_open(self)) {
        return NULL;
    }
    tp_monitor_resume(self->monitor);
    self->collecting = tp_monitor_is_collecting(self->monitor);
    Py_RETURN_NONE;
}

static PyObject *monitor_get_collecting(PyObject *object, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(monitor_is_collecting((monitor_object *)object));
}

static PyObject *monitor_open_step(PyObject *object, void *Py_UNUSED(closure))
{
    const monitor_object *self = (monitor_object *)object;
    return is_open(self) ? PyLong_FromUnsignedLongLong(tp_monitor_step_number(self->monitor))
                         : NULL;
}

static PyObject *monitor_step_number(PyObject *object, void *Py_UNUSED(closure))
{
    const monitor_object *self = (monitor_object *)object;
    return PyLong_FromUnsignedLongLong(self->monitor != NULL ? tp_monitor_step_number(self->monitor)
                                                             : self->final_step);
}

static PyObject *monitor_activations(PyObject *object, PyObject *Py_UNUSED(unused))
{
    monitor_object *self = (monitor_object *)object;
    return is_open(self) ? metrics_of_step(self) : NULL;
}

static PyObject *monitor_close(PyObject *object, PyObject *Py_UNUSED(unused))
{
    const tp_status status = close_monitor((monitor_object *)object);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (status < 0) {
        const uint64_t gaps = ((monitor_object *)object)->final_counters.gaps;
        PyErr_Format(PyExc_OSError,
                     "the monitor could not write everything (%llu step%s lost; a warning has said "
                     "why): %s",
                     (unsigned long long)gaps, gaps == 1 ? " is" : "s are", tp_status_name(status));
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *monitor_key(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "quantity", "role", "vpp_stage", "slot", "global_name", NULL};
    monitor_object *self = (monitor_object *)object;
    tp_key key = {.slot = -1};
    uint32_t id = 0;
    if (!is_open(self) ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "sI|Iiiz:key", names, &key.name, &key.quantity,
                                     &key.role, &key.vpp_stage, &key.slot, &key.global_name)) {
        return NULL;
    }
    const tp_status status = tp_monitor_key(self->monitor, &key, &id);
    if (status != TP_OK) {
        PyErr_Format(PyExc_ValueError, "not a key: %s", tp_status_name(status));
        return NULL;
    }
    return PyLong_FromUnsignedLong(id);
}

static PyObject *monitor_observe(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key", "tensor", "micro_step", NULL};
    monitor_object *self = (monitor_object *)object;
    site place = {.has_key = true};
    PyObject *tensor = NULL;
    unsigned int micro_step = 0;
    if (!is_open(self) ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "IO|I:observe", names, &place.key, &tensor,
                                     &micro_step) ||
        core_load_torch(self->state) != 0) {
        return NULL;
    }
    const tp_key *key = tp_registry_key(tp_monitor_registry(self->monitor), place.key);
    if (key == NULL) {
        PyErr_SetString(PyExc_KeyError, "no such key: take one from key()");
        return NULL;
    }
    tensor_view view;
    if (tensor_type_kind(self->state, Py_TYPE(tensor)) == TYPE_OTHER ||
        !tensor_view_open(self->state, tensor, &view)) {
        PyErr_SetString(PyExc_TypeError, "observe takes a floating-point tensor");
        return NULL;
    }
    if (!self->collecting) {
        tensor_view_close(&view);
        Py_RETURN_NONE;
    }
    const uint64_t begin = monitor_now(self);
    reading values;
    const int result = reading_take(self, &view, false, key->quantity, "observe", &values);
    const bool ok = result == READ_OK ? reading_record(self, &values, &place, micro_step, 0)
                                      : result == READ_NOTHING;
    monitor_add_time(self, begin);
    tensor_view_close(&view);
    return ok ? Py_NewRef(Py_None) : NULL;
}

/* matches(target, name, beginning): does the pattern of the target with this number match? */
static PyObject *monitor_matches(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    const monitor_object *self = (monitor_object *)object;
    if (!is_open(self)) {
        return NULL;
    }
    const long target = count == 3 ? PyLong_AsLong(args[0]) : -1;
    const int beginning = count == 3 ? PyObject_IsTrue(args[2]) : -1;
    if (beginning < 0 || target < 0 || target >= (long)self->configured->target_count ||
        self->configured->targets[target].pattern == NULL || !PyUnicode_Check(args[1])) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "matches takes the number of a pattern and a name");
        }
        return NULL;
    }
    char *name = core_name(args[1]);
    if (name == NULL) {
        return NULL;
    }
    const bool yes = tp_pattern_matches(self->configured->targets[target].pattern, name, beginning);
    tp_free(name);
    return PyBool_FromLong(yes);
}

static PyObject *monitor_tell(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    monitor_object *self = (monitor_object *)object;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "tell takes on_change and on_first_step");
        return NULL;
    }
    Py_CLEAR(self->on_change);
    Py_CLEAR(self->on_first_step);
    self->on_change = args[0] == Py_None ? NULL : Py_NewRef(args[0]);
    self->on_first_step = args[1] == Py_None ? NULL : Py_NewRef(args[1]);
    Py_RETURN_NONE;
}

static PyObject *monitor_log_scalar(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    return scalars_log((monitor_object *)object, args, count);
}

static PyObject *monitor_module_hook(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    return is_open((monitor_object *)object)
               ? module_hook_new((monitor_object *)object, args, count)
               : NULL;
}

static PyObject *monitor_optimizer_hook(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    return is_open((monitor_object *)object)
               ? optimizer_hook_new((monitor_object *)object, args, count)
               : NULL;
}

static PyObject *monitor_mark_skipped(PyObject *object, PyObject *Py_UNUSED(unused))
{
    const monitor_object *self = (monitor_object *)object;
    if (monitor_is_active(self)) {
        tp_monitor_mark_skipped(self->monitor);
    }
    Py_RETURN_NONE;
}

static PyObject *monitor_directory(PyObject *object, void *Py_UNUSED(closure))
{
    const monitor_object *self = (monitor_object *)object;
    return is_open(self) ? PyUnicode_DecodeFSDefault(tp_monitor_directory(self->monitor)) : NULL;
}

static PyObject *monitor_config(PyObject *object, void *Py_UNUSED(closure))
{
    const monitor_object *self = (monitor_object *)object;
    return is_open(self) ? config_to_dict(self->configured) : NULL;
}

static PyObject *monitor_collector_handles(PyObject *object, void *Py_UNUSED(closure))
{
    return Py_NewRef(((monitor_object *)object)->collector_handles);
}

static PyObject *monitor_get_ops(PyObject *object, void *Py_UNUSED(closure))
{
    const monitor_object *self = (monitor_object *)object;
    return metrics_op_names(self->ops, self->op_count);
}

static int monitor_set_ops(PyObject *object, PyObject *names, void *Py_UNUSED(closure))
{
    return metrics_set_ops((monitor_object *)object, names) ? 0 : -1;
}

static PyObject *monitor_forwards(PyObject *object, void *Py_UNUSED(closure))
{
    const monitor_object *self = (monitor_object *)object;
    uint32_t open = 0;
    for (uint32_t i = 0; i < self->chunk_count; i++) {
        open = self->micro_steps[i] > open ? self->micro_steps[i] : open;
    }
    return Py_BuildValue("II", open, self->most_forwards);
}

static PyObject *monitor_get_reduced_only(PyObject *object, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((monitor_object *)object)->reduced_only);
}

static int monitor_set_reduced_only(PyObject *object, PyObject *value, void *Py_UNUSED(closure))
{
    const int yes = value == NULL ? 0 : PyObject_IsTrue(value);
    ((monitor_object *)object)->reduced_only = yes > 0;
    return yes < 0 ? -1 : 0;
}

static PyMethodDef monitor_methods[] = {
    {"configure", (PyCFunction)(void (*)(void))monitor_configure, METH_VARARGS | METH_KEYWORDS,
     "configure($self, config_json=None, config_path=None)\n--\n\nAnother configuration from the "
     "open step on. ConfigError when it is wrong: the one in force then stays."},
    {"pause", monitor_pause, METH_NOARGS,
     "pause($self, /)\n--\n\nCollects nothing from the next step on."},
    {"resume", monitor_resume, METH_NOARGS,
     "resume($self, /)\n--\n\nCollects from the open step on, as often as configured."},
    {"start_at", monitor_start_at_step, METH_O,
     "start_at($self, step, /)\n--\n\nNumbers the open step, in which nothing has been recorded."},
    {"go_on", monitor_go_on, METH_O,
     "go_on($self, run, /)\n--\n\nGoes on in the directory of an earlier start: the id of its "
     "run, or the directory of one of its ranks. In front of the first record."},
    {"activations", monitor_activations, METH_NOARGS,
     "activations($self, /)\n--\n\nThe activations and their gradients that the open step has so "
     "far: quantity, vpp stage, row, micro step, values by op."},
    {"mark_skipped", monitor_mark_skipped, METH_NOARGS,
     "mark_skipped($self, /)\n--\n\nThe open step ends without an update."},
    {"step", monitor_step, METH_NOARGS, "step($self, /)\n--\n\nEnds the step."},
    {"close", monitor_close, METH_NOARGS,
     "close($self, /)\n--\n\nWrites what is left and ends the monitor. OSError when not everything "
     "could be written. A second call does nothing."},
    {"counters", counters_get, METH_NOARGS,
     "counters($self, /)\n--\n\nWhat the monitor knows about itself, since it was opened; after "
     "close as it was at the end."},
    {"key", (PyCFunction)(void (*)(void))monitor_key, METH_VARARGS | METH_KEYWORDS,
     "key($self, name, quantity, role=0, vpp_stage=0, slot=-1, global_name=None)\n--\n\nThe id of "
     "a "
     "series."},
    {"observe", (PyCFunction)(void (*)(void))monitor_observe, METH_VARARGS | METH_KEYWORDS,
     "observe($self, key, tensor, micro_step=0)\n--\n\nRecords one tensor."},
    {"spend", collection_spend, METH_O,
     "spend($self, bytes, /)\n--\n\nWhether an incident's zoom may write so much of tensors."},
    {"matches", (PyCFunction)(void (*)(void))monitor_matches, METH_FASTCALL,
     "matches($self, target, name, beginning, /)\n--\n\nDoes the pattern of the target with this "
     "number match the name, or (beginning) what stands in front of one of its dots?"},
    {"tell", (PyCFunction)(void (*)(void))monitor_tell, METH_FASTCALL,
     "tell($self, on_change, on_first_step, /)\n--\n\nWhom to call when a step begins with "
     "another tree of modules or parameters, and when the first collected step has ended. None: "
     "nobody. on_change gives False to be asked again at the next forward."},
    {"log_scalar", (PyCFunction)(void (*)(void))monitor_log_scalar, METH_FASTCALL,
     "log_scalar($self, name, value, /)\n--\n\nRecords a number in the open step."},
    {"module_hook", (PyCFunction)(void (*)(void))monitor_module_hook, METH_FASTCALL,
     "module_hook($self, module, name, vpp_stage, root, recorded, target, /)\n--\n\nThe hooks of "
     "one module. root: its training forwards count the micro steps. target: number of the "
     "configuration's target that says which tensors are recorded, -1: all."},
    {"optimizer_hook", (PyCFunction)(void (*)(void))monitor_optimizer_hook, METH_FASTCALL,
     "optimizer_hook($self, parameters, main_grad, members, ends_step, /)\n--\n\nThe hooks of an "
     "optimizer. "
     "parameters: name, parameter and vpp stage. members: a set of parameters, of which an "
     "optimizer must have one to be heard; None: there is only one that calls."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef monitor_properties[] = {
    {"directory", monitor_directory, NULL, "The directory of this rank's run.", NULL},
    {"run", monitor_run, NULL, "The run's id, the rank and the attempt.", NULL},
    {"config", monitor_config, NULL, "The validated configuration.", NULL},
    {"collecting", monitor_get_collecting, NULL, "Whether the open step is collected.", NULL},
    {"step_number", monitor_step_number, NULL, "The open step's; once closed, the last one's.",
     NULL},
    {"open_step", monitor_open_step, NULL, "The number of the open step.", NULL},
    {"ops", monitor_get_ops, monitor_set_ops, "The ops that metrics show.", NULL},
    {"forwards", monitor_forwards, NULL,
     "Training forwards in the open step, and in the ended step that had most.", NULL},
    {"reduced_only", monitor_get_reduced_only, monitor_set_reduced_only,
     "Whether unreduced gradients are left out, as grad may be a sum over processes.", NULL},
    {"on_zoom", collection_get_on_zoom, collection_set_on_zoom,
     "Called when more than is configured is collected from now on, and in each step of it.", NULL},
    {"collector_handles", monitor_collector_handles, NULL,
     "A list for handles of hooks; the last step that is collected removes them.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot monitor_slots[] = {
    {Py_tp_new, monitor_new},
    {Py_tp_dealloc, monitor_dealloc},
    {Py_tp_methods, monitor_methods},
    {Py_tp_getset, monitor_properties},
    {Py_tp_doc, "Monitor(config_json=None, config_path=None, rank=0, output_dir=None, run_id=None, "
                "watch=False, pp_stage=-1, resume=None)\n--\n\nOne rank's monitor. ConfigError "
                "when the configuration is "
                "wrong."},
    {0, NULL},
};

PyType_Spec core_monitor_spec = {
    .name = "tensorprobe._core.Monitor",
    .basicsize = sizeof(monitor_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = monitor_slots,
};
