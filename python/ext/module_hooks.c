#include "module_hooks.h"

#include <string.h>

#include "base/mem.h"
#include "collection.h"
#include "compiled_hooks.h"
#include "frames.h"
#include "gradient_hooks.h"
#include "input_edges.h"
#include "quick_hooks.h"
#include "recording.h"
#include "structure.h"
#include "torch_calls.h"

static bool is_linear(const core_state *state, PyObject *module)
{
    PyObject *forward = PyObject_GetAttrString((PyObject *)Py_TYPE(module), "forward");
    const bool yes = forward == state->linear_forward;
    Py_XDECREF(forward);
    core_clear_error();
    return yes;
}

PyObject *module_hook_new(monitor_object *monitor, PyObject *const *args, Py_ssize_t count)
{
    if (count != 6) {
        PyErr_SetString(PyExc_TypeError,
                        "module_hook takes module, name, vpp_stage, root, recorded and target");
        return NULL;
    }
    if (core_load_torch(monitor->state) != 0) {
        return NULL;
    }
    const long vpp_stage = PyLong_AsLong(args[2]);
    const int root = PyObject_IsTrue(args[3]);
    const int recorded = PyObject_IsTrue(args[4]);
    const long target = PyLong_AsLong(args[5]);
    if (PyErr_Occurred() || root < 0 || recorded < 0 || !monitor_add_chunk(monitor, vpp_stage)) {
        return NULL;
    }
    if (target >= (long)monitor->configured->target_count) {
        PyErr_SetString(PyExc_ValueError, "there is no target with this number");
        return NULL;
    }
    module_hook *hook = PyObject_New(module_hook, monitor->state->module_hook_type);
    if (hook == NULL) {
        return NULL;
    }
    memset((char *)hook + sizeof(PyObject), 0, sizeof(*hook) - sizeof(PyObject));
    Py_INCREF((PyObject *)monitor);
    hook->monitor = monitor;
    hook->vpp_stage = (int32_t)vpp_stage;
    hook->root = root;
    hook->recorded = recorded;
    hook->linear = is_linear(monitor->state, args[0]);
    if (torch_is_in_dict(Py_TYPE(args[0]), monitor->state->name_training)) {
        hook->plain_type = (PyTypeObject *)(void *)Py_NewRef((PyObject *)Py_TYPE(args[0]));
    }
    hook->filter = side_filter_of(monitor->configured,
                                  target < 0 ? NULL : &monitor->configured->targets[target]);
    monitor->follows_inputs |= hook->recorded && side_is_wanted(&hook->filter, SIDE_INPUT_GRAD);
    hook->name = core_name(args[1]);
    hook->module = PyWeakref_NewRef(args[0], NULL);
    hook->named = hook->name != NULL && collection_is_named(monitor, hook->name);
    hook->quick = quick_is_possible(hook) && !hook->named;
    if (PyErr_Occurred() || (root && !structure_note(hook, args[0]))) {
        Py_DECREF((PyObject *)hook);
        return NULL;
    }
    return (PyObject *)hook;
}

PyObject *core_inert_hook(PyObject *module, PyObject *Py_UNUSED(unused))
{
    const core_state *state = PyModule_GetState(module);
    module_hook *hook = PyObject_New(module_hook, state->module_hook_type);
    if (hook != NULL) {
        memset((char *)hook + sizeof(PyObject), 0, sizeof(*hook) - sizeof(PyObject));
    }
    return (PyObject *)hook;
}

static void free_sites(site_list lists[2])
{
    tp_free(lists[0].sites);
    tp_free(lists[1].sites);
}

static void hook_dealloc(PyObject *self)
{
    module_hook *hook = (module_hook *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF((PyObject *)hook->monitor);
    Py_XDECREF(hook->module);
    Py_XDECREF((PyObject *)hook->plain_type);
    tp_free(hook->name);
    free_sites(hook->activations);
    free_sites(hook->gradients);
    for (uint32_t i = 0; i < hook->keyword_count; i++) {
        Py_DECREF(hook->keywords[i].keyword);
        tp_free(hook->keywords[i].argument);
    }
    tp_free(hook->keywords);
    tp_free(hook->owed.calls);
    tp_free(hook->seen.modules);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

bool module_hook_keyword_slot(module_hook *hook, PyObject *keyword, int32_t which, int32_t *slot)
{
    for (uint32_t i = 0; i < hook->keyword_count; i++) {
        const keyword_input *known = &hook->keywords[i];
        if (known->slot == which && known->keyword == keyword) {
            *slot = KEYWORD_SLOTS + (int32_t)i;
            return true;
        }
    }
    char *argument = core_name(keyword);
    if (argument == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < hook->keyword_count; i++) {
        if (hook->keywords[i].slot == which && strcmp(hook->keywords[i].argument, argument) == 0) {
            tp_free(argument);
            *slot = KEYWORD_SLOTS + (int32_t)i;
            return true;
        }
    }
    const size_t count = (size_t)hook->keyword_count + 1;
    keyword_input *keywords = tp_realloc(hook->keywords, count * sizeof(*keywords));
    if (keywords == NULL) {
        tp_free(argument);
        PyErr_NoMemory();
        return false;
    }
    hook->keywords = keywords;
    keywords[hook->keyword_count] =
        (keyword_input){.keyword = Py_NewRef(keyword), .argument = argument, .slot = which};
    *slot = KEYWORD_SLOTS + (int32_t)hook->keyword_count++;
    return true;
}

bool module_hook_slot(module_hook *hook, const tensor_list *tensors, uint32_t i, int32_t *slot)
{
    PyObject *const keyword = tensors->items[i].keyword;
    if (keyword == NULL) {
        *slot = tensors->count == 1 ? -1 : (int32_t)i;
        return true;
    }
    /* The tensors of one argument follow one another. */
    uint32_t first = i;
    uint32_t behind = i + 1;
    while (first > 0 && tensors->items[first - 1].keyword == keyword) {
        first--;
    }
    while (behind < tensors->count && tensors->items[behind].keyword == keyword) {
        behind++;
    }
    const int32_t which = behind - first == 1 ? -1 : (int32_t)(i - first);
    return module_hook_keyword_slot(hook, keyword, which, slot);
}

site *module_hook_site(module_hook *hook, uint32_t quantity, uint32_t role, int32_t slot)
{
    if (slot >= KEYWORD_SLOTS) {
        keyword_input *input = &hook->keywords[slot - KEYWORD_SLOTS];
        site *own = quantity == TP_ACTIVATION ? &input->activation : &input->gradient;
        const tp_key own_key = {.name = hook->name,
                                .vpp_stage = hook->vpp_stage,
                                .slot = input->slot,
                                .quantity = quantity,
                                .role = role,
                                .argument = input->argument};
        return site_define(hook->monitor, own, &own_key) ? own : NULL;
    }
    site_list *list = quantity == TP_ACTIVATION ? &hook->activations[role - TP_ROLE_INPUT]
                                                : &hook->gradients[role - TP_ROLE_INPUT];
    const uint32_t number = (uint32_t)(slot + 1);
    if (number >= list->count) {
        const uint32_t count = number + 1;
        site *sites = tp_realloc(list->sites, count * sizeof(*sites));
        if (sites == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        memset(sites + list->count, 0, (count - list->count) * sizeof(*sites));
        list->sites = sites;
        list->count = count;
    }
    const tp_key key = {.name = hook->name,
                        .vpp_stage = hook->vpp_stage,
                        .slot = slot,
                        .quantity = quantity,
                        .role = role};
    site *place = &list->sites[number];
    return site_define(hook->monitor, place, &key) ? place : NULL;
}

/* Is this the module, or a copy of it that took the hooks along? First comes what is cheap: most
 * steps may not be collected. */
static bool is_own_module(const module_hook *hook, PyObject *module)
{
    return hook->monitor != NULL && monitor_is_collecting(hook->monitor) &&
           (!hook->monitor->exporting || hook->root) && PyWeakref_GetObject(hook->module) == module;
}

static bool record_number(module_hook *hook, const frame *running, PyObject *number, uint32_t role)
{
    reading values;
    const char *name = role == TP_ROLE_INPUT ? hook->filter.specs[SIDE_INPUT].keyword : NULL;
    PyObject *keyword = name == NULL ? NULL : PyUnicode_FromString(name);
    int32_t slot = -1;
    const bool known =
        name == NULL || (keyword != NULL && module_hook_keyword_slot(hook, keyword, -1, &slot));
    Py_XDECREF(keyword);
    site *place = known ? module_hook_site(hook, TP_ACTIVATION, role, slot) : NULL;
    return place != NULL && reading_of_number(hook->monitor, number, &values) &&
           reading_record(hook->monitor, &values, place, running->micro_step, running->call);
}

/* Records the tensors of one side, or the number that its spec selects. sources: as
 * side_collect takes them. */
static bool record_side(module_hook *hook, const frame *running, enum side side,
                        PyObject *const *sources, const tensor_list *tensors)
{
    const uint32_t role = side == SIDE_INPUT ? TP_ROLE_INPUT : TP_ROLE_OUTPUT;
    const enum side back = side == SIDE_INPUT ? SIDE_INPUT_GRAD : SIDE_OUTPUT_GRAD;
    /* Where there are gradients modules share the hooks of what they remember. */
    const bool shared = running->gradients && side_is_wanted(&hook->filter, back);
    PyObject *number = tensors->count == 0 ? side_number(hook, side, sources) : NULL;
    if (number != NULL) {
        const bool ok = record_number(hook, running, number, role);
        Py_DECREF(number);
        return ok;
    }
    for (uint32_t i = 0; i < tensors->count; i++) {
        reading values;
        const tensor_view *view = &tensors->items[i];
        const bool remember = shared || view->bytes > READ_AGAIN_BYTES;
        const int result =
            reading_take(hook->monitor, view, remember, TP_ACTIVATION, hook->name, &values);
        if (result == READ_FAILED) {
            return false;
        }
        if (result == READ_NOTHING) {
            continue;
        }
        int32_t slot;
        site *place = module_hook_slot(hook, tensors, i, &slot)
                          ? module_hook_site(hook, TP_ACTIVATION, role, slot)
                          : NULL;
        if (place == NULL ||
            !reading_record(hook->monitor, &values, place, running->micro_step, running->call)) {
            return false;
        }
    }
    return true;
}

bool module_hook_begin_root(module_hook *hook, PyObject *module, enum forward_kind kind,
                            int64_t task)
{
    monitor_object *monitor = hook->monitor;
    const uint32_t before = monitor->micro_steps[hook->vpp_stage];
    if (task == -1 && !monitor_is_running(monitor, hook)) {
        monitor_forget_forward(monitor);
        if (kind == FORWARD_WHOLE || kind == FORWARD_VALUES) {
            monitor->forward++;
            monitor->micro_steps[hook->vpp_stage]++;
        }
    }
    const bool begins = before == 0 && monitor->micro_steps[hook->vpp_stage] == 1;
    const bool asks = begins || hook->unsettled;
    return !asks || kind == FORWARD_FAILED || structure_check(hook, module);
}

uint32_t *module_hook_calls(module_hook *hook, uint64_t forward)
{
    forward_calls *oldest = &hook->calls[0];
    for (int i = 0; i < FORWARDS; i++) {
        if (hook->calls[i].forward == forward) {
            return &hook->calls[i].count;
        }
        oldest = hook->calls[i].forward < oldest->forward ? &hook->calls[i] : oldest;
    }
    *oldest = (forward_calls){.forward = forward};
    return &oldest->count;
}

void module_hook_number_call(module_hook *hook, frame *running)
{
    hook->fired = true;
    running->call = (*module_hook_calls(hook, running->forward))++;
}

/* The list of another side of the same values; without a spec it is the one that is there. */
static bool change_side(module_hook *hook, enum side side, PyObject *const *values,
                        tensor_list *list)
{
    if (!hook->filter.by_spec) {
        return true;
    }
    tensor_list_free(list);
    return side_collect(hook, side, values, list);
}

/* Records the inputs and notes their gradient edges. args: the arguments, then the keyword ones. */
static bool take_inputs(module_hook *hook, frame *running, PyObject *const *args)
{
    tensor_list inputs;
    bool ok = side_collect(hook, running->values ? SIDE_INPUT : SIDE_INPUT_GRAD, args, &inputs);
    if (ok && running->values) {
        ok = record_side(hook, running, SIDE_INPUT, args, &inputs) &&
             (!running->gradients || change_side(hook, SIDE_INPUT_GRAD, args, &inputs));
    }
    if (ok && running->gradients && monitor_is_active(hook->monitor)) {
        ok = input_edges_capture(hook, running, &inputs);
    }
    tensor_list_free(&inputs);
    return ok;
}

/* args: the arguments, then the keyword ones. Who names inputs hears of it when there are none. */
static bool may_have_inputs(const module_hook *hook, PyObject *const *args)
{
    return PyTuple_Size(args[0]) > 0 || PyDict_Size(args[1]) > 0 || hook->filter.by_spec;
}

/* Counts the call, or finds the one that is run again, and takes the inputs. */
static bool begin_recorded(module_hook *hook, frame *running, enum forward_kind kind,
                           const owed_call *paid, PyObject *const *args)
{
    const tp_config *config = hook->named ? hook->monitor->configured : hook->monitor->config;
    if (kind == FORWARD_GRADIENTS) {
        running->micro_step = paid->micro_step;
        running->call = paid->call;
    } else {
        module_hook_number_call(hook, running);
    }
    if (kind == FORWARD_VALUES && !config->forward_only &&
        !forward_owes(hook, running->micro_step, running->call)) {
        return false;
    }
    running->values = kind != FORWARD_GRADIENTS && !config->backward_only;
    running->gradients = kind != FORWARD_VALUES && !config->forward_only;
    const bool takes = running->gradients || (running->values && may_have_inputs(hook, args));
    if (takes && !take_inputs(hook, running, args)) {
        running->values = running->gradients = false;
        return false;
    }
    return true;
}

static bool enter(module_hook *hook, PyObject *const *args)
{
    monitor_object *monitor = hook->monitor;
    owed_call paid;
    int64_t task = -1;
    enum forward_kind kind = forward_kind_of(hook, args[0], &paid, &task);
    if (hook->root && compiled_is_exporting(monitor)) {
        kind = FORWARD_IGNORED;
    }
    bool ok = kind != FORWARD_FAILED;
    if (hook->root) {
        ok = module_hook_begin_root(hook, args[0], kind, task) && ok;
    }
    frame *running = monitor_new_frame(monitor, hook, hook->vpp_stage,
                                       hook->root ? NULL : monitor_newest_frame(monitor));
    if (running == NULL) {
        return false;
    }
    running->graph_task = task;
    running->training = kind == FORWARD_WHOLE || kind == FORWARD_VALUES;
    if (hook->recorded && ok && kind != FORWARD_IGNORED) {
        ok = begin_recorded(hook, running, kind, &paid, args + 1);
    }
    /* Pushed whatever happened: the forward hook takes the newest frame of its module. */
    return monitor_push_frame(monitor, running) && ok;
}

/* values: the arguments, the keyword arguments, and what the module returned. */
static bool leave(module_hook *hook, frame *running, PyObject *const *values)
{
    monitor_object *monitor = hook->monitor;
    PyObject *const output = values[2];
    tensor_list outputs;
    bool ok =
        side_collect(hook, running->values ? SIDE_OUTPUT : SIDE_OUTPUT_GRAD, &output, &outputs);
    if (ok && running->values) {
        ok = record_side(hook, running, SIDE_OUTPUT, &output, &outputs) &&
             (!running->gradients || change_side(hook, SIDE_OUTPUT_GRAD, &output, &outputs));
    }
    const bool gradients = ok && running->gradients && monitor_is_active(monitor);
    for (uint32_t i = 0; ok && gradients && i < outputs.count; i++) {
        int32_t slot;
        ok = module_hook_slot(hook, &outputs, i, &slot) &&
             gradient_hook_tensor(hook, outputs.items[i].tensor, TP_ROLE_OUTPUT, slot, running);
    }
    if (ok && gradients && !input_edges_wanted(running)) {
        ok = input_edges_pass(running);
    } else if (ok && gradients) {
        /* The way back to an input may start at any output, whichever of them are recorded. */
        ok = change_side(hook, SIDE_ALL, &output, &outputs) &&
             input_edges_follow(running, &outputs, values);
    }
    tensor_list_free(&outputs);
    return ok;
}

/* forward_pre(module, args, kwargs) */
static PyObject *hook_forward_pre(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    module_hook *hook = (module_hook *)self;
    if (count != 3 || !is_own_module(hook, args[0])) {
        Py_RETURN_NONE;
    }
    monitor_object *monitor = hook->monitor;
    const int done = quick_before(hook, args);
    if (done != 0) {
        return done > 0 ? Py_NewRef(Py_None) : monitor_trouble(monitor, hook->name);
    }
    const bool quick = !hook->root && monitor->config->forward_only;
    const stopwatch watch =
        stopwatch_start(monitor, quick, STOPWATCH_BEFORE, may_have_inputs(hook, args + 1));
    PyObject *hidden = core_hide_from_functions(monitor->state);
    const bool ok = enter(hook, args);
    core_show(hidden);
    PyObject *result = ok ? Py_NewRef(Py_None) : monitor_trouble(monitor, hook->name);
    stopwatch_stop(monitor, &watch);
    return result;
}

/* forward(module, args, kwargs, output) */
static PyObject *hook_forward(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    module_hook *hook = (module_hook *)self;
    monitor_object *monitor = hook->monitor;
    if (count != 4 || monitor == NULL || !monitor_is_collecting(monitor)) {
        Py_RETURN_NONE;
    }
    const frame *newest = monitor_newest_frame(monitor);
    const bool is_known = newest != NULL && newest->hook == hook && newest->module == args[0];
    if (!is_known && !is_own_module(hook, args[0])) {
        Py_RETURN_NONE;
    }
    frame *running = monitor_pop_frame(monitor, hook);
    if (running == NULL) {
        Py_RETURN_NONE; /* the hooks were registered while it ran */
    }
    const int done = quick_after(hook, running, args[3]);
    if (done != 0) {
        monitor_free_frame(monitor, running);
        return done > 0 ? Py_NewRef(Py_None) : monitor_trouble(monitor, hook->name);
    }
    const bool recorded = running->values || running->gradients;
    const bool quick = !hook->root && !running->gradients;
    const stopwatch watch = stopwatch_start(monitor, quick, STOPWATCH_AFTER, recorded);
    monitor->exporting = monitor->exporting && !hook->root;
    bool ok = true;
    if (recorded) {
        PyObject *hidden = core_hide_from_functions(monitor->state);
        ok = leave(hook, running, args + 1);
        core_show(hidden);
    }
    PyObject *result = ok ? Py_NewRef(Py_None) : monitor_trouble(monitor, hook->name);
    monitor_free_frame(monitor, running);
    stopwatch_stop(monitor, &watch);
    return result;
}

/* A pickled or saved model takes its hooks along; they must load, and then do nothing. */
static PyObject *hook_reduce(PyObject *self, PyObject *Py_UNUSED(unused))
{
    (void)self;
    PyObject *module = PyImport_ImportModule("tensorprobe._core");
    PyObject *maker = module == NULL ? NULL : PyObject_GetAttrString(module, "inert_hook");
    Py_XDECREF(module);
    if (maker == NULL) {
        return NULL;
    }
    return Py_BuildValue("N()", maker);
}

static PyObject *hook_fired(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((module_hook *)self)->fired);
}

static PyMethodDef hook_methods[] = {
    {"forward_pre", (PyCFunction)(void (*)(void))hook_forward_pre, METH_FASTCALL,
     "forward_pre($self, module, args, kwargs, /)\n--\n\nA forward pre-hook with kwargs."},
    {"forward", (PyCFunction)(void (*)(void))hook_forward, METH_FASTCALL,
     "forward($self, module, args, kwargs, output, /)\n--\n\nA forward hook with kwargs."},
    {"compiled_forward", (PyCFunction)(void (*)(void))compiled_forward, METH_FASTCALL,
     "compiled_forward($self, tensors, side, keywords, /)\n--\n\nIn a compiled graph: a training "
     "forward "
     "begins (side 0: its inputs) or has ended (1: its outputs). Its step, micro step and call."},
    {"compiled_backward", (PyCFunction)(void (*)(void))compiled_backward, METH_FASTCALL,
     "compiled_backward($self, tensor, side, slot, keyword, step, micro_step, call, /)\n--\n\nIn a "
     "compiled "
     "graph: the gradient of a tensor of that forward."},
    {"__reduce__", hook_reduce, METH_NOARGS, "A pickled hook is an inert one."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef hook_properties[] = {
    {"compiled_sides", compiled_sides, NULL,
     "What a compiled graph records of input, output and their gradients: None: nothing; (): every "
     "tensor; (0, 0): the only one; (n, i): element i of n. Then whether integers are wanted.",
     NULL},
    {"fired", hook_fired, NULL, "Whether a training forward of the module has been seen.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot hook_slots[] = {
    {Py_tp_dealloc, hook_dealloc},
    {Py_tp_methods, hook_methods},
    {Py_tp_getset, hook_properties},
    {Py_tp_doc, "Records what goes into and out of one module."},
    {0, NULL},
};

PyType_Spec core_module_hook_spec = {
    .name = "tensorprobe._core.ModuleHook",
    .basicsize = sizeof(module_hook),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = hook_slots,
};
