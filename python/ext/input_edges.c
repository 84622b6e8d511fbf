#include "input_edges.h"

#include <string.h>

#include "base/mem.h"
#include "gradient_hooks.h"

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
    PyObject *view = PyObject_CallMethod(tensor, "view_as", "O", tensor);
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

/* The node at which the tensor's gradient arrives, a new reference. */
static PyObject *gradient_node(core_state *state, PyObject *tensor, uint32_t *output_nr)
{
    PyObject *node = made_by(state, tensor, output_nr);
    if (node != Py_None) {
        return node;
    }
    Py_DECREF(node);
    return accumulating_node(state, tensor);
}

bool input_edges_capture(module_hook *hook, frame *running, const tensor_list *inputs)
{
    core_state *state = hook->monitor->state;
    for (uint32_t i = 0; i < inputs->count; i++) {
        PyObject *tensor = inputs->items[i].tensor;
        const int32_t slot = inputs->count == 1 ? -1 : (int32_t)i;
        const int required = requires_grad(state, tensor);
        if (required < 0) {
            return false;
        }
        if (!required) {
            continue;
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
        const bool added = frame_add_edge(running, node, output_nr, slot);
        Py_DECREF(node);
        if (!added) {
            PyErr_NoMemory();
            return false;
        }
    }
    if (running->edge_count > 0) {
        running->entry_sequence_nr = core_call_int(state->sequence_nr);
    }
    return !PyErr_Occurred();
}

/* A node of the module that takes an input edge as the input with this number. */
typedef struct consumer {
    PyObject *node; /* borrowed: held by the walk */
    uint32_t edge;
    uint32_t position;
} consumer;

typedef struct walk {
    const frame *running;
    PyObject *nodes; /* list: the nodes that have been reached, in the order of their visit */
    PyObject *seen;  /* set: the same */
    consumer *consumers;
    uint32_t count, capacity;
} walk;

static bool add_consumer(walk *way, PyObject *node, uint32_t edge, uint32_t position)
{
    if (way->count == way->capacity) {
        const uint32_t capacity = way->capacity == 0 ? 8 : way->capacity * 2;
        consumer *consumers = tp_realloc(way->consumers, capacity * sizeof(*consumers));
        if (consumers == NULL) {
            PyErr_NoMemory();
            return false;
        }
        way->consumers = consumers;
        way->capacity = capacity;
    }
    way->consumers[way->count++] = (consumer){node, edge, position};
    return true;
}

static bool reach(walk *way, PyObject *node)
{
    const Py_ssize_t before = PySet_Size(way->seen);
    if (PySet_Add(way->seen, node) != 0) {
        return false;
    }
    return PySet_Size(way->seen) == before || PyList_Append(way->nodes, node) == 0;
}

/* Was the node made by this forward? Numbers grow over time in a thread; accumulating nodes have
 * the largest possible one, and lead nowhere. 1, 0, or -1 with an error set. */
static int made_inside(core_state *state, const walk *way, PyObject *node)
{
    PyObject *number = PyObject_CallMethodObjArgs(node, state->name_sequence_nr, NULL);
    if (number == NULL) {
        return -1;
    }
    const uint64_t sequence_nr = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (sequence_nr == UINT64_MAX) {
        PyErr_Clear(); /* also what a failed conversion gives */
        return 0;
    }
    return sequence_nr >= (uint64_t)way->running->entry_sequence_nr;
}

static bool visit(core_state *state, walk *way, PyObject *node)
{
    PyObject *next = PyObject_GetAttr(node, state->name_next_functions);
    if (next == NULL) {
        return false;
    }
    bool ok = true;
    const frame *running = way->running;
    const Py_ssize_t size = PyTuple_Size(next);
    for (Py_ssize_t i = 0; ok && i < size; i++) {
        PyObject *pair = PyTuple_GetItem(next, i);
        PyObject *to = PyTuple_GetItem(pair, 0);
        if (to == Py_None) {
            continue;
        }
        const uint32_t output_nr = (uint32_t)PyLong_AsUnsignedLong(PyTuple_GetItem(pair, 1));
        uint32_t edge = 0;
        while (edge < running->edge_count &&
               (running->edges[edge].node != to || running->edges[edge].output_nr != output_nr)) {
            edge++;
        }
        if (edge < running->edge_count) {
            ok = add_consumer(way, node, edge, (uint32_t)i);
            continue;
        }
        const int inside = made_inside(state, way, to);
        ok = inside >= 0 && (inside == 0 || reach(way, to));
    }
    Py_DECREF(next);
    return ok;
}

/* An input that goes out unchanged (its gradient can't be told from that of its other uses), or
 * that goes in twice (the parts can't be told apart): no row rather than a made-up value. */
static bool is_ambiguous(const frame *running, uint32_t edge, const bool *passed_on)
{
    if (passed_on[edge]) {
        return true;
    }
    for (uint32_t i = 0; i < running->edge_count; i++) {
        if (i != edge && running->edges[i].node == running->edges[edge].node &&
            running->edges[i].output_nr == running->edges[edge].output_nr) {
            return true;
        }
    }
    return false;
}

/* Starts the walk at the outputs, and marks the edges that are an output themselves. */
static bool begin_walk(core_state *state, walk *way, const tensor_list *outputs, bool *passed_on)
{
    for (uint32_t i = 0; i < outputs->count; i++) {
        const int required = requires_grad(state, outputs->items[i].tensor);
        if (required < 0) {
            return false;
        }
        if (!required) {
            continue;
        }
        uint32_t output_nr = 0;
        PyObject *node = gradient_node(state, outputs->items[i].tensor, &output_nr);
        if (node == NULL) {
            return false;
        }
        bool is_edge = false;
        for (uint32_t edge = 0; edge < way->running->edge_count; edge++) {
            if (way->running->edges[edge].node == node &&
                way->running->edges[edge].output_nr == output_nr) {
                passed_on[edge] = true;
                is_edge = true;
            }
        }
        int inside = is_edge ? 0 : made_inside(state, way, node);
        if (inside > 0 && !reach(way, node)) {
            inside = -1;
        }
        Py_DECREF(node);
        if (inside < 0) {
            return false;
        }
    }
    return true;
}

/* Number of different nodes that consume the edge. A node's entries follow one another. */
static uint32_t count_nodes(const walk *way, uint32_t edge)
{
    uint32_t count = 0;
    const PyObject *last = NULL;
    for (uint32_t i = 0; i < way->count; i++) {
        if (way->consumers[i].edge == edge && way->consumers[i].node != last) {
            last = way->consumers[i].node;
            count++;
        }
    }
    return count;
}

static bool hook_edge(module_hook *hook, const walk *way, uint32_t edge, uint32_t *positions)
{
    const uint32_t expected = count_nodes(way, edge);
    const int32_t slot = way->running->edges[edge].slot;
    PyObject *leader = NULL;
    bool ok = true;
    for (uint32_t i = 0; ok && i < way->count;) {
        PyObject *node = way->consumers[i].node;
        uint32_t count = 0;
        for (; i < way->count && way->consumers[i].node == node; i++) {
            if (way->consumers[i].edge == edge) {
                positions[count++] = way->consumers[i].position;
            }
        }
        if (count == 0) {
            continue;
        }
        PyObject *part =
            input_grad_hook_node(hook, node, positions, count, (input_grad *)(void *)leader,
                                 expected, slot, way->running);
        ok = part != NULL;
        if (leader == NULL) {
            leader = part;
        } else {
            Py_XDECREF(part);
        }
    }
    Py_XDECREF(leader);
    return ok;
}

bool input_edges_follow(module_hook *hook, const frame *running, const tensor_list *outputs)
{
    core_state *state = hook->monitor->state;
    walk way = {.running = running, .nodes = PyList_New(0), .seen = PySet_New(NULL)};
    bool *passed_on = tp_calloc(running->edge_count, sizeof(*passed_on));
    uint32_t *positions = NULL;
    bool ok = false;
    if (way.nodes == NULL || way.seen == NULL || passed_on == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    ok = begin_walk(state, &way, outputs, passed_on);
    for (Py_ssize_t i = 0; ok && i < PyList_Size(way.nodes); i++) {
        ok = visit(state, &way, PyList_GetItem(way.nodes, i));
    }
    if (!ok || way.count == 0) {
        goto end;
    }
    positions = tp_alloc(way.count * sizeof(*positions));
    if (positions == NULL) {
        PyErr_NoMemory();
        ok = false;
        goto end;
    }
    for (uint32_t edge = 0; ok && edge < running->edge_count; edge++) {
        if (!is_ambiguous(running, edge, passed_on)) {
            ok = hook_edge(hook, &way, edge, positions);
        }
    }

end:
    tp_free(positions);
    tp_free(passed_on);
    tp_free(way.consumers);
    Py_XDECREF(way.nodes);
    Py_XDECREF(way.seen);
    return ok;
}
