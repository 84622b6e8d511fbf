#include "gradient_hooks.h"

#include <string.h>

#include "base/mem.h"
#include "input_edges.h"
#include "recording.h"
#include "torch_calls.h"

/* One row that a gradient goes to. */
typedef struct target {
    module_hook *hook; /* owned */
    uint32_t role;
    int32_t slot;
    uint32_t micro_step;
    uint32_t call;
} target;

static bool record_target(const target *row, const reading *values)
{
    site *place = module_hook_site(row->hook, TP_ACTIVATION_GRAD, row->role, row->slot);
    return place != NULL &&
           reading_record(row->hook->monitor, values, place, row->micro_step, row->call);
}

static target make_target(const input_row *row, uint32_t role)
{
    Py_INCREF((PyObject *)row->hook);
    return (target){row->hook, role, row->slot, row->micro_step, row->call};
}

/* Registers function (of self) with node.name; the handle, or NULL with an error set. */
static PyObject *attach(PyObject *node, PyObject *name, PyMethodDef *function, PyObject *self)
{
    PyObject *callable = PyCFunction_NewEx(function, self, NULL);
    PyObject *handle =
        callable == NULL ? NULL : PyObject_CallMethodObjArgs(node, name, callable, NULL);
    Py_XDECREF(callable);
    return handle;
}

/* ---- The whole gradient of a tensor, as it arrives at its node ---- */

/* A container often returns the tensor that its child returned: one hook, a target for each. */
typedef struct output_grad {
    PyObject ob_base; /* as PyObject_HEAD */
    uint32_t output_nr;
    uint32_t count, capacity;
    target *targets;

    /* When the tensor is a view of what only its module knew: the base, and the tensor's shape. */
    uint32_t base_output_nr;
    uint32_t ndim;
    int64_t shape[SITE_DIMS];
    bool fired; /* in the backward that is running, as far as the base hasn't */

    bool leaf;          /* its node outlives the graph: later backwards come here, too */
    bool by_forward;    /* rows of the forwards only that the backward is known to be of */
    int64_t graph_task; /* a leaf's: the first backward that came, -1: none has */
} output_grad;

static void output_grad_dealloc(PyObject *self)
{
    output_grad *grad = (output_grad *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (uint32_t i = 0; i < grad->count; i++) {
        Py_DECREF((PyObject *)grad->targets[i].hook);
    }
    tp_free(grad->targets);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

static bool add_target(output_grad *grad, const input_row *row, uint32_t role)
{
    if (grad->count == grad->capacity) {
        const uint32_t capacity = grad->capacity + 2;
        target *targets = tp_realloc(grad->targets, capacity * sizeof(*targets));
        if (targets == NULL) {
            PyErr_NoMemory();
            return false;
        }
        grad->targets = targets;
        grad->capacity = capacity;
    }
    grad->targets[grad->count++] = make_target(row, role);
    return true;
}

static backward_forward forward_of(const target *row)
{
    return (backward_forward){row->hook->vpp_stage, row->micro_step};
}

static bool is_noted(const monitor_object *monitor, backward_forward one)
{
    for (uint32_t i = monitor->backward_forward_count; i-- > 0;) {
        if (monitor->backward_forwards[i].vpp_stage == one.vpp_stage &&
            monitor->backward_forwards[i].micro_step == one.micro_step) {
            return true;
        }
    }
    return false;
}

/* The outermost module is the first whose output's gradient is known: its row comes first. */
static bool record_targets(const output_grad *grad, PyObject *tensor, bool of_base)
{
    module_hook *first = grad->targets[0].hook;
    tensor_view view;
    if (tensor == Py_None || !tensor_view_open(first->monitor->state, tensor, &view)) {
        return true;
    }
    reading values;
    const int result = reading_take(first->monitor, &view, view.bytes > READ_AGAIN_BYTES,
                                    TP_ACTIVATION_GRAD, first->name, &values);
    bool ok = result != READ_FAILED;
    if (of_base) {
        values.ndim = grad->ndim;
        values.shape = grad->shape;
    }
    for (uint32_t i = grad->count; ok && result == READ_OK && i-- > 0;) {
        ok = (grad->by_forward && !is_noted(first->monitor, forward_of(&grad->targets[i]))) ||
             record_target(&grad->targets[i], &values);
    }
    tensor_view_close(&view);
    return ok;
}

/* ---- A leaf: which forwards is this backward of? ---- */

/* Every backward of the step reaches a leaf, while the nodes of a forward are reached by its own.
 * What was hooked on such nodes tells which forwards the backward that runs belongs to. */

/* The backward that runs has come to a node of this row's forward. False: an error is set. */
static bool note_forward(monitor_object *monitor, const target *row)
{
    const int64_t task = torch_graph_task(monitor->state);
    if (PyErr_Occurred()) {
        return false;
    }
    if (task != monitor->backward_task) {
        monitor->backward_task = task;
        monitor->backward_forward_count = 0;
    }
    const backward_forward one = forward_of(row);
    if (is_noted(monitor, one)) {
        return true;
    }
    if (monitor->backward_forward_count == monitor->backward_forward_capacity) {
        const uint32_t capacity = monitor->backward_forward_capacity * 2 + 4;
        backward_forward *more = tp_realloc(monitor->backward_forwards, capacity * sizeof(*more));
        if (more == NULL) {
            PyErr_NoMemory();
            return false;
        }
        monitor->backward_forwards = more;
        monitor->backward_forward_capacity = capacity;
    }
    monitor->backward_forwards[monitor->backward_forward_count++] = one;
    return true;
}

/* Where nothing tells which forwards the backward is of, the first one that comes is taken for the
 * leaf's own. False: it has nothing for this leaf's rows, or an error is set. */
static bool is_own_backward(output_grad *grad, const monitor_object *monitor)
{
    const int64_t task = torch_graph_task(monitor->state);
    if (PyErr_Occurred()) {
        return false;
    }
    grad->by_forward = task == monitor->backward_task && monitor->backward_forward_count > 0;
    if (!grad->by_forward) {
        if (grad->graph_task < 0) {
            grad->graph_task = task;
        }
        return grad->graph_task == task;
    }
    for (uint32_t i = 0; i < grad->count; i++) {
        if (is_noted(monitor, forward_of(&grad->targets[i]))) {
            return true;
        }
    }
    return false;
}

static bool take_output_grad(output_grad *grad, monitor_object *monitor, PyObject *tensor)
{
    if (grad->leaf && !is_own_backward(grad, monitor)) {
        return !PyErr_Occurred();
    }
    if (!grad->leaf && PyList_Size(monitor->leaf_handles) > 0 &&
        !note_forward(monitor, &grad->targets[0])) {
        return false;
    }
    return record_targets(grad, tensor, false);
}

/* prehook(grad_outputs) of a node, or hook(grad) of a leaf */
static PyObject *output_grad_fire(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    output_grad *grad = (output_grad *)self;
    monitor_object *monitor = grad->targets[0].hook->monitor;
    if (count != 1 || !monitor_is_collecting(monitor)) {
        Py_RETURN_NONE;
    }
    const uint64_t begin = monitor_now(monitor);
    PyObject *tensor =
        PyTuple_Check(args[0]) ? PyTuple_GetItem(args[0], (Py_ssize_t)grad->output_nr) : args[0];
    grad->fired = true;
    PyObject *hidden = core_hide_from_functions(monitor->state);
    const bool ok = tensor != NULL && take_output_grad(grad, monitor, tensor);
    core_show(hidden);
    PyObject *result =
        ok ? Py_NewRef(Py_None) : monitor_trouble(monitor, grad->targets[0].hook->name);
    monitor_add_time(monitor, begin);
    return result;
}

static PyMethodDef output_grad_def = {"output_grad", (PyCFunction)(void (*)(void))output_grad_fire,
                                      METH_FASTCALL, NULL};

/* prehook(grad_outputs) of the node that made the base. A view that is changed in place gets a new
 * node, and the gradient of what it was arrives here alone. */
static PyObject *base_grad_fire(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    output_grad *grad = (output_grad *)self;
    monitor_object *monitor = grad->targets[0].hook->monitor;
    const bool fired = grad->fired;
    grad->fired = false;
    if (fired || count != 1 || !monitor_is_collecting(monitor)) {
        Py_RETURN_NONE;
    }
    const uint64_t begin = monitor_now(monitor);
    PyObject *tensor = PyTuple_GetItem(args[0], (Py_ssize_t)grad->base_output_nr);
    PyObject *hidden = core_hide_from_functions(monitor->state);
    const bool ok = tensor != NULL && record_targets(grad, tensor, true);
    core_show(hidden);
    PyObject *result =
        ok ? Py_NewRef(Py_None) : monitor_trouble(monitor, grad->targets[0].hook->name);
    monitor_add_time(monitor, begin);
    return result;
}

static PyMethodDef base_grad_def = {"base_grad", (PyCFunction)(void (*)(void))base_grad_fire,
                                    METH_FASTCALL, NULL};

/* The output of a linear layer of three dimensions is a view of a matrix that nobody else has. */
static bool attach_to_base(core_state *state, PyObject *node, PyObject *tensor, output_grad *grad)
{
    PyObject *next = PyObject_GetAttr(node, state->name_next_functions);
    PyObject *pair = next == NULL ? NULL : PyTuple_GetItem(next, 0);
    PyObject *base = pair == NULL ? NULL : PyTuple_GetItem(pair, 0);
    tensor_view view;
    bool ok = base != NULL;
    if (ok && base != Py_None && tensor_view_open(state, tensor, &view)) {
        if (view.data.ndim <= SITE_DIMS) {
            grad->ndim = view.data.ndim;
            memcpy(grad->shape, view.data.shape, grad->ndim * sizeof(*grad->shape));
            grad->base_output_nr = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GetItem(pair, 1));
            PyObject *handle =
                attach(base, state->name_register_prehook, &base_grad_def, (PyObject *)grad);
            ok = handle != NULL;
            Py_XDECREF(handle);
        }
        tensor_view_close(&view);
    }
    Py_XDECREF(next);
    return ok;
}

static memo_entry *remembered(monitor_object *monitor, PyObject *tensor)
{
    const int64_t version = reading_version(monitor->state, tensor);
    return version < 0 ? NULL : memo_find(&monitor->memo, tensor, version);
}

/* A hook on the tensor's node costs half of one on the tensor, and dies with the graph. A leaf has
 * only hooks of its own, which have to be taken back at the end of the step. */
static bool attach_to_tensor(monitor_object *monitor, PyObject *tensor, output_grad *grad)
{
    core_state *state = monitor->state;
    PyObject *node = made_by(state, tensor, &grad->output_nr);
    if (node == NULL) {
        return false;
    }
    const bool leaf = node == Py_None;
    grad->leaf = leaf;
    PyObject *handle =
        leaf ? attach(tensor, state->name_register_hook, &output_grad_def, (PyObject *)grad)
             : attach(node, state->name_register_prehook, &output_grad_def, (PyObject *)grad);
    const bool is_view = Py_TYPE(node) == state->view_type && grad->targets[0].hook->linear;
    const bool ok = handle != NULL &&
                    (!leaf || PyList_Append(monitor->leaf_handles, handle) == 0) &&
                    (!is_view || attach_to_base(state, node, tensor, grad));
    Py_XDECREF(handle);
    Py_DECREF(node);
    return ok;
}

/* With its first target. NULL: an error is set. */
static output_grad *new_output_grad(const input_row *row, uint32_t role)
{
    output_grad *grad = PyObject_New(output_grad, row->hook->monitor->state->output_grad_type);
    if (grad == NULL) {
        return NULL;
    }
    memset((char *)grad + sizeof(PyObject), 0, sizeof(*grad) - sizeof(PyObject));
    grad->graph_task = -1;
    if (!add_target(grad, row, role)) {
        Py_DECREF((PyObject *)grad);
        return NULL;
    }
    return grad;
}

bool gradient_hook_tensor(module_hook *hook, PyObject *tensor, uint32_t role, int32_t slot,
                          const frame *running)
{
    monitor_object *monitor = hook->monitor;
    const input_row row = {hook, slot, running->micro_step, running->call};
    const int required = requires_grad(monitor->state, tensor);
    if (required <= 0) {
        return required == 0;
    }
    memo_entry *entry = remembered(monitor, tensor);
    if (entry != NULL && entry->hook != NULL) {
        return add_target((output_grad *)(void *)entry->hook, &row, role);
    }
    output_grad *grad = new_output_grad(&row, role);
    const bool ok = grad != NULL && attach_to_tensor(monitor, tensor, grad);
    /* Registering ran Python code: look the entry up anew. */
    entry = ok ? remembered(monitor, tensor) : NULL;
    if (entry != NULL && entry->hook == NULL) {
        entry->hook = Py_NewRef((PyObject *)grad);
    }
    Py_XDECREF((PyObject *)grad);
    return ok;
}

bool gradient_hook_node(const input_row *row, PyObject *node, uint32_t output_nr)
{
    output_grad *grad = new_output_grad(row, TP_ROLE_INPUT);
    if (grad == NULL) {
        return false;
    }
    grad->output_nr = output_nr;
    PyObject *name = row->hook->monitor->state->name_register_prehook;
    PyObject *handle = attach(node, name, &output_grad_def, (PyObject *)grad);
    Py_DECREF((PyObject *)grad);
    Py_XDECREF(handle);
    return handle != NULL;
}

/* ---- The gradient of an input that flows through one module ---- */

/* One for each consuming node; the first is the leader and collects what the others get. */
struct input_grad {
    PyObject ob_base;   /* as PyObject_HEAD */
    input_grad *leader; /* owned; NULL: this is it */
    uint32_t *positions;
    uint32_t position_count;
    PyObject *geometry; /* owned: which part of what arrives is the input; NULL: all of it */

    /* the leader's */
    target row;
    uint32_t expected;
    uint32_t arrived;
    int64_t graph_task; /* the backward in which they have */
    PyObject *sum;      /* owned; NULL: no part has arrived yet */
    int64_t version;    /* of the sum when it was taken: it may be a tensor of the backward's own */
    bool changed;       /* since then, in place: what it was is not known any more */
};

static void input_grad_dealloc(PyObject *self)
{
    input_grad *grad = (input_grad *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF((PyObject *)grad->leader);
    Py_XDECREF((PyObject *)grad->row.hook);
    Py_XDECREF(grad->sum);
    Py_XDECREF(grad->geometry);
    tp_free(grad->positions);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

/* A new tensor: what the parts came from stays as it is. */
static PyObject *add_without_graph(core_state *state, PyObject *a, PyObject *b)
{
    PyObject *arguments = PyTuple_Pack(2, a, b);
    PyObject *sum =
        arguments == NULL ? NULL : core_apply_without_grad(state, state->add, arguments);
    Py_XDECREF(arguments);
    return sum;
}

/* The input's part of the gradient of its base. */
static PyObject *cut_out(core_state *state, PyObject *whole, PyObject *geometry)
{
    PyObject *arguments = PyTuple_Pack(4, whole, PyTuple_GetItem(geometry, 0),
                                       PyTuple_GetItem(geometry, 1), PyTuple_GetItem(geometry, 2));
    PyObject *part =
        arguments == NULL ? NULL : core_apply_without_grad(state, state->as_strided, arguments);
    Py_XDECREF(arguments);
    return part;
}

/* A later node may change in place what an earlier one has sent. */
static void note_changes(input_grad *leader)
{
    leader->changed |= leader->sum != NULL && reading_version(leader->row.hook->monitor->state,
                                                              leader->sum) != leader->version;
}

static bool collect(input_grad *leader, PyObject *piece)
{
    core_state *state = leader->row.hook->monitor->state;
    if (piece == Py_None) {
        return true;
    }
    note_changes(leader);
    PyObject *sum =
        leader->sum == NULL ? Py_NewRef(piece) : add_without_graph(state, leader->sum, piece);
    if (sum == NULL) {
        return false;
    }
    Py_XDECREF(leader->sum);
    leader->sum = sum;
    leader->version = reading_version(state, sum);
    return true;
}

bool input_grad_finish(input_grad *leader)
{
    monitor_object *monitor = leader->row.hook->monitor;
    note_changes(leader);
    PyObject *sum = leader->sum;
    const bool changed = leader->changed;
    leader->sum = NULL;
    leader->changed = false;
    leader->arrived = 0;
    tensor_view view;
    if (sum == NULL || changed || !tensor_view_open(monitor->state, sum, &view)) {
        Py_XDECREF(sum);
        return true;
    }
    reading values;
    const int result = reading_take(monitor, &view, view.bytes > READ_AGAIN_BYTES,
                                    TP_ACTIVATION_GRAD, leader->row.hook->name, &values);
    const bool ok =
        result == READ_OK ? record_target(&leader->row, &values) : result == READ_NOTHING;
    tensor_view_close(&view);
    Py_DECREF(sum);
    return ok;
}

static bool take_parts(input_grad *part, PyObject *grad_inputs)
{
    input_grad *leader = part->leader == NULL ? part : part->leader;
    if (leader->expected > 1) {
        const int64_t task = torch_graph_task(leader->row.hook->monitor->state);
        if (PyErr_Occurred()) {
            return false;
        }
        if (leader->arrived > 0 && leader->graph_task != task) {
            /* What an earlier backward left when it failed on the way. */
            leader->arrived = 0;
            leader->changed = false;
            Py_CLEAR(leader->sum);
        }
        leader->graph_task = task;
    }
    for (uint32_t i = 0; i < part->position_count; i++) {
        PyObject *piece = PyTuple_GetItem(grad_inputs, (Py_ssize_t)part->positions[i]);
        const bool cut = part->geometry != NULL && piece != NULL && piece != Py_None;
        PyObject *own = cut ? cut_out(leader->row.hook->monitor->state, piece, part->geometry)
                            : Py_XNewRef(piece);
        const bool ok = own != NULL && collect(leader, own);
        Py_XDECREF(own);
        if (!ok) {
            return false;
        }
    }
    leader->arrived++;
    if (leader->arrived >= leader->expected) {
        return input_grad_finish(leader);
    }
    return leader->arrived > 1 || monitor_await_end_of_backward(leader->row.hook->monitor, leader);
}

/* hook(grad_inputs, grad_outputs) */
static PyObject *input_grad_fire(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    input_grad *part = (input_grad *)self;
    const module_hook *hook = (part->leader == NULL ? part : part->leader)->row.hook;
    monitor_object *monitor = hook->monitor;
    if (count != 2 || !monitor_is_collecting(monitor)) {
        Py_RETURN_NONE;
    }
    const uint64_t begin = monitor_now(monitor);
    PyObject *hidden = core_hide_from_functions(monitor->state);
    const bool ok = take_parts(part, args[0]);
    core_show(hidden);
    PyObject *result = ok ? Py_NewRef(Py_None) : monitor_trouble(monitor, hook->name);
    monitor_add_time(monitor, begin);
    return result;
}

static PyMethodDef input_grad_def = {"input_grad", (PyCFunction)(void (*)(void))input_grad_fire,
                                     METH_FASTCALL, NULL};

PyObject *input_grad_hook_node(const input_row *row, PyObject *node, const uint32_t *positions,
                               uint32_t position_count, PyObject *geometry, input_grad *leader,
                               uint32_t expected)
{
    core_state *state = row->hook->monitor->state;
    input_grad *part = PyObject_New(input_grad, state->input_grad_type);
    if (part == NULL) {
        return NULL;
    }
    memset((char *)part + sizeof(PyObject), 0, sizeof(*part) - sizeof(PyObject));
    part->positions = tp_alloc(position_count * sizeof(*positions));
    part->position_count = position_count;
    part->expected = expected;
    part->geometry = Py_XNewRef(geometry);
    if (leader == NULL) {
        part->row = make_target(row, TP_ROLE_INPUT);
    } else {
        part->leader = (input_grad *)(void *)Py_NewRef((PyObject *)leader);
    }
    PyObject *handle = NULL;
    if (part->positions == NULL) {
        PyErr_NoMemory();
    } else {
        memcpy(part->positions, positions, position_count * sizeof(*positions));
        handle = attach(node, state->name_register_hook, &input_grad_def, (PyObject *)part);
    }
    if (handle == NULL) {
        Py_DECREF((PyObject *)part);
        return NULL;
    }
    Py_DECREF(handle);
    return (PyObject *)part;
}

static PyType_Slot output_grad_slots[] = {
    {Py_tp_dealloc, output_grad_dealloc},
    {Py_tp_doc, "The gradient of a tensor, and the rows it goes to."},
    {0, NULL},
};

PyType_Spec core_output_grad_spec = {
    .name = "tensorprobe._core.OutputGrad",
    .basicsize = sizeof(output_grad),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = output_grad_slots,
};

static PyType_Slot input_grad_slots[] = {
    {Py_tp_dealloc, input_grad_dealloc},
    {Py_tp_doc, "What one node sends to an input of a module."},
    {0, NULL},
};

PyType_Spec core_input_grad_spec = {
    .name = "tensorprobe._core.InputGrad",
    .basicsize = sizeof(input_grad),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = input_grad_slots,
};
