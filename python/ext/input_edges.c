#include "input_edges.h"

#include <string.h>

#include "base/mem.h"
#include "frames.h"
#include "gradient_hooks.h"
#include "graph_walk.h"
#include "torch_calls.h"

int requires_grad(core_state *state, PyObject *tensor)
{
    PyObject *value = PyObject_GetAttr(tensor, state->name_requires_grad);
    if (value == NULL) {
        return -1;
    }
    const bool yes = value == Py_True;
    Py_DECREF(value);
    return yes;
}

/* A leaf's accumulating node is only reachable through a node that was made from it: a view that is
 * dropped at once, and is no part of anybody's graph. */
static PyObject *accumulating_node(core_state *state, PyObject *tensor)
{
    PyObject *node = NULL;
    PyObject *hidden = core_hide_from_dispatch(state);
    PyObject *view = PyObject_CallMethod(tensor, "view_as", "O", tensor);
    core_show(hidden);
    PyObject *grad_fn = view == NULL ? NULL : PyObject_GetAttr(view, state->name_grad_fn);
    PyObject *next = grad_fn == NULL ? NULL : PyObject_GetAttr(grad_fn, state->name_next_functions);
    PyObject *pair = next == NULL ? NULL : PyTuple_GetItem(next, 0);
    if (pair != NULL) {
        node = PyTuple_GetItem(pair, 0);
        Py_XINCREF(node);
    }
    Py_XDECREF(next);
    Py_XDECREF(grad_fn);
    Py_XDECREF(view);
    return node;
}

PyObject *made_by(core_state *state, PyObject *tensor, uint32_t *output_nr)
{
    *output_nr = 0;
    PyObject *node = PyObject_GetAttr(tensor, state->name_grad_fn);
    if (node == NULL || node == Py_None) {
        return node;
    }
    PyObject *number = PyObject_GetAttr(tensor, state->name_output_nr);
    if (number == NULL) {
        Py_DECREF(node);
        return NULL;
    }
    *output_nr = (uint32_t)PyLong_AsUnsignedLong(number);
    Py_DECREF(number);
    return node;
}

PyObject *gradient_node(core_state *state, PyObject *tensor, uint32_t *output_nr)
{
    PyObject *node = made_by(state, tensor, output_nr);
    if (node != Py_None) {
        return node;
    }
    Py_DECREF(node);
    return accumulating_node(state, tensor);
}

/* A tensor that goes in several times has one gradient, which is shown at its first place. */
static bool is_noted(const frame *running, const PyObject *node, uint32_t output_nr)
{
    for (uint32_t i = 0; i < running->edge_count; i++) {
        if (running->edges[i].node == node && running->edges[i].output_nr == output_nr) {
            return true;
        }
    }
    return false;
}

bool input_edges_capture(module_hook *hook, frame *running, const tensor_list *inputs)
{
    core_state *state = hook->monitor->state;
    for (uint32_t i = 0; i < inputs->count; i++) {
        PyObject *tensor = inputs->items[i].tensor;
        int32_t slot;
        const int required = requires_grad(state, tensor);
        if (required < 0) {
            return false;
        }
        if (!required) {
            continue;
        }
        if (!module_hook_slot(hook, inputs, i, &slot)) {
            return false;
        }
        if (hook->monitor->config->input_grad_tensor) {
            if (!gradient_hook_tensor(hook, tensor, TP_ROLE_INPUT, slot, running)) {
                return false;
            }
            continue;
        }
        uint32_t output_nr = 0;
        PyObject *node = gradient_node(state, tensor, &output_nr);
        if (node == NULL) {
            return false;
        }
        const input_edge edge = {node, output_nr, slot, i};
        const bool added = is_noted(running, node, output_nr) || frame_add_edge(running, &edge);
        Py_DECREF(node);
        if (!added) {
            PyErr_NoMemory();
            return false;
        }
    }
    if (hook->monitor->follows_inputs) {
        running->entry_sequence_nr = torch_sequence_nr(state);
    }
    return !PyErr_Occurred();
}

/* ---- After the forward ---- */

/* The uses of one input, of which a node's follow one another. */
static bool hook_uses(const input_row *row, const found_use *uses, uint32_t count)
{
    uint32_t nodes = 0;
    for (uint32_t i = 0; i < count; i++) {
        nodes += i == 0 || uses[i].node != uses[i - 1].node;
    }
    uint32_t *positions = tp_alloc((count + 1) * sizeof(*positions));
    PyObject *leader = NULL;
    bool ok = positions != NULL;
    for (uint32_t i = 0; ok && i < count;) {
        const found_use *first = &uses[i];
        uint32_t number = 0;
        for (; i < count && uses[i].node == first->node; i++) {
            positions[number++] = uses[i].position;
        }
        PyObject *part = input_grad_hook_node(row, first->node, positions, number, first->geometry,
                                              (input_grad *)(void *)leader, nodes);
        ok = part != NULL;
        if (leader == NULL) {
            leader = part;
        } else {
            Py_XDECREF(part);
        }
    }
    if (positions == NULL) {
        PyErr_NoMemory();
    }
    Py_XDECREF(leader);
    tp_free(positions);
    return ok;
}

static bool is_output(const walk *way, const PyObject *node, uint32_t output_nr)
{
    for (uint32_t i = 0; i < way->outputs.count; i++) {
        if (way->outputs.edges[i].node == node && way->outputs.edges[i].output_nr == output_nr) {
            return true;
        }
    }
    return false;
}

/* Uses of the edge with this number that the walk has found, copied together. *uses is to be
 * freed; NULL with an error set when memory ran out. */
static uint32_t uses_of(const walk *way, uint32_t edge, found_use **uses)
{
    uint32_t count = 0;
    *uses = tp_alloc((way->use_count + 1) * sizeof(**uses));
    if (*uses == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    for (uint32_t i = 0; i < way->use_count; i++) {
        if (way->uses[i].edge == edge) {
            (*uses)[count++] = way->uses[i];
        }
    }
    return count;
}

/* The frame around the one that has just been taken out, if it wants to know. */
static frame *outer_frame(const frame *running)
{
    const monitor_object *monitor = running->hook->monitor;
    for (uint32_t i = monitor->frame_count; i-- > 0;) {
        frame *outer = monitor->frames[i];
        if (outer->thread == running->thread && outer->graph_task == running->graph_task) {
            if (outer->gradients) {
                return outer;
            }
        }
    }
    return NULL;
}

static bool hand_to(frame *outer, handed_on *input)
{
    if (outer == NULL) {
        handed_on_clear(input);
        return true;
    }
    return passages_hand_on(&outer->within, input);
}

/* An input that goes out as it came: what it is used for afterwards belongs to its gradient, too.
 * Of one result among several nobody knows whether it is used at all. */
static bool hand_on(walk *way, uint32_t edge, const found_use *uses, uint32_t count, frame *outer)
{
    const frame *running = way->running;
    const input_edge *from = &running->edges[edge];
    if (outer == NULL || way->output_count != 1) {
        return true;
    }
    handed_on input = {
        .row = {running->hook, from->slot, running->micro_step, running->call},
        .node = Py_NewRef(from->node),
        .output_nr = from->output_nr,
        .entry = running->entry_sequence_nr,
        .exit = torch_sequence_nr(way->state),
    };
    Py_INCREF((PyObject *)running->hook);
    bool ok = !PyErr_Occurred();
    for (uint32_t i = 0; ok && i < count; i++) {
        ok =
            edge_list_add(&input.uses, uses[i].node, uses[i].position, from->node, from->output_nr);
    }
    if (!ok) {
        handed_on_clear(&input);
        return false;
    }
    return hand_to(outer, &input);
}

static bool hook_handed_on(const handed_on *input)
{
    found_use *uses = tp_calloc(input->uses.count + 1, sizeof(*uses));
    if (uses == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (uint32_t i = 0; i < input->uses.count; i++) {
        uses[i].node = input->uses.edges[i].node;
        uses[i].position = input->uses.edges[i].position;
    }
    const bool ok = hook_uses(&input->row, uses, input->uses.count);
    tp_free(uses);
    return ok;
}

/* What a module inside handed on, seen from around it. The tensor and the module's output are one
 * object: that a use is one of the output is certain only where there is no more than one. uses:
 * those that this forward made. */
static bool settle(walk *way, handed_on *input, const found_use *uses, uint32_t count, frame *outer)
{
    uint32_t before = 0;
    uint32_t after = 0;
    const bool goes_out = is_output(way, input->node, input->output_nr);
    const int made_here = walk_made_inside(way, input->node);
    bool ok = made_here >= 0;
    for (uint32_t i = 0; ok && i < count; i++) {
        const int64_t number = walk_sequence_nr(way->state, uses[i].node);
        ok = !PyErr_Occurred();
        before += number < input->entry;
        if (ok && number >= input->exit) {
            after++;
            ok = edge_list_add(&input->uses, uses[i].node, uses[i].position, input->node,
                               input->output_nr);
        }
    }
    if (!ok) {
        return false;
    }
    if (!input->any && after + goes_out > 1) {
        return true;
    }
    if (!goes_out) {
        return hook_handed_on(input);
    }
    if (made_here && before == 0 && after == 0) {
        return gradient_hook_node(&input->row, input->node, input->output_nr);
    }
    /* Nobody out there has it but by the way of this output. */
    input->any = input->any || made_here;
    input->exit = torch_sequence_nr(way->state);
    return !PyErr_Occurred() && hand_to(outer, input);
}

static bool follow_own(walk *way, frame *outer)
{
    const frame *running = way->running;
    bool ok = true;
    for (uint32_t edge = 0; ok && edge < running->edge_count; edge++) {
        const input_edge *from = &running->edges[edge];
        const input_row row = {running->hook, from->slot, running->micro_step, running->call};
        found_use *uses = NULL;
        const uint32_t count = uses_of(way, edge, &uses);
        ok = uses != NULL &&
             (is_output(way, from->node, from->output_nr) ? hand_on(way, edge, uses, count, outer)
                                                          : hook_uses(&row, uses, count));
        tp_free(uses);
    }
    return ok;
}

static bool follow_handed(walk *way, frame *outer)
{
    const frame *running = way->running;
    const uint32_t handed_count = running->within == NULL ? 0 : running->within->handed_count;
    bool ok = true;
    for (uint32_t i = 0; ok && i < handed_count; i++) {
        found_use *uses = NULL;
        const uint32_t count = uses_of(way, running->edge_count + i, &uses);
        ok = uses != NULL && settle(way, &running->within->handed[i], uses, count, outer);
        tp_free(uses);
    }
    return ok;
}

bool input_edges_wanted(const frame *running)
{
    return running->edge_count > 0 ||
           (running->within != NULL && running->within->handed_count > 0);
}

bool input_edges_pass(frame *running)
{
    frame *outer = running->within == NULL ? NULL : outer_frame(running);
    passages *left = running->within;
    if (outer == NULL) {
        return true;
    }
    running->within = NULL;
    return passages_move(&outer->within, left);
}

bool input_edges_follow(const frame *running, const tensor_list *outputs, PyObject *const *inputs)
{
    frame *outer = outer_frame(running);
    walk way;
    bool ok = walk_graph(&way, running, outputs, inputs) && follow_own(&way, outer) &&
              follow_handed(&way, outer);
    if (ok && outer != NULL) {
        ok = passages_add(&outer->within, Py_NewRef(way.starts), &way.leaving);
    }
    walk_free(&way);
    return ok;
}
